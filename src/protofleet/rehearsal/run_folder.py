"""A rehearsal kept as a coordinator keeps a run, so that report and dashboard show it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Self

import msgspec

from protofleet.coordinator import events
from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.reading import RunAbout
from protofleet.coordinator.ledger.rows import Accepted, ArrivedUpdate
from protofleet.coordinator.process.event_log import EventLog
from protofleet.coordinator.results import Results
from protofleet.errors import InputError
from protofleet.federation.coding import DecodedUpdate
from protofleet.federation.outcomes.calibration import Calibration, CalibrationProgress
from protofleet.federation.plan import Plan
from protofleet.federation.records import Costs
from protofleet.federation.schedules.early_stopping import EarlyEnd
from protofleet.firmware_sim.world.simulated_device import SimulatedDevice
from protofleet.rehearsal.training import AggregatedRound
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
        self._deadline_s = plan.config.round.deadline_s
        self._now_s = min(life.now for life in lives.values())
        self._log = EventLog(folder, lambda _: None, lambda: self._midnight_s + self._now_s)
        started = events.Started(
            federation=identity["federation"],
            strategy=self._about.strategy,
            rounds=plan.config.rounds,
            round_id=1,
            seed=self._about.seed,
            resumed=False,
            bundle=plan.bundle.digest,
            sequence=plan.bundle.manifest.sequence,
            run_dir=str(folder),
        )
        self._log(started)
        if calibration is not None:
            ledger.run.note_calibration(CalibrationProgress(chosen=calibration))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ledger.close()

    def keep(self, one: AggregatedRound) -> None:
        """A round; it is durable when this returns."""
        ledger, done = self._ledger, one.done
        opened_s = self._midnight_s + one.over.opened_s
        ledger.open_round(done.round_id, set(one.over.invited), opened_s, final=done.final)
        if one.over.extended:
            ledger.extend_round(done.round_id, one.over.extended, ())
        self._note_usage(done.round_id)
        ledger.accept(*(self._arrived(update, done.round_id) for update in one.admitted))
        ledger.close_round(done.round_id)
        ledger.commit_round(
            one.state,
            done.scores,
            opened_s + one.over.seconds,
            update_norms=done.update_norms,
            figures=done.figures,
            keep_states=1,
            privacy=done.privacy,
        )
        self._tell(one)

    def finish(self, early_end: EarlyEnd | None) -> None:
        """Write ``result.json`` and ``devices.json``; nothing where no round was kept."""
        if early_end is not None:
            self._ledger.run.note_early_end(early_end)
        if self._ledger.device_ids():
            Results(self._ledger, self._about).write()

    def _tell(self, one: AggregatedRound) -> None:
        """The round's events, each at its time."""
        done, over, cohort = one.done, one.over, tuple(sorted(set(one.over.invited)))
        self._now_s = over.opened_s
        opened = events.RoundOpened(
            round_id=done.round_id,
            final=done.final,
            cohort=cohort,
            delivered=0,
            resumed=False,
            deadline_s=self._deadline_s,
            size=len(cohort),
        )
        self._log(opened)
        records = {update.record.client_id: update.record for update in one.admitted}
        for number, name in enumerate(sorted(records, key=over.delivered_s.__getitem__), start=1):
            self._now_s = over.delivered_s[name]
            received = events.UpdateReceived(
                round_id=done.round_id,
                device_id=name,
                bytes=one.update_bytes[name],
                num_examples=records[name].num_examples,
                loss=records[name].loss,
                delivered=number,
                cohort=len(cohort),
                counted_in=done.round_id,
            )
            self._log(received)
        self._now_s = over.opened_s + over.seconds
        self._log(events.RoundClosed(**msgspec.structs.asdict(done)))

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
