"""A bundle's way to the fleet while rounds go on: to one device, to a share of them, to the rest.

::

    running ── stage done ──► running, next stage ── last stage done, between rounds ──► complete
       │            └── by hand ──► waiting (for ``bundle next``)
       ├── too many devices failed ──► taken_back, or paused
       └── ``bundle pause`` ──► paused          ``bundle rollback`` ──► taken_back

What a device has done with the bundle it says in its presence, so nothing is lost with a message;
what was decided stands in the ledger. Devices with either bundle take part in the same rounds, for
``bundle publish`` refuses a bundle whose devices could not. The server itself stays with the bundle
before until the roll-out is complete.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable
from itertools import islice

import msgspec

from protofleet.bundle.bundle import SUFFIX
from protofleet.coordinator import events
from protofleet.coordinator.devices.registry import Device, Registry
from protofleet.coordinator.ledger.rollout_rows import (
    BUNDLES,
    STAGES,
    DeviceState,
    Rollout,
    RolloutDevice,
    RolloutState,
)
from protofleet.coordinator.parts import Run
from protofleet.federation.plan import Plan
from protofleet.federation.records import UpdateRecord
from protofleet.federation.schedules.schedule import RoundPhase, RoundState
from protofleet.wire.messages import BundleOffer, Presence

FIRST_S, LONGEST_S = 60.0, 3600.0
"""After so long without a step it is said what a roll-out waits for, and again at doubled times."""
_NAMED = 5
LOOK_S = 0.2
"""How often there may be something to do: a group's progress needs no more."""
_OFFERS = 32
"""Devices that fetch at once; they are served behind the rounds' own transfers."""
_ORDER: tuple[DeviceState, ...] = (
    "offered",
    "fetched",
    "verified",
    "tested",
    "active",
    "confirmed",
)
_PENDING = frozenset(_ORDER[:4])
_HARMLESS = frozenset(
    {
        "announcement",
        "base",
        "codec",
        "cohort",
        "epoch",
        "has-bundle",
        "offer",
        "policy",
        "round",
        "session",
    }
)
"""Rules that a sound device breaks, too: its update was late, its owner held it."""
_LOSS_SLACK = 0.1


class Rollouts:
    """The latest roll-out of a run, as its coordinator pursues it.

    Args:
        run: with the ledger and the devices' endpoint.
        registry: of devices; it takes those with either bundle.
        plan: of the run, with the bundle that the server has.
    """

    def __init__(self, run: Run, registry: Registry, plan: Plan) -> None:
        self._rows, self._folder = run.ledger.rollouts, run.ledger.folder / BUNDLES
        self._endpoint, self._sink = run.endpoint, run.sink
        self._registry, self._plan = registry, plan
        self._rollout: Rollout | None = None
        self._devices: dict[str, RolloutDevice] = {}
        self._sent: set[str] = set()
        self._delivered: dict[str, int] = {}
        self._losses: dict[str, tuple[float | None, float | None]] = {}
        self._due, self._ready = 0.0, False
        self._step: object = None
        self._since_s = self._tell_s = 0.0
        self._interval_s = FIRST_S
        self.epoch = 0
        self._read()

    # What is announced

    @property
    def bundles(self) -> tuple[str, ...]:
        """Further bundles whose devices take part."""
        found, ours = self._rollout, self._plan.bundle.digest
        if found is None or found.state == "taken_back":
            return ()
        if found.target != ours:  # also when it is complete, until the server has it, too
            return (found.target,)
        return (found.former,) if found.former and not found.withdrawal else ()

    @property
    def withdrawal(self) -> str:
        """The statement that takes devices back to the present bundle; empty: there is none."""
        return "" if self._rollout is None else self._rollout.withdrawal

    @property
    def drains(self) -> bool:
        """Whether no other round is to open, because the server is to have another bundle."""
        over = self._rollout is not None and self._rollout.state == "complete"
        return self._ready or (over and self._active != self._plan.bundle.digest)

    def switches(self, state: RoundState) -> bool:
        """Whether the server is to have another bundle from here on: between two rounds."""
        over = self._rollout is not None and self._rollout.state == "complete"
        between = state.phase is RoundPhase.WAITING
        return over and between and self._active != self._plan.bundle.digest

    # What devices tell

    def on_presence(self, device_id: str, presence: Presence) -> None:
        """What a device says of the bundle that it has, and of the one that comes."""
        found, known = self._rollout, self._devices.get(device_id)
        if presence.status != "online":
            self._sent.discard(device_id)
            return
        if found is None or known is None or known.state == "failed":
            return
        if found.state == "taken_back":
            return
        if presence.bundle == found.target:
            if known.state in _PENDING:
                self._note(known, "active")
        elif known.state in ("active", "confirmed"):
            self.failed(device_id, "bundle", "it has another bundle again")
        elif presence.progress is not None and presence.progress.bundle == found.target:
            progress = presence.progress
            if progress.state == "failed":
                self.failed(device_id, progress.rule, progress.reason)
            elif _ORDER.index(progress.state) > _ORDER.index(known.state):
                self._note(known, progress.state)

    def fetched(self, device_id: str) -> None:
        """A device has stored the bundle."""
        known = self._devices.get(device_id)
        if known is not None and known.state == "offered":
            self._note(known, "fetched")

    def refused(self, device_id: str, rule: str, reason: str) -> None:
        """A device will not have the bundle that it was offered."""
        known = self._devices.get(device_id)
        if known is not None and known.state in _PENDING and rule not in _HARMLESS:
            self.failed(device_id, rule, reason)

    def update_accepted(self, device_id: str, record: UpdateRecord) -> None:
        """A device's update counts in its round; a good one confirms the bundle when it is over."""
        known, found = self._devices.get(device_id), self._rollout
        if known is None or found is None or known.state not in ("active", "confirmed"):
            return
        most = found.settings.max_loss
        if most and found.under_way:
            before = self._losses.setdefault(
                device_id, self._rows.losses_before(device_id, record.round_id)
            )
            after = (record.loss, record.evaluation.own_loss)
            for name, was, now in zip(("training", "own test"), before, after, strict=True):
                if was is not None and now is not None and now > most * was + _LOSS_SLACK:
                    reason = f"its {name} loss was {was:.4g}, in round {record.round_id} {now:.4g}"
                    self.failed(device_id, "health", reason)
                    return
        if known.state == "active":
            self._delivered[device_id] = record.round_id

    def round_failed(self, device_id: str, rule: str, reason: str) -> None:
        """A device has trained nothing that can be used."""
        known = self._devices.get(device_id)
        if known is not None and known.state == "active" and rule not in _HARMLESS:
            self.failed(device_id, rule, reason)

    def failed(self, device_id: str, rule: str, reason: str) -> None:
        """A device does not get on with the bundle."""
        known = self._devices.get(device_id)
        if known is not None and known.state != "failed":
            self._note(known, "failed", rule, reason)

    # What follows

    def watch(self, now: float, state: RoundState) -> bool:
        """Do what is due; whether the announcement has changed with it."""
        if now < self._due:
            return False
        self._due = now + LOOK_S
        before = (self.bundles, self.withdrawal)
        if self._rows.changed():
            self._read()
        self._confirm(state)
        self._judge(state)
        found = self._rollout
        if found is not None and found.state in ("running", "complete"):
            self._offer(found)
        self._tell_wait(now)
        return before != (self.bundles, self.withdrawal)

    def finish(self, state: RoundState) -> None:
        """The run has ended: whose update was in its last rounds has had good ones."""
        self._confirm(state)
        self._judge(state)

    def _tell_wait(self, now: float) -> None:
        """Say what the roll-out waits for where nothing has happened for a while."""
        found = self._rollout
        step = found and (found, tuple(one.state for one in self._devices.values()))
        if step != self._step:
            self._step, self._since_s = step, now
            self._interval_s, self._tell_s = FIRST_S, now + FIRST_S
        if found is None or not found.under_way or found.state == "paused" or now < self._tell_s:
            return
        self._interval_s = min(2 * self._interval_s, LONGEST_S)
        self._tell_s = now + self._interval_s
        awaited = {
            one.device_id: one.state for one in self._devices.values() if one.state in _PENDING
        }
        self._sink(
            events.BundleAwaited(
                bundle=found.target,
                stage=STAGES[found.stage],
                state=found.state,
                awaited=dict(islice(awaited.items(), _NAMED)),
                more=max(0, len(awaited) - _NAMED),
                waited_s=round(now - self._since_s, 1),
            )
        )

    def _read(self) -> None:
        self._ready = False
        before, self._rollout = self._rollout, self._rows.latest()
        found, self._active = self._rollout, self._rows.active()
        if found is None:
            self._registry.welcome = frozenset({self._plan.bundle.digest})
            return
        self._devices = {one.device_id: one for one in self._rows.devices(found.id)}
        self._registry.welcome = frozenset({self._plan.bundle.digest, *self.bundles})
        if before is None or before.id != found.id:
            self._sent.clear()
            self._delivered.clear()
            self._losses.clear()
        if before != found and (before is not None or found.under_way):
            self._sink(
                events.BundleRollout(
                    bundle=found.target,
                    state=found.state,
                    stage=STAGES[found.stage],
                    reason=found.reason,
                )
            )

    def _move(
        self, found: Rollout, state: RolloutState, *, stage: int | None = None, reason: str = ""
    ) -> None:
        self._rows.move(found, state, stage=stage, reason=reason)
        self._read()

    def _note(
        self, known: RolloutDevice, state: DeviceState, rule: str = "", reason: str = ""
    ) -> None:
        found = self._rollout
        if found is None:
            return
        noted = msgspec.structs.replace(
            known, state=state, rule=rule, reason=reason, since_s=round(time.time(), 3)
        )
        self._devices[known.device_id] = noted
        self._rows.note(found.id, {known.device_id: noted})
        self._sink(
            events.BundleDevice(
                bundle=found.target,
                device_id=known.device_id,
                state=state,
                rule=rule,
                reason=reason,
            )
        )

    def _confirm(self, state: RoundState) -> None:
        """Whose update was in a round that is over has had a good one."""
        ended = state.phase is RoundPhase.FINISHED
        over = [
            device
            for device, round_id in self._delivered.items()
            if ended or round_id < state.round_id
        ]
        for device_id in over:
            del self._delivered[device_id]
            known = self._devices.get(device_id)
            if known is not None and known.state == "active":
                self._note(known, "confirmed")

    def _judge(self, state: RoundState) -> None:
        """Whether too many have failed, or the stage is done."""
        found, self._ready = self._rollout, False
        if found is None or found.state != "running":
            return
        every = list(self._devices.values())
        stage = [one for one in every if one.stage == found.stage]
        # Those of before a pause are known to the operator who has resumed it.
        failures = [
            one for one in every if one.state == "failed" and one.since_s >= found.since_s - 0.001
        ]
        if failures and len(failures) > found.settings.max_failures * len(every):
            one = failures[0]
            reason = (
                f"{len(failures)} of {len(every)} devices failed, such as {one.device_id} "
                f"({one.rule}): {one.reason}"
            )
            back = found.settings.on_failure == "back"
            self._move(found, "taken_back" if back else "paused", reason=reason)
        elif self._is_done(found, stage):
            self._ready = found.stage == len(STAGES) - 1
            if not self._ready:
                state_after: RolloutState = "waiting" if found.settings.by_hand else "running"
                self._move(found, state_after, stage=found.stage + 1)
            elif state.phase is RoundPhase.WAITING:
                self._move(found, "complete")

    def _is_done(self, found: Rollout, stage: list[RolloutDevice]) -> bool:
        """Whether the devices of a stage that are there have the bundle, and rounds with it."""
        if self._wanted(found):
            return False
        if not found.former:  # devices of another run, which none of them counts for here
            there = {one.device_id for one in self._candidates()}
            return not any(one.state in _PENDING and one.device_id in there for one in stage)
        here = [one for one in stage if one.device_id in self._registry.live]
        if any(one.state in _PENDING for one in here):
            return False
        confirmed = sum(one.state == "confirmed" for one in self._devices.values())
        has = sum(one.state in ("active", "confirmed") for one in here)
        done = sum(one.state == "confirmed" for one in here)
        return confirmed > 0 and done >= min(has, self._cohort(has))

    def _cohort(self, count: int) -> int:
        """How many of so many devices one round invites."""
        size = self._plan.config.cohort.size
        if size == "all":
            return count
        return math.ceil(size * count) if isinstance(size, float) else int(size)

    def _candidates(self) -> list[Device]:
        found = self._rollout
        if found is None:
            return []
        newest = found.sequence if found.former and not found.withdrawal else math.inf
        # To what is not the run's bundle yet only devices come that could take part without it.
        every = found.target == self._plan.bundle.digest
        return [
            one
            for one in self._registry.devices.values()
            if one.takes_bundles
            and not one.held
            and one.sequence <= newest
            and (every or one.bundle in self._registry.welcome)
        ]

    def _wanted(self, found: Rollout) -> list[str]:
        """Devices that the stage still lacks, in an order that nobody has chosen."""
        free = [
            one.device_id
            for one in self._candidates()
            if one.device_id not in self._devices and one.bundle != found.target
        ]
        free.sort(key=lambda name: hashlib.sha256(f"{found.target}/{name}".encode()).digest())
        if found.stage == len(STAGES) - 1:
            return free
        known = len(self._devices)
        if found.stage == 0:
            return free[: max(found.settings.first - known, 0)]
        share = math.ceil(found.settings.share * (len(free) + known))
        return free[: max(share - known, 0)]

    def _offer(self, found: Rollout) -> None:
        """Let the stage's devices fetch the bundle, some at a time."""
        fetching = sum(
            one.state == "offered" and one.device_id in self._sent for one in self._devices.values()
        )
        again = (
            one.device_id
            for one in self._devices.values()
            if one.state == "offered" and one.device_id not in self._sent
        )
        present = {one.device_id: one for one in self._candidates()}
        offered = _first(_OFFERS - fetching, again, self._wanted(found))
        shared = self._plan.config.limits.broadcasts(len(offered))
        for device_id in offered:
            if device_id not in present:
                continue
            if device_id not in self._devices and not self._begins(found, present[device_id]):
                continue
            self._sent.add(device_id)
            self._endpoint.send_bundle(
                device_id,
                BundleOffer(
                    federation=self._plan.config.federation,
                    bundle=found.target,
                    sequence=found.sequence,
                    epoch=self.epoch,
                ),
                self._folder / f"{found.target}{SUFFIX}",
                most_chunk_bytes=self._registry.chunk_bytes(device_id),
                shared=shared,
            )

    def _begins(self, found: Rollout, device: Device) -> bool:
        """Note that a device is offered the bundle, unless it is known that it will refuse it."""
        known = RolloutDevice(
            device_id=device.device_id, stage=found.stage, state="offered", since_s=time.time()
        )
        if not found.former and device.sequence >= found.sequence:
            reason = (
                f"it has had a bundle of sequence {device.sequence}, and moves to none that is not "
                f"later: export this run's with --sequence {device.sequence + 1}"
            )
            self._note(known, "failed", "sequence", reason)
            return False
        self._note(known, "offered")
        return True


def _first(count: int, *groups: Iterable[str]) -> list[str]:
    every = [one for group in groups for one in group]
    return every[: max(count, 0)]
