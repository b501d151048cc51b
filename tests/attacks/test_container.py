from __future__ import annotations

import io
import zipfile

import pytest
from attacks.hostile import PARAMS, assert_refused

from protofleet.bundle.files import MANIFEST


def _zip(content, method=zipfile.ZIP_STORED, comment=b"", **special):
    """An archive as Python's zipfile writes it, otherwise in the right order."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as file:
        file.comment = comment
        for name, data in content.items():
            info = zipfile.ZipInfo(special.get(name, name))
            info.compress_type = method
            info.create_system = info.external_attr = 0
            file.writestr(info, data)
    return memory.getvalue()


def test_a_compressed_archive_is_refused(forge):
    path = forge.single()
    path.write_bytes(_zip(forge.content(), zipfile.ZIP_DEFLATED))
    assert_refused("container", path, match="uncompressed")


def test_a_compression_bomb_is_refused_unread(forge):
    """64 MiB of zeros in 64 KiB; declared and signed, so only the container can refuse it."""
    forge.files["programs/bomb.onnx"] = bytes(1 << 26)
    content = forge.declare().content()
    path = forge.single({"manifest.json": b"", "manifest.sig": b""})
    path.write_bytes(_zip(content, zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 1 << 17
    assert_refused("container", path)


def test_an_entry_under_another_name_is_refused(forge):
    """What a ZIP tool would unpack is not what the manifest speaks of."""
    path = forge.single()
    path.write_bytes(path.read_bytes().replace(PARAMS.encode(), b"../../../../evil.so"[-18:]))
    assert_refused("container", path)


def test_an_archive_comment_is_refused(forge):
    path = forge.single()
    path.write_bytes(_zip(forge.content(), comment=b"hello"))
    assert_refused("container", path)


@pytest.mark.parametrize("extra", [b"x", b"PK\x05\x06" + bytes(18)])
def test_bytes_after_the_end_are_refused(forge, extra):
    path = forge.single()
    path.write_bytes(path.read_bytes() + extra)
    assert_refused("container", path)


def test_bytes_before_the_first_entry_are_refused(forge):
    """A script glued before an archive still opens as one with most tools."""
    path = forge.single()
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    assert_refused("container", path)


def test_an_entry_that_occurs_twice_is_refused(forge):
    path = forge.single()
    memory = io.BytesIO(_zip(forge.content()))
    with zipfile.ZipFile(memory, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr(MANIFEST, b"{}")
    path.write_bytes(memory.getvalue())
    assert_refused("container", path)


def test_entries_in_another_order_are_refused(forge):
    path = forge.single()
    path.write_bytes(_zip(dict(reversed(forge.content().items()))))
    assert_refused("container", path)


def test_a_wrong_checksum_is_refused_though_the_data_are_right(forge):
    path = forge.single()
    data = bytearray(path.read_bytes())
    data[14] ^= 1
    path.write_bytes(data)
    assert_refused("container", path, match="checksum")


def test_something_that_is_no_archive_is_refused(forge):
    path = forge.single()
    path.write_bytes(b"\x7fELF" + bytes(4096))
    assert_refused("container", path)
