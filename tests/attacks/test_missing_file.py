from __future__ import annotations

import pytest
from attacks.hostile import INFER, PARAMS, assert_refused

from protofleet.bundle.files import MANIFEST


@pytest.mark.parametrize("name", [MANIFEST, PARAMS, INFER])
def test_a_directory_without_a_declared_file_is_refused(forge, name):
    root = forge.directory()
    (root / name).unlink()
    assert_refused("missing-file", root, match=name)


def test_a_manifest_that_declares_no_parameters_is_refused(forge):
    del forge.files[PARAMS]
    assert_refused("missing-file", *forge.declare().both(), match=PARAMS)


def test_declared_state_without_its_file_is_refused(forge):
    forge.manifest["state"] = [{"name": "beta", "shape": []}]
    assert_refused("missing-file", *forge.both(), match="state.safetensors")
