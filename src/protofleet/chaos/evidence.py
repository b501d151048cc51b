"""What a federation has left behind: the ledger's rows, and the devices' receipts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from protofleet.coordinator.ledger.queries import opened_ledger, states, transfers
from protofleet.edge.state.journal import read_journal

Place = tuple[str, int]
"""A device and a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts about a run that has ended.

    Attributes:
        states: SHA-256 of the server's state by committed round.
        counted: transfer of each update that a committed round counts, by device and task.
        models: SHA-256 of the state that each device keeps.
        receipts: rounds for which a device was told that its update is kept.
        admitted: how often the coordinator said that it has admitted an update.
    """

    states: Mapping[int, str] = field(default_factory=dict)
    counted: Mapping[Place, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    receipts: frozenset[Place] = frozenset()
    admitted: tuple[Place, ...] = ()

    @property
    def lost(self) -> int:
        """Updates of which a device has the receipt, and that no committed round counts."""
        return len(self.receipts - self.counted.keys())

    @property
    def counted_twice(self) -> int:
        """Updates that were admitted more than once, or stand in two places of the ledger."""
        again = len(self.admitted) - len(set(self.admitted))
        return again + len(self.counted) - len(set(self.counted.values()))

    def same_bits(self, other: Evidence) -> bool:
        """Whether every update, every state of the server and every device's model are equal."""
        return (
            dict(self.states) == dict(other.states)
            and dict(self.counted) == dict(other.counted)
            and dict(self.models) == dict(other.models)
        )


def gather(run_dir: Path, stores: Mapping[str, Path], events: Mapping[str, Path]) -> Evidence:
    """Read what processes that have ended left behind.

    Args:
        run_dir: the coordinator's.
        stores: the devices', by device.
        events: of every process, by its name, as JSON lines.
    """
    states, counted = _ledger(run_dir)
    receipts: set[Place] = set()
    models: dict[str, str] = {}
    for device, store in stores.items():
        journal = read_journal(store)
        if journal.state is not None:  # of a buffered run's few updates none need be a device's
            models[device] = journal.state.file.sha256
        if journal.delivered is not None:
            receipts.add((device, journal.delivered.round_id))
        receipts |= {
            (device, event["round_id"])
            for event in read_events(events[device])
            if event["event"] == "delivered"
        }
    admitted = tuple(
        (event["device_id"], event["round_id"])
        for name, path in events.items()
        if name not in stores
        for event in read_events(path)
        if event["event"] == "update_received"
    )
    return Evidence(
        states=states,
        counted=counted,
        models=models,
        receipts=frozenset(receipts),
        admitted=admitted,
    )


def read_events(path: Path) -> list[dict[str, Any]]:
    """A process's events; of one that was killed the last may be cut off."""
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(msgspec.json.decode(line))
        except msgspec.DecodeError:
            continue
    return found


def _ledger(run_dir: Path) -> tuple[dict[int, str], dict[Place, str]]:
    with opened_ledger(run_dir) as db:
        committed = states(db)
        counted = {
            (one.device_id, one.round_id): one.transfer_id
            for one in transfers(db)
            if one.counted_in in committed
        }
    return committed, counted
