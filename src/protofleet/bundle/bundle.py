"""Signed bundles: written atomically, verified whole before anything is believed.

The format, its limits and the order of checks are specified in ``docs/bundle.md``.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protofleet import signatures
from protofleet.bundle import keys
from protofleet.bundle.files import (
    MANIFEST,
    MAX_BUNDLE_BYTES,
    SIGNATURE,
    DirectorySource,
    MemorySource,
    SingleFileSource,
    Source,
    archive,
)
from protofleet.bundle.manifest import FileEntry, Manifest, TensorDecl
from protofleet.bundle.onnx_files import check_onnx
from protofleet.bundle.rules import PARAMS, STATE, check_manifest, check_tensors, parse
from protofleet.durable import sync_folder, write_synced
from protofleet.errors import InputError, RefusedError
from protofleet.tensors import Layout, Model, ModelLayer, TensorMap, blobs

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
SUFFIX = ".pfb"

_OF_CLASSES = ("prototypes", "directions")
"""Last part of a head's parameter that has a row for each class (``export.models.layers``)."""
_LENGTH = 1e-3
"""So far from 1 is no rounding."""
_SIG_BYTES = keys.PUBLIC_KEY_BYTES + keys.SIGNATURE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A verified bundle; files are read when asked for and hashed again each time.

    Attributes:
        manifest: what the signer says.
        digest: hex SHA-256 of the manifest's bytes, the bundle's identity.
        signer: hex of the raw Ed25519 public key.
        source: where its bytes lie.
    """

    manifest: Manifest
    digest: str
    signer: str
    source: Source

    @classmethod
    def open(
        cls, path: Path | str, *, trusted: Collection[bytes] = (), any_signer: bool = False
    ) -> Self:
        """Verify every byte of the bundle at ``path`` (directory or single file).

        Args:
            path: a directory or a ``.pfb`` file.
            trusted: raw public keys whose signatures count; empty: ``keys.user_trust()``.
            any_signer: accept any valid signature, which shows that the bundle is whole, not whom
                it comes from.

        Raises:
            InputError: there is nothing at ``path``, or others can change the trust store.
            RefusedError: a rule of ``docs/bundle.md`` is broken; ``rule`` names it.
        """
        path = Path(path)
        if not path.exists():
            raise InputError(f"bundle '{path}': no such file or directory")
        try:
            source = DirectorySource(path) if path.is_dir() else SingleFileSource(path)
            return cls.verified(source, trusted=trusted, any_signer=any_signer)
        except RefusedError as error:
            raise RefusedError(error.rule, f"'{path}': {error}") from error

    @classmethod
    def verified(
        cls, source: Source, *, trusted: Collection[bytes] = (), any_signer: bool = False
    ) -> Self:
        """As ``open``, for bytes that lie elsewhere."""
        data = source.read(MANIFEST, MAX_MANIFEST_BYTES)
        public = _check_signature(source, data)
        if not any_signer:
            _check_trusted(public, trusted or keys.user_trust())
        manifest = parse(data)
        check_manifest(manifest)
        source.check_sizes(
            {
                MANIFEST: len(data),
                SIGNATURE: _SIG_BYTES,
                **{name: entry.bytes for name, entry in manifest.files.items()},
            }
        )
        digest = hashlib.sha256(data).hexdigest()
        bundle = cls(manifest=manifest, digest=digest, signer=public.hex(), source=source)
        graphs = {program.file for program in manifest.programs.values()}
        for name in sorted(manifest.files.keys() - {PARAMS, STATE}):
            data = bundle.read(name)
            if name in graphs:
                check_onnx(data, name)
        bundle._tensors(PARAMS, manifest.params)
        bundle._tensors(STATE, manifest.state)
        return bundle

    def read(self, name: str) -> bytes:
        """One file's bytes, equal to what was signed even if the disk has changed since.

        Raises:
            InputError: the manifest names no such file.
            RefusedError: the bytes are no longer those that were signed.
        """
        entry = self.manifest.files.get(name)
        if entry is None:
            raise InputError(f"bundle: no file '{name}'; it has {sorted(self.manifest.files)}")
        data = self.source.read(name, entry.bytes)
        if len(data) != entry.bytes:
            raise RefusedError(
                "size", f"bundle file '{name}': expected {entry.bytes} bytes, got {len(data)}"
            )
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise RefusedError("sha256", f"bundle file '{name}': not the bytes that were signed")
        return data

    def model(self) -> Model:
        """Fresh, writable copies of the initial tensors, and what their names mean."""
        manifest, program = self.manifest, self.manifest.programs.get("features")
        shapes = {port.key: port.shape for port in program.outputs} if program else {}
        width = shapes.get("features", (0,))[-1]
        params = self._packed(PARAMS, manifest.params)
        return Model(
            params=params,
            buffers=self._packed(STATE, manifest.state),
            input_shape=manifest.preprocessing.input_shape,
            num_classes=len(manifest.classes),
            task=manifest.task,
            head=manifest.head,
            trained_prototypes=any(_has_moved(name, params[name]) for name in manifest.head),
            features=width if isinstance(width, int) else 0,
            layers=tuple(
                ModelLayer(
                    name=layer.name, before=layer.before, hidden=f"layers.{layer.name}" in shapes
                )
                for layer in manifest.layers
            ),
            no_layers=manifest.no_layers,
        )

    def copy_to(self, path: Path) -> None:
        """Write it as a single file, with one of its files in memory at a time.

        ``path``, whatever its name, is durable when this returns, its name after ``sync_folder``.

        Raises:
            RefusedError: its bytes are no longer those that were signed.
        """
        write_synced(path, archive(_Contents(self)))

    def _tensors(self, file: str, declared: Iterable[TensorDecl]) -> dict[str, NDArray[Any]]:
        data = self.read(file) if file in self.manifest.files else blobs.encode({})
        tensors, _ = blobs.decode(data, max_bytes=MAX_BUNDLE_BYTES)
        check_tensors(tensors, declared, file)
        return tensors

    def _packed(self, file: str, declared: Iterable[TensorDecl]) -> TensorMap:
        layout = Layout.of({decl.name: decl.shape for decl in declared})
        return TensorMap.pack(self._tensors(file, declared), layout)


def _has_moved(name: str, value: NDArray[Any]) -> bool:
    """Whether a training has moved prototypes, which are drawn with length 1."""
    if name.rpartition(".")[2] not in _OF_CLASSES or value.ndim != 2:
        return False
    return bool((np.abs(np.linalg.norm(value, axis=1) - 1) > _LENGTH).any())


def stored_name(path: Path) -> str:
    """The name in the manifest of a single-file bundle that was verified before; for listings.

    Raises:
        RefusedError: it is no bundle.
    """
    return parse(SingleFileSource(path).read(MANIFEST, MAX_MANIFEST_BYTES)).name


class _Contents(Mapping[str, bytes]):
    """All files of a bundle by name, each read when it is asked for."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._names = (MANIFEST, SIGNATURE, *bundle.manifest.files)

    def __getitem__(self, name: str) -> bytes:
        if name == SIGNATURE:
            return self._bundle.source.read(name, _SIG_BYTES)
        if name != MANIFEST:
            return self._bundle.read(name)
        data = self._bundle.source.read(name, MAX_MANIFEST_BYTES)
        if hashlib.sha256(data).hexdigest() != self._bundle.digest:
            raise RefusedError("sha256", f"bundle file '{name}': not the bytes that were signed")
        return data

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def write_bundle(
    path: Path | str, manifest: Manifest, files: Mapping[str, bytes], key: Ed25519PrivateKey
) -> str:
    """Sign and write a bundle: whole or not at all, equal bytes for equal input.

    Args:
        path: ``*.pfb`` gives the single file, anything else a directory; an older bundle there
            is replaced.
        manifest: as it will be signed, except ``files``, which is computed here.
        files: content by path: ``params.safetensors``, ``state.safetensors`` if the manifest
            declares state, and the programs.
        key: the signer.

    Returns:
        The bundle's digest.

    Raises:
        RefusedError: ``Bundle.open`` would refuse the result; nothing was written.
        InputError: ``path`` is a directory that is no bundle.
    """
    path = Path(path)
    entries = {
        name: FileEntry(bytes=len(files[name]), sha256=hashlib.sha256(files[name]).hexdigest())
        for name in sorted(files)
    }
    text = _manifest_bytes(msgspec.structs.replace(manifest, files=entries))
    signature = key.public_key().public_bytes_raw() + key.sign(text)
    content = {MANIFEST: text, SIGNATURE: signature, **files}
    digest = Bundle.verified(MemorySource(content), any_signer=True).digest
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == SUFFIX:
        _write_single(path, content)
    else:
        _write_directory(path, content)
    return digest


def _manifest_bytes(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=1)


def _check_signature(source: Source, data: bytes) -> bytes:
    """The raw public key of the signer."""
    try:
        signature = source.read(SIGNATURE, _SIG_BYTES)
    except RefusedError as error:
        if error.rule == "missing-file":
            raise RefusedError("unsigned", f"bundle: no '{SIGNATURE}'") from error
        raise
    public, signed = signature[: keys.PUBLIC_KEY_BYTES], signature[keys.PUBLIC_KEY_BYTES :]
    if not signatures.verify(public, signed, data):
        raise RefusedError("signature", f"bundle: '{SIGNATURE}' does not fit '{MANIFEST}'")
    return public


def _check_trusted(public: bytes, trusted: Collection[bytes]) -> None:
    if public not in trusted:
        raise RefusedError(
            "untrusted",
            f"bundle: signed by {signatures.fingerprint(public)}, which is not trusted; "
            "to trust a key: protofleet bundle trust PUBLIC_KEY_FILE",
        )


def _write_single(path: Path, content: Mapping[str, bytes]) -> None:
    temporary = _beside(path)
    try:
        write_synced(temporary, archive(content), shared=True)
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _write_directory(path: Path, content: Mapping[str, bytes]) -> None:
    if path.exists() and not (path / MANIFEST).is_file():
        raise InputError(f"'{path}': exists and is no bundle; choose another path or remove it")
    temporary, old = _beside(path), _beside(path)
    try:
        for name, data in content.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            write_synced(temporary / name, [data], shared=True)
        for folder in {(temporary / name).parent for name in content}:
            sync_folder(folder)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")
