"""A rehearsal kept as a coordinator keeps a run, so that report and dashboard show it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Self

import msgspec

from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.reading import RunAbout
from protofleet.coordinator.ledger.rows import Accepted, ArrivedUpdate
from protofleet.coordinator.results import Results
from protofleet.errors import InputError
from protofleet.federation.coding import DecodedUpdate
from protofleet.federation.outcomes.calibration import Calibration, CalibrationProgress
from protofleet.federation.plan import Plan
from protofleet.federation.records import Costs, RoundRecord
from protofleet.federation.schedules.early_stopping import EarlyEnd
from protofleet.firmware_sim.world.simulated_device import SimulatedDevice
from protofleet.rehearsal.training import ClosedRound
from protofleet.strategies.types import ServerState
from protofleet.wire.mqtt.usage import DeviceUsage

_NO_LIMIT = 2**40
"""What this process has made needs no bound."""
_REHEARSED = " (rehearsed)"
"""Behind the federation's name: no coordinator goes on with what no device has done."""


def refuse_taken(folder: Path) -> None:
    """See to it that a rehearsal can be kept there.

    Raises:
        InputError: the folder holds a run.
    """
    if (folder / LEDGER).exists():
        raise InputError(f"run folder {folder}: it holds a run already; name another one")


class RunFolder:
    """The ledger of a rehearsal; virtual time starts at the last midnight here.

    Args:
        folder: made if absent; holds no run (``refuse_taken``).
        plan: of the federation.
        lives: the devices by name, as they live on.
        costs: of a round for each device, as they are assumed.
        calibration: how the learning rate was found; None: it was not.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        lives: Mapping[str, SimulatedDevice],
        costs: Mapping[str, Costs],
        calibration: Calibration | None,
    ) -> None:
        identity = plan.identity | {"federation": plan.config.federation + _REHEARSED}
        self._lives, self._costs = lives, costs
        self._midnight_s = (
            datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        ).timestamp()
        self._ledger = ledger = Ledger(folder, identity)
        self._about = RunAbout(
            strategy=plan.strategy.description.name,
            seed=plan.config.seed,
            task=plan.bundle.manifest.task,
            outputs=plan.bundle.manifest.outputs,
            codec=plan.config.codec.text,
            switched_off=plan.sends.switched_off,
        )
        ledger.run.note_about(self._about)
        if calibration is not None:
            ledger.run.note_calibration(CalibrationProgress(chosen=calibration))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ledger.close()

    def keep(
        self,
        over: ClosedRound,
        done: RoundRecord,
        admitted: Sequence[DecodedUpdate],
        state: ServerState,
    ) -> None:
        """As ``KeepsRounds.keep``; the round is durable when this returns."""
        ledger, round_id = self._ledger, done.round_id
        opened_s = self._midnight_s + over.opened_s
        ledger.open_round(round_id, set(over.invited), opened_s, final=done.final)
        if over.extended:
            ledger.extend_round(round_id, over.extended, ())
        self._note_usage(round_id)
        ledger.accept(*(self._arrived(one, round_id) for one in admitted))
        ledger.close_round(round_id)
        ledger.commit_round(
            state,
            done.scores,
            opened_s + over.seconds,
            update_norms=done.update_norms,
            figures=done.figures,
            keep_states=1,
            privacy=done.privacy,
        )

    def finish(self, early_end: EarlyEnd | None) -> None:
        """Write ``result.json`` and ``devices.json``; nothing where no round was kept."""
        if early_end is not None:
            self._ledger.run.note_early_end(early_end)
        if self._ledger.device_ids():
            Results(self._ledger, self._about).write()

    def _note_usage(self, round_id: int) -> None:
        for name, life in self._lives.items():
            used = life.used
            if used.up_bytes or used.down_bytes:
                usage = DeviceUsage(
                    bytes_up=round(used.up_bytes),
                    bytes_down=round(used.down_bytes),
                    peak_rss_bytes=self._costs[name].peak_rss_bytes,
                )
                self._ledger.usage.note(name, round_id, usage)

    def _arrived(self, one: DecodedUpdate, counted_in: int) -> ArrivedUpdate:
        name = one.record.client_id
        raw = one.to_raw(max_bytes=_NO_LIMIT)
        source = self._ledger.folder / f"{name}.arriving"
        source.write_bytes(raw)
        accepted = Accepted(
            device_id=name,
            transfer_id=hashlib.sha256(raw).hexdigest()[:32],
            record=msgspec.structs.replace(one.record, costs=self._costs[name]),
            norms=one.norms,
        )
        return ArrivedUpdate(source, accepted, counted_in=counted_in)
