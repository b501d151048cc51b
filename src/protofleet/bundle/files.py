"""Where a bundle's bytes lie: a directory, one ``.pfb`` file, or memory.

A ``.pfb`` is a ZIP archive that any tool opens, but of which exactly one byte sequence exists per
content (``docs/bundle.md``): the reader computes what must stand at each place and compares, so
that nothing about a ZIP is left to interpretation.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from protofleet.errors import RefusedError

MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
MAX_BUNDLE_BYTES = 1024**3

_LOCAL_MAGIC = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_SUMS, _SUMS_OFFSET = struct.Struct("<I4xI"), 14  # checksum and size within a local header
_VERSION, _STORED, _TIME, _DATE = 20, 0, 0, 0x21  # ZIP 2.0; 1980-01-01 00:00


class Source(Protocol):
    """Read access to the files of a bundle, none of which has been verified."""

    def read(self, name: str, max_bytes: int) -> bytes:
        """All bytes of one file; RefusedError if absent, too large or no plain file."""
        ...

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """RefusedError unless the bundle holds exactly these files, with these sizes."""
        ...


class MemorySource:
    """A bundle that is about to be written."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def read(self, name: str, max_bytes: int) -> bytes:
        """See ``Source``."""
        data = self._files[name]
        _check_size(name, len(data), max_bytes)
        return data

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """See ``Source``."""
        _compare_sizes({name: len(data) for name, data in self._files.items()}, sizes)


class DirectorySource:
    """The directory form; no symbolic link is ever followed below its root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str, max_bytes: int) -> bytes:
        """See ``Source``."""
        try:
            # Without O_NONBLOCK a named pipe in place of a file would hang the reader.
            descriptor = os.open(self._root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            rule = "missing-file" if error.errno == errno.ENOENT else "file-type"
            raise RefusedError(rule, f"bundle file '{name}': {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise RefusedError("file-type", f"bundle file '{name}': not a plain file")
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            _check_size(name, size, max_bytes)
            return _read_exactly(file, name, size)

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """See ``Source``."""
        _compare_sizes(dict(self._walk(self._root, "", sizes)), sizes)

    def _walk(
        self, folder: Path, prefix: str, sizes: Mapping[str, int]
    ) -> Iterator[tuple[str, int]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if not any(path.startswith(f"{name}/") for path in sizes):
                        raise RefusedError("surplus-file", f"bundle folder {name!r}: unexpected")
                    yield from self._walk(folder / entry.name, f"{name}/", sizes)
                elif entry.is_file(follow_symlinks=False):
                    yield name, entry.stat(follow_symlinks=False).st_size
                else:
                    raise RefusedError("file-type", f"bundle file '{name}': not a plain file")


class SingleFileSource:
    """The ``.pfb`` form, read in place.

    Only the sizes of the first two entries are taken from the archive, within limits; every other
    byte is compared with what the manifest makes of it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, tuple[int, int, int]] = {}
        with path.open("rb") as file:
            self._total = os.fstat(file.fileno()).st_size
            if self._total > MAX_BUNDLE_BYTES:
                raise RefusedError("size", f"bundle: {self._total} bytes > {MAX_BUNDLE_BYTES}")
            end = self._locate(file, MANIFEST, 0)
            self._locate(file, SIGNATURE, end)

    def read(self, name: str, max_bytes: int) -> bytes:
        """See ``Source``."""
        if name not in self._places:
            raise RefusedError("missing-file", f"bundle file '{name}': absent")
        offset, size, crc = self._places[name]
        _check_size(name, size, max_bytes)
        with self._path.open("rb") as file:
            file.seek(offset)
            data = _read_exactly(file, name, size)
        if zlib.crc32(data) != crc:
            raise RefusedError("container", f"bundle file '{name}': checksum differs")
        return data

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """See ``Source``."""
        with self._path.open("rb") as file:
            offset = sum(self._places[SIGNATURE][:2])
            for name in _ordered(sizes)[2:]:
                offset = self._locate(file, name, offset)
            _compare_sizes({name: place[1] for name, place in self._places.items()}, sizes)
            tail = _directory({name: place[1:] for name, place in self._places.items()})
            file.seek(offset)
            found = file.read(len(tail) + 1)
        if found != tail:
            rule = "truncated" if tail.startswith(found) else "container"
            raise RefusedError(rule, "bundle: expected only the archive's directory at its end")

    def _locate(self, file: BinaryIO, name: str, offset: int) -> int:
        """Check the header at ``offset``, note the file's place, return where its data end."""
        file.seek(offset)
        length = _LOCAL.size + len(name.encode())
        header = file.read(length)
        if len(header) < length:
            raise RefusedError("truncated", f"bundle: ends before file '{name}'")
        crc, size = _SUMS.unpack_from(header, _SUMS_OFFSET)
        if header != _local(name, size, crc):
            raise _bad_header(name, header)
        end: int = offset + length + size
        if end > self._total:
            raise RefusedError("truncated", f"bundle: ends within file '{name}'")
        self._places[name] = (offset + length, size, crc)
        return end


def archive(files: Mapping[str, bytes]) -> Iterator[bytes]:
    """The parts of the one ``.pfb`` that holds ``files``."""
    entries = {}
    for name in _ordered(files):
        data = files[name]
        entries[name] = (len(data), zlib.crc32(data))
        yield _local(name, *entries[name])
        yield data
    yield _directory(entries)


def _ordered(names: Mapping[str, object]) -> list[str]:
    return [MANIFEST, SIGNATURE, *sorted(names.keys() - {MANIFEST, SIGNATURE})]


def _local(name: str, size: int, crc: int) -> bytes:
    fields = (_VERSION, 0, _STORED, _TIME, _DATE, crc, size, size, len(name.encode()), 0)
    return _LOCAL.pack(_LOCAL_MAGIC, *fields) + name.encode()


def _directory(entries: Mapping[str, tuple[int, ...]]) -> bytes:
    records = bytearray()
    offset = 0
    for name, (size, crc) in entries.items():
        raw = name.encode()
        fields = (_VERSION, _VERSION, 0, _STORED, _TIME, _DATE, crc, size, size, len(raw))
        records += _CENTRAL.pack(b"PK\x01\x02", *fields, 0, 0, 0, 0, 0, offset) + raw
        offset += _LOCAL.size + len(raw) + size
    count = len(entries)
    return bytes(records) + _END.pack(b"PK\x05\x06", 0, 0, count, count, len(records), offset, 0)


def _bad_header(name: str, header: bytes) -> RefusedError:
    if name == SIGNATURE and SIGNATURE.encode() not in header:
        return RefusedError("unsigned", f"bundle: no '{SIGNATURE}' after '{MANIFEST}'")
    if name == MANIFEST and not header.startswith(_LOCAL_MAGIC):
        return RefusedError(
            "container", "bundle: expected what 'protofleet export' writes, got another file"
        )
    return RefusedError(
        "container", f"bundle: expected the plain, uncompressed archive entry of '{name}'"
    )


def _read_exactly(file: BinaryIO, name: str, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise RefusedError("truncated", f"bundle file '{name}': {len(data)} bytes of {size}")
    return data


def _check_size(name: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise RefusedError("size", f"bundle file '{name}': {size} bytes > {max_bytes} allowed")


def _compare_sizes(found: Mapping[str, int], expected: Mapping[str, int]) -> None:
    for name, size in expected.items():
        if name not in found:
            raise RefusedError("missing-file", f"bundle file '{name}': absent")
        if found[name] != size:
            raise RefusedError(
                "size", f"bundle file '{name}': expected {size} bytes, got {found[name]}"
            )
    surplus = found.keys() - expected.keys()
    if surplus:
        raise RefusedError("surplus-file", f"bundle file {min(surplus)!r}: not in the manifest")
