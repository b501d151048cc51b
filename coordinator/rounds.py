"""The rounds of a run: what the schedule wants done, in the ledger before it is done.

Who devices are, and what comes from them, is ``attendance``'s and ``service``'s.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import msgspec

from protofleet.coordinator import events
from protofleet.coordinator.acceptance import Acceptance
from protofleet.coordinator.announcer import Announcer
from protofleet.coordinator.calibrating import CalibrationServer
from protofleet.coordinator.fleet_gains import FleetGains
from protofleet.coordinator.parts import Devices, Run
from protofleet.coordinator.payloads import Payloads
from protofleet.errors import RefusedError
from protofleet.federation.client_limits import LearnedBounds
from protofleet.federation.outcomes.trouble import LossWatch
from protofleet.federation.plan import Plan
from protofleet.federation.records import PrivacyRecord, Scores
from protofleet.federation.schedules import membership, schedule
from protofleet.federation.schedules.early_stopping import EarlyEnd, EarlyStopping
from protofleet.federation.schedules.gated_schedule import GatedSchedule
from protofleet.federation.schedules.schedule import RoundPhase, RoundState
from protofleet.federation.schedules.stragglers import share_of_work
from protofleet.federation.server import Aggregated, Server
from protofleet.strategies.types import ServerState
from protofleet.wire.messages import Presence, Task


class Rounds:
    """Steps the schedule and does what it asks for.

    Args:
        server: the server's half of the rounds.
        run: with the ledger and the devices' endpoint.
        devices: for the chunks that they take, and what they use.
        announcer: tells all devices where the run stands.
        acceptance: of the updates that have arrived; those count in the round that is open.
        calibrated: makes the server of a plan with a rate that devices have found; None: none do.

    Attributes:
        server: its ``plan`` has the rounds to which the operator has extended the run.
        state: of the schedule.
        server_state: after the last round.
        payloads: what devices are sent.
        blob_bytes_up, blob_bytes_down: of the open round's finished transfers.
    """

    def __init__(  # noqa: PLR0913 - what is shared, and its two parts
        self,
        server: Server,
        run: Run,
        devices: Devices,
        *,
        announcer: Announcer,
        acceptance: Acceptance,
        calibrated: Callable[[Plan, float], Server] | None = None,
    ) -> None:
        self.server, self._ledger, self._endpoint = server, run.ledger, run.endpoint
        self._reporter, self._sink, ledger = run.reporter, run.sink, run.ledger
        self._calibrated, registry = calibrated, devices.registry
        self._calibrating = CalibrationServer(server.plan, ledger, registry.devices, run.sink)
        self._schedule = self._make_schedule()
        self._registry, self._usage = registry, devices.usage
        self._announcer, self._acceptance = announcer, acceptance
        self._cut_off = False
        self.server_state = self._last_state()
        self.state = RoundState()
        self.payloads = self._make_payloads()
        self._announced = 0
        self._enough_since: float | None = None
        self.blob_bytes_up = self.blob_bytes_down = 0
        self._bounds = LearnedBounds(ledger.update_norms())
        self._losses = LossWatch(ledger.losses())
        self._fleet = FleetGains(ledger, server.plan.bundle.manifest.task)
        self._planned = server.plan.config.rounds
        self._early = self._follow(ledger.early_end())

    def _follow(self, end: EarlyEnd | None) -> EarlyStopping:
        """Go on from where the run ended early, or from where it has gone on since."""
        plan = self.server.plan
        rounds = self._planned if end is None else end.limit(self._planned, plan.config.stop)
        self._resting: EarlyEnd | None = None
        if end is not None and not end.lifted:
            if rounds < self._planned:
                self._set_rounds(rounds)
            elif end.holds(self._planned, plan.config.stop):
                self._resting = end if end.stop.rest_s else None
            elif rounds > end.after:
                self._lift(end)
        early = EarlyStopping(plan.config.stop, plan.bundle.manifest.task)
        end = self._ledger.early_end()  # it may be lifted now
        for round_id, scores in self._ledger.scores(after=0 if end is None else end.after):
            early.add(round_id, scores.selecting, scores.loss, planned=self._planned)
        return early

    def _lift(self, end: EarlyEnd) -> None:
        """The run goes on, and its patience begins anew with the next round."""
        self._resting = None
        done = self.server_state.round_id
        self._ledger.run.note_early_end(msgspec.structs.replace(end, lifted=True, after=done))

    def _last_state(self) -> ServerState:
        ledger = self._ledger
        found = ledger.server_state() or self.server.plan.server_init()
        return replace(found, round_id=max(found.round_id, ledger.run.next_round - 1))

    def _make_schedule(self) -> schedule.Schedule:
        rules = self.server.plan.schedule(lambda: self.server_state)
        if not self._calibrating.open:
            return rules
        return GatedSchedule(inner=rules, may_open=lambda _: not self._calibrating.open)

    def tell_waiting(self, now: float) -> None:
        """Say that a round waits for devices, unless it waits for rates that they are trying."""
        if self._calibrating.order is None:
            self._reporter.waiting(self.state, self.needed_devices, now)

    def take_ratios(self, device_id: str, presence: Presence) -> None:
        """What a device says of learning rates; RefusedError: it cannot be."""
        self._calibrating.note(device_id, presence.calibration)

    def calibrate(self, now: float) -> None:
        """Go on with the calibration, if rounds wait for one (``now``: monotonic seconds)."""
        state, settings = self.state, self.server.plan.config.cohort
        if not self._calibrating.open or state.phase is not RoundPhase.WAITING or state.paused:
            return
        enough = len(state.live) >= self.needed_devices
        self._enough_since = (self._enough_since or now) if enough else None
        ready = self._enough_since is not None and now >= self._enough_since + settings.wait_s
        if not self._calibrating.watch(state.live, ready=ready, now=now):
            return
        chosen = self._calibrating.chosen
        if chosen is not None and self._calibrated is not None:
            self.server = self._calibrated(self.server.plan, chosen.lr)
            self._schedule, self.payloads = self._make_schedule(), self._make_payloads()
            self.server_state = self._last_state()
            self.state = replace(state, warmed_up=True)  # the devices were waited for
        self.announce()

    def _make_payloads(self) -> Payloads:
        return Payloads(self.server.plan, self._ledger, self._state_of)

    def peek(self) -> tuple[RoundState, bool]:
        """Where the ledger says that the run stands, and whether it had begun."""
        found = self._ledger.state()
        state, _ = self._schedule.resume(found, time.monotonic())
        return state, replace(found, paused=False) != RoundState()

    def resume(self) -> None:
        """Go on from there."""
        self.state, actions = self._resumed()
        if self.rests(time.time()):
            self.state = replace(self.state, paused=True)
        if self.state.phase is RoundPhase.OPEN:
            self._reporter.opened(self.state, resumed=True)
        self._carry_out(actions)

    def _resumed(self) -> schedule.Transition:
        return self._schedule.resume(self._ledger.state(), time.monotonic())

    def raise_to(self, rounds: int) -> bool:
        """Have so many rounds from now on; False: the run has them already."""
        if rounds <= self._planned:
            return False
        end = self._ledger.early_end()
        if end is not None and not end.lifted:
            self._lift(end)
            self._early = EarlyStopping(end.stop, self.server.plan.bundle.manifest.task)
        self._planned = rounds
        self._set_rounds(rounds)
        return True

    def lower_to(self, rounds: int) -> None:
        """Have no more than so many rounds; none after those has opened."""
        self._planned = rounds
        self._set_rounds(rounds)

    def _set_rounds(self, rounds: int) -> None:
        self.server = replace(self.server, plan=self.server.plan.with_rounds(rounds))
        self._schedule = self._make_schedule()
        over = self.state.phase is RoundPhase.WAITING and self.state.round_id > rounds
        if over or self.state.phase is RoundPhase.FINISHED:  # and no device was told yet
            live, (self.state, _) = self.state.live, self._resumed()
            self.state = replace(self.state, live=live, warmed_up=True)

    def refusal(self, device_id: str, round_id: int) -> RefusedError | None:
        """Why a device's update for a round would be refused now; None if it is welcome."""
        return self._schedule.refusal(self.state, device_id, round_id)

    @property
    def needed_devices(self) -> int:
        """How many devices must be live before the awaited round opens."""
        return self._schedule.needed_devices(self.state)

    @property
    def expected_updates(self) -> int:
        """How many updates the open round is about: of its members, or what its buffer holds."""
        buffered = self.server.plan.config.schedule.buffer is not None
        return self.state.size if buffered and not self.state.final else len(self.state.cohort)

    def awaits(self, device_id: str, round_id: int) -> bool:
        """Whether the device's update for its task of the round may still come."""
        return self.state.task_of(device_id) == round_id

    def _state_of(self, round_id: int) -> ServerState:
        """The state of which a round's tasks are made."""
        if round_id == self.state.round_id:
            return self.server_state
        return self._ledger.server_state(before=round_id) or self.server.plan.server_init()

    def apply(self, event: schedule.ScheduleEvent) -> None:
        """Step the schedule, and do what follows."""
        self._carry_out(self._step(event))

    def _step(self, event: schedule.ScheduleEvent) -> Sequence[schedule.ScheduleAction]:
        self.state, actions = self._schedule.step(self.state, event, time.monotonic())
        return actions

    def _carry_out(self, actions: Iterable[schedule.ScheduleAction]) -> None:
        waiting = deque(actions)
        while waiting:
            if self._do(waiting.popleft()):
                waiting.extend(self._step(schedule.StateCommitted()))
        if self._cut_off and self.state.phase is RoundPhase.WAITING:
            self.announce()  # who still trains for the closed round need not go on
        self._cut_off = False

    def accept_arrived(self) -> None:
        """Updates that have arrived count from now on, all in the round that is open or awaited."""
        devices = self._accepted()
        if devices:
            # All count before the round may close.
            self.state = membership.stored(self.state, devices[:-1])
            self.apply(schedule.UpdateStored(devices[-1]))

    def _accepted(self) -> tuple[str, ...]:
        devices, sizes = self._acceptance.accept(self.state.updates, self.expected_updates)
        self.blob_bytes_up += sizes
        return devices

    def _do(self, action: schedule.ScheduleAction) -> bool:
        """Carry out an action; whether a round is committed by that."""
        match action:
            case schedule.OpenRound(round_id, cohort, size, final):
                self._ledger.open_round(round_id, cohort, time.time(), size=size, final=final)
                self.blob_bytes_up = self.blob_bytes_down = 0
                self._announce_round()
                self._reporter.opened(self.state, resumed=False)
                self.invite(cohort)
            case schedule.AddMembers(round_id, device_ids):
                self._ledger.extend_round(round_id, self.state.attempt, device_ids)
                self.invite(device_ids)
            case schedule.Invite(device_id):
                self.invite((device_id,))
            case schedule.ExtendRound():
                self._extend(action)
            case schedule.CloseRound():
                return self._close(action)
            case schedule.Finish():
                pass
            case _:
                assert_never(action)
        return False

    def invite(self, clients: tuple[str, ...]) -> None:
        """Offer these devices their task: the open round's, or the one that each is late with."""
        plan = self.server.plan
        task = Task(
            task="train",
            round_id=0,
            federation=plan.config.federation,
            strategy=plan.strategy.description.name,
            settings=plan.settings,
            seed=plan.config.seed,
            deadline_s=max(self.state.deadline - time.monotonic(), 0.0),
            final=self.state.final,
            update_codec=plan.config.codec.updates.name,
            update_keep=plan.config.codec.keep,
            scores=plan.sends.scores,
            counts=plan.sends.counts,
            epoch=self._announcer.epoch,
            fleet=self._fleet.now or msgspec.UNSET,
            baseline=plan.config.evaluation.baseline or msgspec.UNSET,
        )
        self._usage.invited(clients)
        tasks = {one: self.state.task_of(one) for one in clients}
        payloads = {one: self.payloads.payload_for(of, one) for one, of in tasks.items()}
        alike = Counter(one.path for one in payloads.values())
        made: dict[tuple[int, float], Task] = {}
        for device_id, round_id in tasks.items():
            payload = payloads[device_id]
            work = self._work_of(device_id, round_id)
            if (round_id, work) not in made:
                made[round_id, work] = msgspec.structs.replace(task, round_id=round_id, work=work)
            self._endpoint.send_task(
                device_id,
                made[round_id, work],
                payload.path,
                payload.coding,
                most_chunk_bytes=self._registry.chunk_bytes(device_id),
                shared=plan.config.limits.broadcasts(alike[payload.path]),
            )

    def _work_of(self, device_id: str, round_id: int) -> float:
        """The share of its training that a device is asked for in its task of a round."""
        settings = self.server.plan.config.stragglers
        if settings.budget_s is None or self.state.final:
            return 1.0
        return share_of_work(settings, self._ledger.devices.past_rounds(device_id, round_id))

    def _extend(self, action: schedule.ExtendRound) -> None:
        self._ledger.extend_round(action.round_id, action.attempt, action.added)
        self._reporter.extended(self.state, action)
        self.invite(tuple(c for c in sorted(self.state.tasks) if c in self.state.live))

    def _close(self, action: schedule.CloseRound) -> bool:
        """Aggregate, score and commit; done again after a crash, it gives the same bits.

        Returns:
            Whether the round is committed.
        """
        round_id = action.round_id
        self._end_tasks(round_id)
        before = self.server_state
        if not before.round_id:
            self._ledger.run.note_start(self.server.score(before, (), final=False))
        outcome, update_norms = self._aggregate(action)
        self._commit(
            outcome,
            update_norms=update_norms,
            privacy=self.server.spent(
                before, self._ledger.devices.most_invitations, final=action.final
            ),
        )
        return True

    def _aggregate(self, action: schedule.CloseRound) -> tuple[Aggregated, Mapping[str, float]]:
        """What the round's updates become, and how far they went."""
        claims = self._ledger.claims(action.round_id)
        outcome = self.server.aggregate(
            self.server_state,
            action.round_id,
            self._ledger.updates(action.round_id),
            claims,
            final=action.final,
            noise_seed=self._ledger.noise.of_round,
        )
        return outcome, self.server.update_norms(claims)

    def _end_tasks(self, round_id: int) -> None:
        """From here on exactly the accepted updates count, and tasks are over with the round."""
        for device_id in self._accepted():
            self._step(schedule.UpdateStored(device_id))
        self._ledger.close_round(round_id)
        kept = self._kept_tasks()
        self._endpoint.end_tasks(kept)
        self.payloads.clear(kept)

    def _kept_tasks(self) -> dict[str, int]:
        """Devices whose task is not over with the closing round, and of which round it is."""
        oldest = self.state.round_id + 1 - (0 if self.state.final else self._schedule.patience)
        return {name: task for name, task in self.state.tasks.items() if task >= oldest}

    def _commit(
        self,
        outcome: Aggregated,
        *,
        update_norms: Mapping[str, float],
        privacy: PrivacyRecord | None = None,
    ) -> None:
        """Score what the closing round has become, and make it the round's end."""
        round_id, final = self.state.round_id, self.state.final
        self._cut_off = bool(self.state.outstanding)
        self.server_state = outcome.state
        records = [one.record for one in self._ledger.accepted(round_id)]
        self._fleet.add(records)
        scores = self.server.score(self.server_state, records, final=final)
        early = self._ends_early(scores)
        if early is not None:
            self._ledger.run.note_early_end(early)  # closed again after a crash, it says the same
        self._ledger.commit_round(
            self.server_state,
            scores,
            time.time(),
            update_norms=update_norms,
            figures=self.server.figures(self.server_state),
            keep_states=self.server.plan.config.limits.keep_states,
            oldest_task=min(self._kept_tasks().values(), default=None),
            privacy=privacy,
        )
        self._reporter.aggregated(round_id, outcome)
        self._bounds.add(update_norms)
        closed = msgspec.structs.asdict(self._ledger.committed_round(round_id))
        # Heartbeats about the last updates are still under way.
        closed["bytes_up"] = max(closed["bytes_up"], self.blob_bytes_up)
        closed["bytes_down"] = max(closed["bytes_down"], self.blob_bytes_down)
        self._sink(events.RoundClosed(**closed))
        if scores.own_loss is not None and not final:
            trouble = self._losses.add(scores.own_loss.mean)
            if trouble is not None:
                self._sink(events.ResultsTrouble(what=trouble.what, remedy=trouble.remedy))
        self._end_or_rest(early, scores)

    def _end_or_rest(self, early: EarlyEnd | None, scores: Scores) -> None:
        """Do what the committed round has brought about."""
        if early is not None and early.stop.rest_s:
            self._resting = early
            self.tell_early_end()
        elif early is not None:
            self._set_rounds(early.after)
            self.tell_early_end()
            self.announce()  # devices believe no end before the last round that they know of
        elif self._resting is not None and self._resting.drifted(scores.selecting, scores.loss):
            what = self._resting.change_text(scores.selecting, scores.loss)
            self._early = EarlyStopping(self._resting.stop, self.server.plan.bundle.manifest.task)
            self._lift(self._resting)
            self._sink(events.Drifted(round_id=self.state.round_id, what=what))
        if self._resting is not None:
            self.state = replace(self.state, paused=True)

    def _ends_early(self, scores: Scores) -> EarlyEnd | None:
        """The end of the run, if the closing round brings it before its last one."""
        round_id, state = self.state.round_id, self.state
        if state.final or round_id >= self.server.plan.config.rounds:
            return None
        if self._resting is not None:
            return None
        return self._early.add(round_id, scores.selecting, scores.loss, planned=self._planned)

    def rests(self, now_s: float) -> bool:
        """Whether no round opens at this time of the wall clock, as they bring nothing more."""
        resting = self._resting
        return resting is not None and now_s < self._ledger.last_commit_s() + resting.stop.rest_s

    def tell_early_end(self) -> None:
        """Say that and why the run ends before its last round, if it does."""
        end = self._ledger.early_end()
        if end is not None and not end.lifted:
            self._sink(
                events.EndedEarly(after=end.after, planned=end.planned, why=end.why, text=end.text)
            )

    def _announce_round(self) -> None:
        """Tell all devices that a round has opened, if one of them may have to know.

        Where updates may be late by many rounds, and rounds are short, a message to every device
        for every update of one would cost more than the updates.
        """
        round_id = self.state.round_id
        due = self._announced + max(self._schedule.patience // 2, 1)
        if round_id >= due or round_id >= self._schedule.last_round - 1 or not self._announced:
            self.announce()

    @property
    def bounds(self) -> Mapping[str, float]:
        """How far updates may go, as the rounds in the ledger show it."""
        return self._bounds.now

    def announce(self, *, hold: str = "") -> None:
        """Tell all devices where the run stands."""
        self._announced = self.state.round_id
        self._announcer.announce(
            self.server.plan, self.state, hold=hold, calibration=self._calibrating.order
        )

    def finish_task(self) -> Task:
        """Sends a device home."""
        return self._announcer.finish_task(self.server.plan, self.state)
