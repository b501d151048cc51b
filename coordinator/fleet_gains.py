"""What personal models have done for the owners of a run's devices, for the gate of each device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.federation.coding import to_evaluation
from protofleet.federation.outcomes.gate import fleet_gain, gain_of, owner_gain
from protofleet.federation.records import EvaluationRecord, UpdateRecord
from protofleet.strategies.scores import Statistics
from protofleet.strategies.tasks import TASKS
from protofleet.tensors import TaskName
from protofleet.wire.messages import FleetGain

_MOST = 500
"""Devices that are remembered, those last that were heard last."""


class FleetGains:
    """Follows the gains that updates tell.

    Args:
        ledger: of the run folder, which has what bundles' models did.
        task: what the model predicts.
    """

    def __init__(self, ledger: Ledger, task: TaskName) -> None:
        self._ledger, self._task = ledger, TASKS[task]
        self._starts: dict[str, Statistics | None] = {}
        self._gains: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, records: Iterable[UpdateRecord]) -> None:
        """Take the updates of a round that is committed."""
        for record in records:
            name, told = record.client_id, to_evaluation(record.evaluation)
            if told.start is not None or name not in self._starts:
                known = told.start is not None
                self._starts[name] = told.start if known else self._start_of(name)
            gain = owner_gain(
                gain_of(self._task, self._starts[name], told.kept), record.held_out or None
            )
            if gain is not None:
                self._gains[name] = gain
                self._gains.move_to_end(name)
        while len(self._gains) > _MOST:
            name, _ = self._gains.popitem(last=False)
            self._starts.pop(name, None)

    @property
    def now(self) -> FleetGain | None:
        """Of all that are remembered; None: too few have told."""
        return fleet_gain(self._gains.values())

    def _start_of(self, name: str) -> Statistics | None:
        start = self._ledger.device_start(name)
        return to_evaluation(EvaluationRecord(own=start)).own
