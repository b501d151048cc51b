"""A device's data from a recording that may be larger than memory.

Which of a class's examples train is known at the recording's end, so they wait in a file without a
name beside that which is made of them; of each its class alone stays in memory.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest
from protofleet.edge.data.examples import Examples
from protofleet.edge.data.recording import Labelled
from protofleet.errors import InputError

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledExamples:
    """Labelled examples of a recording, split as ``to_device_data`` does.

    Attributes:
        y: ``(n,)`` class indices.
        train: ``(n,)`` which of them train.
        test: ``(n,)`` which of them test.
        manifest: the bundle's.
        file: ``(n, *input_shape) float32``, as bytes; None: the numbers were not kept.
    """

    y: NDArray[np.int64]
    train: NDArray[np.bool_]
    test: NDArray[np.bool_]
    manifest: Manifest
    file: IO[bytes] | None

    def save(self, path: Path) -> None:
        """Write what ``DeviceData.save`` does, piece by piece.

        Raises:
            InputError: the disk is full.
        """
        with _told(path), path.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
            for part, rows in (("train", self.train), ("test", self.test)):
                with archive.open(f"x_{part}.npy", "w", force_zip64=True) as member:
                    self._write(member, rows)
                _add(archive, f"y_{part}", self.y[rows])
            _add(archive, "classes", np.array(self.manifest.classes))

    def _write(self, member: IO[bytes], rows: NDArray[np.bool_]) -> None:
        shape = (int(rows.sum()), *self.manifest.preprocessing.input_shape)
        descr = npy.dtype_to_descr(np.dtype(np.float32))
        npy.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": shape})
        for piece in self._pieces(rows):
            member.write(piece.tobytes())

    def _pieces(self, rows: NDArray[np.bool_]) -> Iterator[NDArray[np.float32]]:
        """Those examples, in their order."""
        if self.file is None:
            raise ValueError("the examples were not kept")
        size = int(np.prod(self.manifest.preprocessing.input_shape))
        example_bytes = size * np.dtype(np.float32).itemsize
        count = max(1, _PIECE_BYTES // example_bytes)
        for begin in range(0, len(rows), count):
            wanted = rows[begin : begin + count]
            if wanted.any():
                self.file.seek(begin * example_bytes)
                data = self.file.read(len(wanted) * example_bytes)
                yield np.frombuffer(data, np.float32).reshape(-1, size)[wanted]


@contextmanager
def spooled(
    blocks: Iterable[Examples],
    manifest: Manifest,
    out: Path | None,
    *,
    raw: bool,
    test_share: float,
) -> Iterator[SpooledExamples]:
    """The labelled examples among ``blocks``; they are to be had within the context.

    Args:
        blocks: as of ``to_device_data``, as all that is not said here.
        manifest: the bundle's.
        out: the file that is to be made of them, beside which they wait; None: they are counted
            alone.
        raw: as of ``to_device_data``.
        test_share: as of ``to_device_data``.

    Raises:
        InputError: as of ``to_device_data``; or the disk is full.
    """
    labelled = Labelled(manifest, raw=raw)
    if out is None:
        for block in blocks:
            labelled.taken(block)
        yield _split(labelled, manifest, test_share, None)
        return
    with tempfile.TemporaryFile(dir=out.parent) as file:
        for block in blocks:
            x = labelled.taken(block)
            with _told(out):
                file.write(x.tobytes())
        with _told(out):
            file.flush()
        yield _split(labelled, manifest, test_share, file)


def _split(
    labelled: Labelled, manifest: Manifest, test_share: float, file: IO[bytes] | None
) -> SpooledExamples:
    train, test = labelled.parts(test_share)
    return SpooledExamples(y=labelled.y, train=train, test=test, manifest=manifest, file=file)


def _add(archive: zipfile.ZipFile, name: str, values: NDArray[np.generic]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        npy.write_array(member, values, allow_pickle=False)


@contextmanager
def _told(out: Path) -> Iterator[None]:
    """Names the file for which there is no room."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"'{out}': cannot be written ({error.strerror}); its folder needs room for all "
            "examples twice while it is made"
        ) from error
