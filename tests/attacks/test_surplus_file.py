from __future__ import annotations

import pytest
from attacks.hostile import assert_refused


@pytest.mark.parametrize("name", ["extra.so", "programs/extra.onnx", ".hidden"])
def test_a_file_that_the_manifest_does_not_name_is_refused(forge, name):
    root = forge.directory()
    (root / name).write_bytes(b"x")
    assert_refused("surplus-file", root, match=name)


def test_a_folder_that_holds_no_declared_file_is_refused(forge):
    root = forge.directory()
    (root / "cache").mkdir()
    assert_refused("surplus-file", root, match="cache")
