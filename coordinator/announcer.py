"""What a coordinator says of itself: its announcement, and in whose name its tasks are."""

from __future__ import annotations

import secrets
from typing import Literal

from msgspec import UNSET

from protofleet.coordinator.parts import Devices, Run
from protofleet.coordinator.rollout import Rollouts
from protofleet.federation.plan import Plan
from protofleet.federation.schedules.schedule import RoundPhase, RoundState
from protofleet.wire.messages import Announcement, CalibrationOrder, Task

_PHASES: dict[RoundPhase, Literal["waiting", "training", "finished"]] = {
    RoundPhase.WAITING: "waiting",
    RoundPhase.OPEN: "training",
    RoundPhase.CLOSING: "training",
    RoundPhase.FINISHED: "finished",
}


class Announcer:
    """Announces one process of a coordinator, as long as no other may have its lease.

    Args:
        run: with the devices' endpoint.
        devices: that answer a roll-call, and what they may not have heard.
        rollouts: other bundles than the run's, and statements about them.

    Attributes:
        boot_id: of this process.
    """

    def __init__(self, run: Run, devices: Devices, rollouts: Rollouts) -> None:
        self._endpoint, self._run_id = run.endpoint, run.ledger.run.run_id
        self.boot_id = secrets.token_hex(8) if run.lease is None else run.lease.boot_id
        self._roll_call, self._receipts = devices.roll_call, devices.receipts
        self._operation, self._rollouts, self._lease = run.operation, rollouts, run.lease

    @property
    def idle(self) -> bool:
        """Whether another coordinator may have the lease: nothing is done until that is known."""
        return self._lease is not None and self._lease.idle

    @property
    def epoch(self) -> int:
        """Of the lease; 0: there is none."""
        return 0 if self._lease is None else self._lease.epoch

    def announce(
        self,
        plan: Plan,
        state: RoundState,
        *,
        hold: str = "",
        calibration: CalibrationOrder | None = None,
    ) -> None:
        """Tell all devices, present and to come, where the run stands.

        Args:
            plan: of the run.
            state: of its rounds.
            hold: why devices wait, if not because the operator has paused the run.
            calibration: learning rates that some of them are to try.
        """
        if self.idle:
            return
        self._roll_call.met(len(state.live))
        finished = state.phase is RoundPhase.FINISHED
        unheard = self._receipts.unheard(self._endpoint.chunk_bytes) if finished else ()
        self._endpoint.publish(
            Announcement(
                federation=plan.config.federation,
                boot_id=self.boot_id,
                phase=_PHASES[state.phase],
                round_id=state.round_id,
                rounds=plan.config.rounds,
                strategy=plan.strategy.description.name,
                bundle=plan.bundle.digest,
                layout_hash=plan.bundle.manifest.layout_hash,
                roll_call=self._roll_call.number,
                spread_s=self._roll_call.spread_s,
                epoch=self.epoch,
                hold=hold or self._operation.hold(state),
                bundles=self._rollouts.bundles,
                withdrawal=self._rollouts.withdrawal,
                staleness=plan.config.schedule.patience,
                run_id=self._run_id,
                receipts=unheard,
                calibration=calibration or UNSET,
            )
        )

    def finish_task(self, plan: Plan, state: RoundState) -> Task:
        """Sends a device home."""
        return Task(
            task="finish",
            round_id=state.round_id,
            federation=plan.config.federation,
            epoch=self.epoch,
        )
