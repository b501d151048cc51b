from __future__ import annotations

import os
import shutil

import pytest
from attacks.hostile import INFER, PARAMS, assert_refused

from protofleet.bundle.files import MANIFEST, SIGNATURE


@pytest.mark.parametrize("name", [MANIFEST, SIGNATURE, PARAMS, INFER])
def test_a_symbolic_link_in_place_of_a_file_is_refused(forge, name):
    """Even one that points to the right bytes."""
    root = forge.directory()
    shutil.move(root / name, forge.folder / "elsewhere")
    (root / name).symlink_to(forge.folder / "elsewhere")
    assert_refused("file-type", root)


def test_a_symbolic_link_in_place_of_a_folder_is_refused(forge):
    root = forge.directory()
    shutil.move(root / "programs", forge.folder / "elsewhere")
    (root / "programs").symlink_to(forge.folder / "elsewhere")
    assert_refused("file-type", root)


@pytest.mark.parametrize("name", [MANIFEST, PARAMS])
def test_a_named_pipe_is_refused_without_waiting_for_a_writer(forge, name):
    root = forge.directory()
    (root / name).unlink()
    os.mkfifo(root / name)
    assert_refused("file-type", root)


def test_a_folder_in_place_of_a_file_is_refused(forge):
    root = forge.directory()
    (root / MANIFEST).unlink()
    (root / MANIFEST).mkdir()
    assert_refused("file-type", root)
