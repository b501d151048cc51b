"""TFLite programs are opened in a child process first, whatever happens to it there."""

from __future__ import annotations

import sys

import pytest
from attacks.hostile import PUBLIC, Forge
from tflite_by_hand import Graph, tflite_bytes

from protofleet.bundle import Bundle
from protofleet.errors import ProvisionError
from protofleet.runtime import opening
from protofleet.runtime.opening import check_opening

_FILE = "programs/programs.tflite"


@pytest.fixture
def forge(tmp_path):
    """The tiny bundle with its program ``infer`` as a TFLite file, too."""
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    made = Forge(folder)
    program = Bundle.open(folder / "good", trusted={PUBLIC}).manifest.programs["infer"]
    graph = Graph(program.inputs, program.outputs)
    graph.add("BATCH_MATMUL", ["x", "w"], "xw", ("batch", 3), options="BatchMatMulOptions")
    graph.add("ADD", ["xw", "b"], program.outputs[0].name, ("batch", 3), options="AddOptions")
    made.files[_FILE] = tflite_bytes({"infer": graph})
    made.manifest["programs"]["infer"]["tflite"] = _FILE
    return made


def _opened(forge):
    path = forge.declare().single()
    return path, Bundle.open(path, trusted={PUBLIC})


def test_what_opens_is_named_with_the_runtime_that_opened_it(forge):
    path, bundle = _opened(forge)
    assert check_opening(path, bundle).startswith(f"{bundle.digest} LiteRT ")


@pytest.mark.parametrize("damage", [b"", b"TFL3" * 9, None], ids=["empty", "noise", "cut"])
def test_what_does_not_open_is_told_in_one_line(forge, damage):
    forge.files[_FILE] = forge.files[_FILE][:200] if damage is None else damage
    path, bundle = _opened(forge)
    with pytest.raises(ProvisionError, match=r"'tiny': its TFLite programs do not open: .*infer'"):
        check_opening(path, bundle)


def test_another_file_in_the_place_of_the_verified_one_is_refused(forge):
    path, bundle = _opened(forge)
    forge.manifest["name"] = "other"
    _opened(forge)
    with pytest.raises(ProvisionError, match="changed while it was opened"):
        check_opening(path, bundle)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -SEGV $$", "end LiteRT with SIGSEGV; export the model anew, or"),
        ("exec sleep 60", "were not opened within 0.5 s"),
        ("exit 3", "no reason was told"),
    ],
)
def test_a_crash_and_an_endless_program_end_the_child_alone(
    forge, script, message, tmp_path, monkeypatch
):
    path, bundle = _opened(forge)
    child = tmp_path / "python"
    child.write_text(f"#!/bin/sh\n{script}\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    monkeypatch.setattr(opening, "LIMIT_S", 0.5)
    with pytest.raises(ProvisionError, match=message):
        check_opening(path, bundle)
