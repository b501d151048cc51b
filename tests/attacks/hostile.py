"""Builds bundles that break exactly one rule, signed by a key that the reader trusts."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle

from protofleet.bundle import Bundle
from protofleet.bundle.files import MANIFEST, SIGNATURE, archive
from protofleet.errors import RefusedError
from protofleet.tensors.blobs import decode, encode

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
PARAMS, INFER = "params.safetensors", "programs/infer.onnx"


class Forge:
    """A good bundle in memory, to be changed and written without any check.

    Attributes:
        folder: where ``directory`` and ``single`` write.
        files: content by path, without manifest and signature.
        manifest: the manifest as plain JSON values.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tiny_bundle(folder / "good", KEY)
        self.manifest: dict[str, Any] = json.loads((folder / "good" / MANIFEST).read_bytes())
        self.files = {
            name: (folder / "good" / name).read_bytes() for name in self.manifest["files"]
        }

    def declare(self) -> Forge:
        """Make the manifest's hashes and sizes fit ``files`` again."""
        self.manifest["files"] = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in self.files.items()
        }
        return self

    def change_params(self, change: Callable[[dict[str, np.ndarray]], None]) -> Forge:
        """Alter the parameters, with the manifest's hash fitting them."""
        tensors = {n: v.copy() for n, v in decode(self.files[PARAMS], max_bytes=1 << 20)[0].items()}
        change(tensors)
        self.files[PARAMS] = encode(tensors)
        return self.declare()

    def put_params(self, blob: bytes) -> Forge:
        """Replace the parameters' bytes, with the manifest's hash fitting them."""
        self.files[PARAMS] = blob
        return self.declare()

    def content(self, text: bytes | None = None) -> dict[str, bytes]:
        """Signed files by path; ``text`` replaces the manifest's bytes."""
        text = json.dumps(self.manifest).encode() if text is None else text
        return {MANIFEST: text, SIGNATURE: PUBLIC + KEY.sign(text), **self.files}

    def directory(self, content: dict[str, bytes] | None = None) -> Path:
        """Write the directory form."""
        root = self.folder / "hostile"
        for name, data in (content or self.content()).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        return root

    def single(self, content: dict[str, bytes] | None = None) -> Path:
        """Write the single-file form."""
        path = self.folder / "hostile.pfb"
        path.write_bytes(b"".join(archive(content or self.content())))
        return path

    def both(self, content: dict[str, bytes] | None = None) -> list[Path]:
        """Write both forms."""
        return [self.directory(content), self.single(content)]


@contextlib.contextmanager
def leaves_nothing(folder: Path) -> Iterator[None]:
    """Fails if the block adds, removes or changes a file in or above ``folder``."""
    before = _snapshot(folder)
    yield
    assert _snapshot(folder) == before


def assert_refused(rule: str, *paths: Path, match: str | None = None) -> None:
    """Each bundle is refused by ``rule``, and nothing was written."""
    for path in paths:
        with leaves_nothing(path.parent), pytest.raises(RefusedError, match=match) as caught:
            Bundle.open(path, trusted={PUBLIC})
        assert caught.value.rule == rule, f"{path.name}: {caught.value}"


def blob(header: dict[str, Any] | bytes, body: bytes = b"") -> bytes:
    """Safetensors bytes from a header as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    """One tensor's header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    paths = [*folder.rglob("*"), *folder.parent.iterdir()]
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in paths}
