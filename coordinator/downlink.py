"""What each device gets, has and refers to: payloads out, and updates back to raw blobs."""

from __future__ import annotations

from pathlib import Path

from protofleet.coordinator.ledger import Accepted, Ledger
from protofleet.coordinator.outbox import Outbox, Posted
from protofleet.coordinator.plan import Plan
from protofleet.durable import replace_whole
from protofleet.errors import RefusedError
from protofleet.strategies.types import ServerState
from protofleet.strategies.updates import references_of
from protofleet.wire import codecs
from protofleet.wire.codecs import RAW, Codec
from protofleet.wire.transfer import Received


class Downlink:
    """Payloads of the open round, and the references that devices share with this coordinator.

    A device is taken to have the payload of its last accepted update. Everything here follows from
    the ledger and the server's state, so a restarted coordinator sends the same bytes.

    Args:
        plan: strategy, bundle and codecs.
        ledger: of the run; what devices have stands there.
    """

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._plan, self._ledger = plan, ledger
        self._codec = plan.config.codec.payloads
        self._outbox = Outbox(ledger.folder / "payloads", ledger.folder / "references", plan.model)
        self._posted: dict[str, Posted] = {}
        self.clear()

    def post(self, server: ServerState, client_id: str) -> Posted:
        """The payload of the open round for one client."""
        if client_id not in self._posted:
            raw = self._codec.kind == RAW or self._ledger.shared.is_plain(client_id)
            base = "" if raw else self._ledger.shared.base_of(client_id)
            payload = self._plan.strategy.downlink(server, client_id)
            codec = Codec() if raw else self._codec
            self._posted[client_id] = self._outbox.put(payload.tensors, codec, base)
        return self._posted[client_id]

    def falls_back(self, client_id: str, rule: str) -> bool:
        """Whether a payload that a device refused by ``rule`` can be sent in another way.

        Without the base that it was taken to have, it gets one that refers to the bundle; with
        a codec that it does not know or could not read, raw ones.
        """
        if rule == "base" and self._ledger.shared.base_of(client_id):
            self._ledger.shared.forget(client_id)
        elif (
            rule == "codec"
            and self._codec.kind != RAW
            and not self._ledger.shared.is_plain(client_id)
        ):
            self._ledger.shared.make_plain(client_id)
        else:
            return False
        self._posted.pop(client_id, None)
        return True

    def raw_update(self, event: Received, server: ServerState) -> bytes:
        """The raw blob of an update that has arrived.

        Raises:
            RefusedError: it is not what its codec writes, or was made from another payload than
                its device got.
        """
        blob, offer = event.path.read_bytes(), event.offer
        if offer.codec == RAW:
            return blob
        reference = self.post(server, event.device_id).reference
        if offer.base != reference:
            raise RefusedError(
                "base",
                f"update of '{event.device_id}': expected one that refers to payload {reference}, "
                f"got {offer.base or 'none'}",
            )
        references = references_of(self._plan.model, self._outbox.tensors(reference))
        limit = self._plan.config.limits.update_bytes
        return codecs.to_raw(blob, references, offer.coding, max_bytes=limit)

    def accept(self, event: Received, blob: bytes, accepted: Accepted) -> None:
        """Spool an update whose raw ``blob`` was admitted; its device now has its payload."""
        path: Path = event.path
        if event.offer.codec != RAW:
            path = event.path.with_suffix(".raw")
            replace_whole(path, blob)
        posted = self._posted.get(event.device_id)
        coded = posted is not None and posted.coding.codec != RAW
        self._ledger.accept(path, accepted, base=posted.reference if posted and coded else "")

    def clear(self) -> None:
        """The round is over, or has not begun: keep what devices have."""
        self._posted.clear()
        self._outbox.clear()
        self._outbox.forget(set(self._ledger.shared.bases().values()))
