"""Stages of a roll-out: who is offered a bundle when, what ends it, what a restart remembers."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fake_endpoint import Clock, FakeCoordinatorEndpoint
from tiny_bundle import tiny_bundle
from tiny_plan import tiny  # noqa: F401 - a fixture

from protofleet.coordinator import events
from protofleet.coordinator.devices.registry import Registry
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.rollout_rows import RolloutSettings
from protofleet.coordinator.parts import Run
from protofleet.coordinator.process.operation import Operation
from protofleet.coordinator.publish import (
    plan_in_place,
    publish,
    publish_own,
    read_rollout,
    steer,
    take_back,
)
from protofleet.coordinator.reporter import Reporter
from protofleet.coordinator.rollout import Rollouts
from protofleet.errors import InputError, RefusedError
from protofleet.federation.plan import make_plan
from protofleet.federation.records import EvaluationRecord, UpdateRecord
from protofleet.federation.schedules.schedule import RoundPhase, RoundState
from protofleet.wire.messages import BundleProgress, Presence

_BETWEEN = RoundState(phase=RoundPhase.WAITING, round_id=9)


class _Fleet:
    """A coordinator's roll-outs, with presences that the test makes up."""

    def __init__(self, config, count):
        self.config, self.plan = config, make_plan(config)
        self.events, self.now, self.closed = [], 0.0, False
        self.ledger = Ledger(config.run_dir, self.plan.identity)
        bundle = self.plan.bundle
        self.registry = Registry(
            bundle=bundle.digest,
            layout_hash=bundle.manifest.layout_hash,
            strategy="fedavg",
            silent_after_s=1e9,
        )
        self.endpoint = FakeCoordinatorEndpoint(config.run_dir / "partial", Clock(), [])
        sink = self.events.append
        run = Run(
            ledger=self.ledger,
            endpoint=self.endpoint,
            sink=sink,
            reporter=Reporter(60.0, sink),
            operation=Operation(self.ledger.control, sink),
        )
        self.rollouts = Rollouts(run, self.registry, self.plan)
        self.names = [f"d{number:02}" for number in range(count)]
        for name in self.names:
            self.says(name)

    def says(self, name, bundle="", state="", rule=""):
        present, target = self.plan.bundle, self.target
        progress = BundleProgress(bundle=target, state=state, rule=rule) if state else None
        presence = Presence(
            device_id=name,
            boot_id="b",
            status="online",
            bundle=bundle or present.digest,
            layout_hash=present.manifest.layout_hash,
            takes_bundles=True,
            progress=progress,
        )
        self.registry.presence(name, presence, time.monotonic())
        self.rollouts.on_presence(name, presence)

    def has_another(self, name, state="", held=(), sequence=0):
        """The device says that it has the bundle of another run."""
        progress = BundleProgress(bundle=self.target, state=state) if state else None
        presence = Presence(
            device_id=name,
            boot_id="b",
            status="online",
            bundle="ab" * 32,
            layout_hash="cd" * 32,
            takes_bundles=True,
            held=held,
            sequence=sequence,
            progress=progress,
        )
        with pytest.raises(RefusedError, match="bundle publish FILE"):
            self.registry.presence(name, presence, time.monotonic())
        self.rollouts.on_presence(name, presence)

    @property
    def target(self):
        found = read_rollout(self.config).rollout
        return "" if found is None else found.target

    def watch(self, state=_BETWEEN):
        self.now += 1.0
        return self.rollouts.watch(self.now, state)

    @property
    def offered(self):
        found = [name for name, _ in self.endpoint.bundles]
        self.endpoint.bundles.clear()
        return found

    def confirm(self, names):
        for name in names:
            for state in ("fetched", "verified", "tested"):
                self.says(name, state=state)
            self.says(name, self.target)
            self.rollouts.update_accepted(name, _record(name, 9))
        self.watch(replace(_BETWEEN, round_id=10))

    def complete(self):
        """A roll-out whose first stage is everybody."""
        self.watch()
        everyone = self.offered
        for name in everyone:
            self.rollouts.fetched(name)
        self.watch()
        self.confirm([*everyone, *self.offered])
        for _ in range(4):
            self.watch()

    def close(self):
        if not self.closed:
            self.closed = True
            self.ledger.close()


def _record(name, round_id, loss=0.5):
    return UpdateRecord(
        client_id=name,
        round_id=round_id,
        num_examples=9,
        loss=loss,
        evaluation=EvaluationRecord(own_loss=loss),
    )


@pytest.fixture
def key():
    return Ed25519PrivateKey.generate()


@pytest.fixture
def new(tmp_path, key):
    return tiny_bundle(tmp_path / "new.pfb", key, sequence=1)


@pytest.fixture
def fleet(tiny, key, tmp_path):  # noqa: F811 - the fixture
    config = tiny.plan.config
    old = tiny_bundle(tmp_path / "tiny.pfb", key)
    made = _Fleet(msgspec.structs.replace(config, bundle=old), 40)
    yield made
    made.close()


def test_one_device_then_a_share_then_the_rest_then_the_run_itself(fleet, new):
    publish(fleet.config, new, RolloutSettings())
    assert fleet.watch()  # the announcement names it
    assert fleet.rollouts.bundles == (fleet.target,)
    first = fleet.offered
    assert len(first) == 1
    fleet.watch()
    assert fleet.offered == []  # of one transfer at a time
    fleet.confirm(first)
    fleet.watch()
    second = fleet.offered
    assert len(second) == 1  # 5 % of 40 are two
    fleet.confirm(second)
    fleet.watch()
    third = fleet.offered
    assert len(third) == 32  # fetch at once
    for name in third:
        fleet.rollouts.fetched(name)
    fleet.watch()
    rest = fleet.offered
    assert {*first, *second, *third, *rest} == set(fleet.names)
    fleet.confirm([*third, *rest])
    fleet.watch(replace(_BETWEEN, phase=RoundPhase.OPEN))
    assert fleet.rollouts.drains
    assert not fleet.rollouts.switches(replace(_BETWEEN, phase=RoundPhase.OPEN))
    fleet.watch()
    assert fleet.rollouts.switches(_BETWEEN)
    assert fleet.rollouts.bundles == (fleet.target,)  # or its devices would go back
    found = read_rollout(fleet.config)
    assert (found.rollout.state, found.counts) == ("complete", {"confirmed": 40})
    assert found.active == fleet.target
    # The federation file goes on to name the bundle before.
    assert plan_in_place(fleet.config).bundle.digest == found.active


def test_what_a_runs_last_rounds_confirm_is_noted_at_its_end(fleet, new):
    """Rounds may follow each other faster than the roll-out is looked at."""
    publish(fleet.config, new, RolloutSettings())
    fleet.watch()
    (first,) = fleet.offered
    for state in ("fetched", "verified", "tested"):
        fleet.says(first, state=state)
    fleet.says(first, fleet.target)
    fleet.rollouts.update_accepted(first, _record(first, 9))
    fleet.rollouts.finish(RoundState(phase=RoundPhase.FINISHED, round_id=9))
    (told,) = read_rollout(fleet.config).devices
    assert (told.device_id, told.state) == (first, "confirmed")


def test_a_roll_out_that_does_not_get_on_says_for_whom_it_waits(fleet, new):
    publish(fleet.config, new, RolloutSettings(by_hand=True))
    fleet.watch()
    (first,) = fleet.offered

    def told(seconds):
        fleet.events.clear()
        for _ in range(int(seconds)):
            fleet.watch()
        return [one for one in fleet.events if isinstance(one, events.BundleAwaited)]

    assert told(55) == []
    (one,) = told(10)
    assert one.awaited == {first: "offered"}
    assert f"stage first has waited 1 min 0 s for {first} (offered)" in one.text
    assert len(told(110)) == 0
    assert len(told(20)) == 1
    fleet.confirm([first])
    fleet.watch()
    (one,) = told(70)
    assert "has waited 1 min 0 s for the operator: protofleet bundle next FILE" in one.text


def test_a_device_that_fails_ends_the_first_stage_and_a_few_do_not_end_the_last(fleet, new):
    publish(fleet.config, new, RolloutSettings())
    fleet.watch()
    (first,) = fleet.offered
    fleet.says(first, state="failed", rule="rehearsal")
    assert fleet.watch()
    found = read_rollout(fleet.config)
    assert found.rollout.state == "taken_back"
    assert f"1 of 1 devices failed, such as {first} (rehearsal)" in found.rollout.reason
    assert (fleet.rollouts.bundles, fleet.offered) == ((), [])

    publish(fleet.config, new, RolloutSettings(first=20, on_failure="pause"))
    fleet.watch()
    group = fleet.offered
    for name in group[:4]:
        fleet.says(name, state="failed", rule="untrusted")
    fleet.confirm(group[4:])
    fleet.watch()
    assert read_rollout(fleet.config).stage != "first"
    for name in fleet.offered[:10]:
        fleet.says(name, state="failed", rule="size")
    fleet.watch()
    assert read_rollout(fleet.config).rollout.state == "paused"
    steer(fleet.config, "running")
    fleet.watch()
    assert read_rollout(fleet.config).rollout.state == "running"  # the operator knows of those


def test_a_device_whose_loss_rises_fails_also_after_it_was_confirmed(fleet, new):
    publish(fleet.config, new, RolloutSettings(max_failures=1.0))
    fleet.watch()
    (first,) = fleet.offered
    fleet.rollouts._rows.losses_before = lambda _device, _round: (0.5, None)
    fleet.confirm([first])
    fleet.rollouts.update_accepted(first, _record(first, 11, loss=1.0))
    assert fleet.rollouts._devices[first].state == "confirmed"
    fleet.rollouts.update_accepted(first, _record(first, 12, loss=1.2))
    (device,) = read_rollout(fleet.config).devices[:1]
    assert (device.state, device.rule) == ("failed", "health")
    assert "was 0.5, in round 12 1.2" in device.reason


def test_by_hand_paused_and_taken_back(fleet, new, key):
    publish(fleet.config, new, RolloutSettings(by_hand=True))
    fleet.watch()
    (first,) = fleet.offered
    fleet.confirm([first])
    fleet.watch()
    assert (read_rollout(fleet.config).rollout.state, fleet.offered) == ("waiting", [])
    steer(fleet.config, "paused")
    fleet.watch()
    assert fleet.offered == []
    steer(fleet.config, "running")
    fleet.watch()
    assert len(fleet.offered) == 1
    with pytest.raises(InputError, match="is under way"):
        publish(fleet.config, new, RolloutSettings())
    assert take_back(fleet.config, None).rollout.state == "taken_back"
    assert fleet.watch()
    assert fleet.rollouts.bundles == ()
    with pytest.raises(InputError, match="it is back"):
        take_back(fleet.config, key)
    with pytest.raises(InputError, match="no roll-out"):
        steer(fleet.config, "running")


def test_once_complete_only_its_signer_takes_it_back(fleet, new, key):
    publish(fleet.config, new, RolloutSettings(first=40))
    fleet.complete()
    assert read_rollout(fleet.config).rollout.state == "complete"
    with pytest.raises(InputError, match="give the signing key"):
        take_back(fleet.config, None)
    with pytest.raises(InputError, match="has not signed it"):
        take_back(fleet.config, Ed25519PrivateKey.generate())
    found = take_back(fleet.config, key)
    assert found.active == fleet.plan.bundle.digest
    fleet.watch()
    assert fleet.rollouts.withdrawal
    assert fleet.rollouts.bundles == ()  # whoever has it goes back
    assert not fleet.rollouts.drains


def test_a_bundle_that_cannot_take_the_place_is_not_published(fleet, tmp_path, key, new):
    cases = {
        "has this very one": tiny_bundle(tmp_path / "a.pfb", key),
        "its parameters": tiny_bundle(tmp_path / "b.pfb", key, classes=5, sequence=1),
        "settings would be": tiny_bundle(tmp_path / "c.pfb", key, settings={}, sequence=1),
    }
    for told, path in cases.items():
        with pytest.raises(InputError, match=told):
            publish(fleet.config, path, RolloutSettings())
    later = msgspec.structs.replace(fleet.config, bundle=new)
    assert read_rollout(fleet.config).rollout is None
    nowhere = msgspec.structs.replace(later, run_dir=tmp_path / "nowhere")
    with pytest.raises(InputError, match="no run was started"):
        publish(nowhere, new, RolloutSettings())


@pytest.fixture
def other(tiny, key, tmp_path):  # noqa: F811 - the fixture
    """Another run, with a later bundle."""
    bundle = tiny_bundle(tmp_path / "five.pfb", key, sequence=5)
    made = _Fleet(
        msgspec.structs.replace(tiny.plan.config, bundle=bundle, run_dir=tmp_path / "other"), 40
    )
    yield made
    made.close()


def test_a_runs_own_bundle_goes_to_devices_of_another_run_at_once(other, tmp_path, key):
    """They cannot take part without it, so that no stage waits for a round of theirs."""
    config, others = other.config, other.names[1:]
    for name in others:
        other.has_another(name)
    publish_own(config, max_failures=0.1)
    assert not other.watch()  # nothing else is announced
    assert other.rollouts.bundles == ()
    first = other.offered
    assert len(first) == 32
    assert other.names[0] not in first
    other.has_another(first[0], state="tested")
    assert read_rollout(config).counts == {"offered": 31, "tested": 1}
    for name in first:
        other.rollouts.fetched(name)
    other.watch()
    rest = other.offered
    assert {*first, *rest} == set(others)
    other.confirm(first)
    assert read_rollout(config).rollout.state == "running"  # the rest is on its way
    other.confirm(rest)
    other.watch()
    found = read_rollout(config)
    assert (found.rollout.state, found.active) == ("complete", other.plan.bundle.digest)
    assert not other.rollouts.switches(_BETWEEN)
    assert not other.rollouts.drains
    with pytest.raises(InputError, match="there is none before"):
        take_back(config, None)
    other.has_another("held", held=("charging",))
    other.has_another("late")
    other.has_another("later", sequence=5)
    other.watch()
    assert other.offered == ["late"]
    (failed,) = [one for one in read_rollout(config).devices if one.state == "failed"]
    assert (failed.device_id, failed.rule) == ("later", "sequence")
    assert "--sequence 6" in failed.reason

    # A bundle of the same layout may follow, for the devices that have the run's.
    publish(config, tiny_bundle(tmp_path / "six.pfb", key, sequence=6), RolloutSettings(first=80))
    other.has_another("last")
    other.watch()
    assert "last" not in other.offered


def test_where_no_device_lacks_it_a_runs_own_bundle_is_through_at_once(fleet, new):
    publish_own(fleet.config, max_failures=0.2)
    fleet.watch()
    assert read_rollout(fleet.config).rollout.state == "complete"
    publish(fleet.config, new, RolloutSettings())  # what was meant, perhaps


def test_only_the_bundle_that_a_run_has_is_its_own(fleet, new):
    elsewhere = msgspec.structs.replace(fleet.config, bundle=new)
    with pytest.raises(InputError, match="the federation file names"):
        publish_own(elsewhere, max_failures=0.2)
    publish(fleet.config, new, RolloutSettings(first=40))
    fleet.complete()
    with pytest.raises(InputError, match="nothing to do"):
        publish_own(fleet.config, max_failures=0.2)


def test_too_many_failures_pause_a_runs_own_bundle(other):
    for name in other.names:
        other.has_another(name)
    publish_own(other.config, max_failures=0.1)
    other.watch()
    for name in other.offered[:4]:
        other.rollouts.refused(name, "rehearsal", "its programs do not run")
    other.watch()
    found = read_rollout(other.config)
    assert found.rollout.state == "paused"
    assert "its programs do not run" in found.rollout.reason
    assert other.offered == []
    assert take_back(other.config, None).rollout.state == "taken_back"


def test_another_process_of_the_coordinator_goes_on(fleet, new):
    publish(fleet.config, new, RolloutSettings())
    fleet.watch()
    (first,) = fleet.offered
    fleet.rollouts.fetched(first)
    fleet.close()
    again = _Fleet(fleet.config, 40)
    again.watch()
    assert again.offered == []
    again.confirm([first])
    again.watch()
    assert len(again.offered) == 1
    again.close()
