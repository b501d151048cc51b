"""Payloads of tasks that are not over, on disk, and what devices have that they refer to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.durable import replace_whole, sync_folder, write_whole
from protofleet.errors import ProtofleetError, RefusedError
from protofleet.federation.coding import CodedPayload, PayloadEncoder, update_baseline
from protofleet.federation.plan import Plan
from protofleet.private_files import PRIVATE_FOLDER
from protofleet.strategies.types import ServerState
from protofleet.tensors import Tensors, blobs
from protofleet.wire.codecs import Codec, Coding
from protofleet.wire.transfers.transfer import note_digest

_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadFile:
    """A task's payload on disk.

    Attributes:
        round_id: of its task.
        path: file of its blob.
        coding: for its offer.
        reference: how later payloads, and the update made from it, name it.
    """

    round_id: int = 0
    path: Path
    coding: Coding
    reference: str


class Payloads:
    """Payloads of tasks, and the references that devices share with this coordinator.

    A device is taken to have the payload of its last accepted update. Everything here follows from
    the ledger and the server's state, so a restarted coordinator sends the same bytes; all of it
    stays on disk, so that memory does not grow with the fleet.

    Args:
        plan: strategy, bundle and codecs.
        ledger: of the run; what devices have stands there.
        state_of: the server's state of which a round's tasks are made.
    """

    def __init__(self, plan: Plan, ledger: Ledger, state_of: Callable[[int], ServerState]) -> None:
        self._plan, self._ledger, self._state_of = plan, ledger, state_of
        self._codec = plan.config.codec.payloads
        self._folder = ledger.folder / "payloads"
        self._references = ledger.folder / "references"
        self._encoder = PayloadEncoder(plan.model, self._tensors, self._write)
        self._sent: dict[str, PayloadFile] = {}
        self._latest = PayloadFile(path=self._folder, coding=Coding(), reference="")
        self._references.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        self.clear()

    def payload_for(self, round_id: int, device_id: str) -> PayloadFile:
        """The payload of a device's task, the only one that it has at a time.

        Raises:
            ProtofleetError: what it refers to is damaged.
        """
        if device_id not in self._sent or self._sent[device_id].round_id != round_id:
            raw = self._codec.is_raw or self._ledger.devices.takes_raw_only(device_id)
            payload = self._plan.strategy.downlink(self._state_of(round_id), device_id)
            stored = self._encoder.encode(
                payload.tensors,
                Codec() if raw else self._codec,
                "" if raw else self._ledger.devices.reference_of(device_id),
            )
            made = replace(stored, round_id=round_id)
            # One record where all get the same.
            self._sent[device_id] = self._latest = self._latest if made == self._latest else made
        return self._sent[device_id]

    def send_otherwise(self, device_id: str, rule: str) -> bool:
        """Whether there is another form of a payload that a device refused by ``rule``; it is next.

        Without the reference that it was taken to have, it gets one that refers to the bundle; with
        a codec that it does not know or could not read, raw ones.
        """
        if rule == "base" and self._ledger.devices.reference_of(device_id):
            self._ledger.devices.forget_reference(device_id)
        elif (
            rule == "codec"
            and not self._codec.is_raw
            and not self._ledger.devices.takes_raw_only(device_id)
        ):
            self._ledger.devices.send_raw_only(device_id)
        else:
            return False
        self._sent.pop(device_id, None)
        return True

    def update_baseline(self, round_id: int, device_id: str, coding: Coding) -> Tensors:
        """What a device's update is compared with: what it got for its task of the round.

        Raises:
            RefusedError: it was made from another payload than the device got.
        """
        if coding.is_raw:
            payload = self._plan.strategy.downlink(self._state_of(round_id), device_id)
            return update_baseline(self._plan.model, payload.tensors)
        reference = self.payload_for(round_id, device_id).reference
        if coding.reference != reference:
            raise RefusedError(
                "base",
                f"update of '{device_id}': expected one that refers to payload {reference}, "
                f"got {coding.reference or 'none'}",
            )
        return update_baseline(self._plan.model, self._tensors(reference))

    def held_reference(self, device_id: str) -> str:
        """What a device whose update is accepted now has; empty if no payload will refer to it."""
        sent = self._sent.get(device_id)
        return "" if sent is None or sent.coding.is_raw else sent.reference

    def clear(self, kept: Collection[str] = ()) -> None:
        """A round is over, or none has begun: keep what devices have, and nothing else.

        Args:
            kept: devices whose task is not over.
        """
        self._sent = {name: self._sent[name] for name in kept if name in self._sent}
        self._encoder.clear()
        self._folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        files = {one.path.name for one in self._sent.values()}
        references = set(self._ledger.devices.references().values())
        references |= {one.reference for one in self._sent.values()}
        for path in self._folder.iterdir():
            if path.name not in files:
                path.unlink()
        for path in self._references.iterdir():
            if path.name.removesuffix(_SUFFIX) not in references:
                path.unlink()

    def _write(self, payload: CodedPayload) -> PayloadFile:
        """Payloads need no fsync: a restarted coordinator makes the same bytes again.

        References do: a device may have them for many rounds.
        """
        digest = hashlib.sha256(payload.blob).hexdigest()
        path = self._folder / f"{digest}{_SUFFIX}"
        if not path.exists():
            replace_whole(path, payload.blob)
            note_digest(path, digest)
        kept = self._references / f"{payload.reference}{_SUFFIX}"
        if payload.held and not kept.exists():
            write_whole(kept, payload.raw)
            sync_folder(self._references)
        return PayloadFile(path=path, coding=payload.coding, reference=payload.reference)

    def _tensors(self, reference: str) -> Tensors:
        """The tensors of a payload that devices have.

        Raises:
            ProtofleetError: it is not what was written.
        """
        name = f"{reference}{_SUFFIX}"
        path = self._references / name
        if not path.exists():
            path = self._folder / name  # a raw payload is its own reference
        data = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(data).hexdigest() != reference:
            raise ProtofleetError(f"{path}: damaged; restore it from a backup")
        found, _ = blobs.decode(data, max_bytes=len(data))
        return found
