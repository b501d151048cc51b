from __future__ import annotations

import os

import pytest
from attacks.hostile import INFER, PARAMS, assert_refused

from protofleet.bundle import MAX_MANIFEST_BYTES
from protofleet.bundle.files import MANIFEST, MAX_BUNDLE_BYTES, SIGNATURE


@pytest.mark.parametrize("name", [PARAMS, INFER])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_than_declared_is_refused(forge, name, change):
    root = forge.directory()
    os.truncate(root / name, len(forge.files[name]) + change)
    assert_refused("size", root, match=name)


@pytest.mark.parametrize("declared", [-1, MAX_BUNDLE_BYTES + 1])
def test_an_impossible_declared_size_is_refused(forge, declared):
    forge.manifest["files"][INFER]["bytes"] = declared
    assert_refused("size", *forge.both())


def test_files_that_are_too_large_only_together_are_refused(forge):
    for name in forge.files:
        forge.manifest["files"][name]["bytes"] = MAX_BUNDLE_BYTES // 2
    assert_refused("size", *forge.both())


@pytest.mark.parametrize("name", [MANIFEST, SIGNATURE, PARAMS])
def test_a_huge_file_is_refused_without_being_read(forge, name):
    """The file is sparse: reading it would take 1 TiB of memory."""
    root = forge.directory()
    os.truncate(root / name, 1 << 40)
    assert_refused("size", root)


def test_a_huge_archive_is_refused_without_being_read(forge):
    path = forge.single()
    os.truncate(path, MAX_BUNDLE_BYTES + 1)
    assert_refused("size", path)


def test_a_manifest_above_its_limit_is_refused_though_signed(forge):
    text = forge.content()[MANIFEST] + b" " * MAX_MANIFEST_BYTES
    assert_refused("size", *forge.both(forge.content(text)))


def test_a_hash_that_is_none_is_refused(forge):
    forge.manifest["files"][INFER]["sha256"] = "0" * 63
    assert_refused("size", *forge.both())
