"""Payload files of the open round: encoded once per distinct content, removed with the round."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from protofleet.durable import replace_whole
from protofleet.strategies.types import Payload
from protofleet.wire import blobs
from protofleet.wire.tensors import Tensors


class Outbox:
    """Keeps payloads on disk, so that memory does not grow with the fleet.

    The files need no fsync: a restarted coordinator makes the same bytes from the same state.

    Args:
        folder: emptied at the start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tensors: Tensors = {}
        self._path: Path | None = None
        self.clear()

    def put(self, payload: Payload) -> Path:
        """The file with the payload's blob."""
        if self._path is None or not _same(payload.tensors, self._tensors):
            data = blobs.encode(payload.tensors)
            self._path = self._folder / f"{hashlib.sha256(data).hexdigest()}.safetensors"
            if not self._path.exists():
                replace_whole(self._path, data)
            self._tensors = payload.tensors
        return self._path

    def clear(self) -> None:
        """Remove all files."""
        self._tensors, self._path = {}, None
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)


def _same(left: Tensors, right: Tensors) -> bool:
    """Whether both hold the very same arrays, as most strategies give to all clients."""
    return left.keys() == right.keys() and all(left[name] is right[name] for name in left)
