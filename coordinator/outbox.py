"""Payloads on their way: encoded for what a device has, once per distinct content and base."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from protofleet.durable import replace_whole, sync_folder, write_whole
from protofleet.errors import ProtofleetError
from protofleet.federation.coding import initial_tensors
from protofleet.tensors import Model, Tensors, blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import RAW, Codec, Coding

_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A payload as it travels.

    Attributes:
        blob: its bytes.
        coding: for its manifest.
        decoded: the raw blob that its receiver makes of it.
    """

    blob: bytes
    coding: Coding
    decoded: bytes

    @property
    def reference(self) -> str:
        """SHA-256 of ``decoded``: how later payloads, and the update made from it, name it."""
        return hashlib.sha256(self.decoded).hexdigest()


def encode_payload(payload: Tensors, codec: Codec, base: str, references: Tensors) -> Sent:
    """A payload for a device that has ``references``.

    Nothing needs to be remembered of what coding loses: the next payload refers to what this one
    decodes to.

    Args:
        payload: from the strategy.
        codec: how.
        base: name of the references; empty for the bundle's initial values.
        references: by tensor.
    """
    encoded = codecs.encode(payload, references, codec, base=base)
    coding = encoded.coding(base)
    decoded = codecs.to_raw(encoded.blob, references, coding, max_bytes=2**62)
    return Sent(blob=encoded.blob, coding=coding, decoded=decoded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A payload of the open round on disk.

    Attributes:
        path: file of its blob.
        coding: for its manifest.
        reference: SHA-256 of the raw blob that its receiver makes of it.
    """

    path: Path
    coding: Coding
    reference: str


class Outbox:
    """Keeps payloads and what devices have of them on disk: memory does not grow with the fleet.

    Payloads need no fsync: a restarted coordinator makes the same bytes from the same state and
    the same references. References do: a device may have them for many rounds.

    Args:
        folder: of the payloads; emptied at the start.
        references: folder of decoded payloads.
        model: the bundle's initial values, which every device has.
    """

    def __init__(self, folder: Path, references: Path, model: Model) -> None:
        self._folder, self._references = folder, references
        self._initial = initial_tensors(model)
        self._posted: dict[tuple[Codec, str], tuple[Tensors, Posted]] = {}
        references.mkdir(parents=True, exist_ok=True)
        self.clear()

    def put(self, payload: Tensors, codec: Codec, base: str) -> Posted:
        """The payload for a device that has ``base``.

        Raises:
            ProtofleetError: the base is damaged.
        """
        known, posted = self._posted.get((codec, base), ({}, None))
        if posted is None or not _same(payload, known):
            references = {**self._initial, **self.tensors(base)}
            sent = encode_payload(payload, codec, base, references)
            path = self._folder / f"{hashlib.sha256(sent.blob).hexdigest()}{_SUFFIX}"
            if not path.exists():
                replace_whole(path, sent.blob)
            posted = Posted(path=path, coding=sent.coding, reference=sent.reference)
            if codec.kind != RAW:
                self._keep(posted.reference, sent.decoded)
            self._posted[codec, base] = payload, posted
        return posted

    def tensors(self, reference: str) -> Tensors:
        """The tensors of a payload that devices have; none of the empty name.

        Raises:
            ProtofleetError: it is not what was written.
        """
        if not reference:
            return {}
        name = f"{reference}{_SUFFIX}"
        path = self._references / name
        if not path.exists():
            path = self._folder / name  # a raw payload is its own reference
        data = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(data).hexdigest() != reference:
            raise ProtofleetError(f"{path}: damaged; restore it from a backup")
        found, _ = blobs.decode(data, max_bytes=len(data))
        return found

    def clear(self) -> None:
        """Remove all payloads."""
        self._posted.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def forget(self, kept: set[str]) -> None:
        """Remove all references but these."""
        for path in self._references.iterdir():
            if path.name.removesuffix(_SUFFIX) not in kept:
                path.unlink()

    def _keep(self, reference: str, decoded: bytes) -> None:
        path = self._references / f"{reference}{_SUFFIX}"
        if not path.exists():
            write_whole(path, decoded)
            sync_folder(self._references)


def _same(left: Tensors, right: Tensors) -> bool:
    """Whether both hold the very same arrays, as most strategies give to all clients."""
    return left.keys() == right.keys() and all(left[name] is right[name] for name in left)
