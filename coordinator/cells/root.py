"""The root of a federation with cells: a coordinator whose members are the cells.

It opens rounds, keeps a ledger and can be killed as any other; what differs is what travels. A
member is sent the server's whole state with an order, and answers with a report
(``federation.cells``), from which the root's ledger knows the devices.
"""

from __future__ import annotations

from dataclasses import replace

from protofleet.coordinator.devices.registry import Device, Registry
from protofleet.coordinator.ledger.rows import Accepted, ArrivedUpdate
from protofleet.coordinator.payloads import PayloadFile, Payloads
from protofleet.coordinator.rounds import Rounds
from protofleet.coordinator.service import Service
from protofleet.durable import replace_whole
from protofleet.errors import RefusedError
from protofleet.federation.cells import (
    CellOrder,
    cell_federation,
    cell_name,
    cell_of,
    encode_order,
    read_header,
)
from protofleet.federation.records import UpdateRecord
from protofleet.federation.server import Server
from protofleet.tensors import Tensors
from protofleet.wire.codecs import Coding
from protofleet.wire.messages import Presence
from protofleet.wire.transfers.transfer import Received


class _Orders(Payloads):
    """What cells are sent: the server's whole state, the same for all of them."""

    def payload_for(self, round_id: int, device_id: str) -> PayloadFile:
        """The order of a round."""
        if device_id not in self._sent or self._sent[device_id].round_id != round_id:
            order = CellOrder(round_id=round_id, update_norms=self._ledger.last_norms())
            path = self._folder / f"{order.round_id:06d}.order"
            if not path.exists():
                replace_whole(path, encode_order(self._state_of(round_id), order))
            self._sent[device_id] = PayloadFile(
                round_id=round_id, path=path, coding=Coding(), reference=""
            )
        return self._sent[device_id]

    def send_otherwise(self, device_id: str, rule: str) -> bool:  # noqa: ARG002 - as of ``Payloads``
        """There is one form."""
        return False

    def update_baseline(self, round_id: int, device_id: str, coding: Coding) -> Tensors:  # noqa: ARG002 - as of ``Payloads``
        """A report is compared with nothing."""
        return {}


class RootRounds(Rounds):
    """The root's rounds: orders go out."""

    def _make_payloads(self) -> Payloads:
        return _Orders(self.server.plan, self._ledger, self._state_of)


class _Cells(Registry):
    """The cells that are there; nobody else takes part."""

    def of_federation(self, federation: str, count: int) -> _Cells:
        """Of so many cells."""
        self._federation, self._count = federation, count
        return self

    def presence(self, device_id: str, presence: Presence, now: float) -> Device:
        """Take a cell's; RefusedError, rule ``cell``: it is a device, whose place is in a cell."""
        if device_id not in {cell_name(k + 1) for k in range(self._count)}:
            place = cell_federation(self._federation, cell_of(device_id, self._count))
            raise RefusedError(
                "cell",
                f"device '{device_id}': federation '{self._federation}' has {self._count} cells, "
                f"and devices join one of them: --federation {place}, for instance",
            )
        return super().presence(device_id, presence, now)


class RootService(Service):
    """One run of the root."""

    def _admit(self, event: Received) -> ArrivedUpdate:
        """Check a cell's report.

        Raises:
            RefusedError: it is damaged, or of another cell or round.
        """
        header, offer = read_header(event.path), event.offer
        name = cell_name(header.cell)
        if (name, header.round_id) != (event.device_id, offer.round_id):
            raise RefusedError(
                "identity",
                f"report of '{event.device_id}' for round {offer.round_id}: it says '{name}' and "
                f"round {header.round_id}",
            )
        record = UpdateRecord(
            client_id=name,
            round_id=header.round_id,
            num_examples=sum(one.record.num_examples for one in header.updates),
        )
        accepted = Accepted(device_id=name, transfer_id=offer.transfer_id, record=record)
        return ArrivedUpdate(event.path, accepted, offer)


def cell_registry(server: Server) -> Registry:
    """The registry of a root, whose members are cells."""
    plan, cells = server.plan, server.plan.config.cells
    registry = _Cells(
        bundle=plan.bundle.digest,
        layout_hash=plan.bundle.manifest.layout_hash,
        strategy=plan.strategy.description.name,
        silent_after_s=plan.config.liveness.silent_after_s,
    )
    return registry.of_federation(plan.config.federation, 0 if cells is None else cells.count)


def root_server(server: Server) -> Server:
    """The root's half: cells register no classes."""
    return replace(server, expected=replace(server.expected, class_counts=False))
