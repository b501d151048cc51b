from __future__ import annotations

import pytest
from attacks.hostile import assert_refused

_PATHS = [
    "../evil.onnx",
    "programs/../../evil.onnx",
    "/etc/evil",
    "./evil.onnx",
    "programs//evil.onnx",
    "programs/",
    "",
    ".hidden",
    "trailing.",
    "C:evil.onnx",
    "..\\evil.onnx",
    "programs/évil.onnx",
    "evil\x00.onnx",
    "evil\n.onnx",
    "a/b/c/d/e",
    "x" * 129,
    "manifest.json",
    "manifest.sig",
]


@pytest.mark.parametrize("name", _PATHS)
def test_a_path_outside_the_alphabet_is_refused(forge, name):
    """No file has to lie there: the manifest's word is enough."""
    forge.manifest["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    assert_refused("path", *forge.both())


def test_two_paths_that_differ_only_in_case_are_refused(forge):
    forge.files["PROGRAMS/infer.onnx"] = b"x"
    assert_refused("path", *forge.declare().both(), match="case")
