"""Schedules other than rounds that wait for all: real processes, a real broker, real SIGKILLs."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_bundle import tiny_bundle, tiny_data, trust_in_tests

from protofleet.cli.coordinator import coordinator as commands
from protofleet.coordinator.ledger.control import Orders, Wish
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.status import read_status
from protofleet.datasets import DeviceData
from protofleet.experiments._worker import ClientFiles, ClientTrainer, WorkerSpec, WorkerTask
from protofleet.federation.plan import make_plan
from protofleet.federation.replay import replay
from protofleet.federation.server import Server
from protofleet.federation.settings import load_config
from protofleet.tensors import blobs

pytestmark = pytest.mark.mosquitto

_ROUNDS, _FEATURES = 8, 40
_LEARNING = '[strategy.settings]\noptimiser = {kind = "sgd", lr = 0.1}\n'
_BUFFERED = '[schedule]\nkind = "buffered"\nbuffer = 2\n[limits]\nkeep_states = 20\n'


def _of(event, **fields):
    """Matches a coordinator's event."""
    return lambda e: e["event"] == event and all(e[k] == v for k, v in fields.items())


def _command(*arguments):
    """Of an operator."""
    found = CliRunner().invoke(commands, [*map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0, found.output


def _ledger(federation):
    plan = make_plan(load_config(federation.file))
    return plan, Ledger(federation.run_dir, plan.identity)


def _widen(federation):
    """Data for the devices whose tensors are large enough to be coded."""
    classes, tests = ("class0", "class1", "class2"), []
    for index, name in enumerate(federation.devices):
        x, y = tiny_data(index, 30 + index, features=_FEATURES)
        tests.append(tiny_data(1000 + index, 20, features=_FEATURES))
        (x_test, y_test) = tests[-1]
        data = DeviceData(x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=classes)
        data.save(federation.folder / f"{name}.npz")
    x, y = (np.concatenate(part) for part in zip(*tests, strict=True))
    pooled = DeviceData(x_train=x[:0], y_train=y[:0], x_test=x, y_test=y, classes=classes)
    pooled.save(federation.pooled)


def _replayed(federation, plan, admissions):
    """The states of the run, trained anew in this process from the order in its ledger."""
    files = {
        name: ClientFiles(own=federation.folder / f"{name}.npz") for name in federation.devices
    }
    spec = WorkerSpec(
        label="replay",
        bundle=federation.bundle,
        strategy=plan.strategy.description.name,
        settings=plan.settings,
        clients=files,
        pooled=federation.pooled,
    )
    trainer, kept, held = ClientTrainer(spec), {}, {}

    def answer(client_id, order, sent):
        before = kept.get(client_id)
        task = WorkerTask(
            client_id=client_id,
            order=order,
            payload=sent.blob,
            coding=sent.coding,
            baseline=held.get(sent.coding.reference, b""),
            before=before.round_id if before else 0,
        )
        result, kept[client_id] = trainer.train(task, before)
        held[sent.held] = sent.raw
        return bytes(result.update), result.coding

    return [dict(state.tensors) for state in replay(Server.of(plan), admissions, answer)]


def _states(folder: Path):
    """Of the rounds, as the ledger keeps them."""
    files = sorted((folder / "states").iterdir())
    return [blobs.decode(file.read_bytes(), max_bytes=1 << 20)[0] for file in files]


def _assert_same_bits(one, two):
    assert len(one) == len(two)
    for left, right in zip(one, two, strict=True):
        assert left.keys() == right.keys()
        assert [left[n].tobytes() for n in left] == [right[n].tobytes() for n in left]


@pytest.mark.slow(seconds=20)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_killed_device_and_coordinator_and_the_order_in_the_ledger_gives_the_same_bits(
    make_federation, tmp_path, key, codec
):
    """Each admitted update counts once; whoever trains them anew in that order has every state."""
    trust_in_tests(key)
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key, features=_FEATURES)
    rough = make_federation("rough", bundle, 5)
    codecs = f'[codec]\nup = "{codec}"\ndown = "{codec}"\n'
    rough.write(rounds=_ROUNDS, extra=_LEARNING + _BUFFERED + codecs)
    _widen(rough)
    coordinator = rough.start_coordinator()
    devices = {name: rough.start_device(name) for name in rough.devices}
    coordinator.wait_for(_of("round_closed", round_id=2))
    devices["device3"].kill()
    devices["device3"] = rough.start_device("device3")
    coordinator.wait_for(_of("round_opened", round_id=4))
    coordinator.kill()
    devices["device1"].kill()
    again = rough.start_coordinator()
    devices["device1"] = rough.start_device("device1")
    assert again.finish() == 0, again.log
    assert [device.finish() for device in devices.values()] == [0] * 5

    plan, ledger = _ledger(rough)
    with ledger:
        admissions = ledger.admissions()
        committed = ledger.committed()
    assert [done.round_id for done in committed] == list(range(1, _ROUNDS + 1))
    assert len({(one.client_id, one.round_id) for one in admissions}) == len(admissions)
    assert len(admissions) == sum(done.participants for done in committed)
    assert all(0 <= one.counted_in - one.round_id <= 20 for one in admissions)
    assert any(one.counted_in > one.round_id for one in admissions)
    received = [e for e in coordinator.events + again.events if e["event"] == "update_received"]
    assert len(received) in (len(admissions), len(admissions) - 1)  # killed before it was told
    _assert_same_bits(_replayed(rough, plan, admissions), _states(rough.run_dir))
    result = json.loads((rough.run_dir / "result.json").read_text())
    assert max(one["staleness"] for one in result["rounds"]) > 0


@pytest.mark.slow(seconds=12)
@pytest.mark.timeout(600)
def test_an_update_behind_its_round_counts_in_the_next_and_a_pause_lets_it_come(
    make_federation, tmp_path, key
):
    """A device stands still in round 2, which closes by its deadline without it."""
    trust_in_tests(key)
    federation = make_federation("late", tiny_bundle(tmp_path / "tiny.pfb", key), 3)
    late = '[schedule]\nlate = "weighted"\nmax_staleness = 3\n'
    rules = "[round]\ndeadline_s = 6.0\nquorum = 2\n[limits]\nkeep_states = 20\n"
    federation.write(rounds=5, extra=_LEARNING + late + rules)
    file = federation.file
    file.write_text(file.read_text().replace("minimum = 3", "minimum = 2"))
    coordinator = federation.start_coordinator()
    devices = {name: federation.start_device(name) for name in federation.devices}
    coordinator.wait_for(_of("update_received", device_id="device2"))
    still = devices["device2"]
    still.signal(signal.SIGSTOP)
    coordinator.wait_for(lambda e: e["event"] == "round_closed" and e["participants"] == 2)
    config = load_config(file)
    with closing(Orders(config.run_dir)) as orders:
        orders.wish(Wish.PAUSE)
    coordinator.wait_for(_of("paused"))
    assert read_status(config).late == ("device2",)
    still.signal(signal.SIGCONT)
    coordinator.wait_for(
        lambda e: e["event"] == "update_received" and e["counted_in"] > e["round_id"]
    )
    with closing(Orders(config.run_dir)) as orders:
        orders.wish(Wish.RUN)
    assert coordinator.finish() == 0, coordinator.log
    assert [device.finish() for device in devices.values()] == [0] * 3
    plan, ledger = _ledger(federation)
    with ledger:
        admissions = ledger.admissions()
    assert [one.client_id for one in admissions if one.counted_in > one.round_id] == ["device2"]
    _assert_same_bits(_replayed(federation, plan, admissions), _states(federation.run_dir))


@pytest.mark.slow(seconds=12)
@pytest.mark.timeout(600)
def test_stopped_extended_paused_and_resumed_a_buffered_run_ends_in_the_order_of_its_ledger(
    make_federation, tmp_path, key
):
    """Devices train on while it is stopped; each update counts once, and they leave at the end."""
    trust_in_tests(key)
    run = make_federation("run", tiny_bundle(tmp_path / "tiny.pfb", key, features=_FEATURES), 4)
    run.write(rounds=_ROUNDS, extra=_LEARNING + _BUFFERED)
    _widen(run)
    first = run.start_coordinator()
    devices = [run.start_device(name) for name in run.devices]
    first.wait_for(_of("round_closed", round_id=2))
    _command("stop", run.file)
    assert first.finish() == 0, first.log
    assert first.events[-1]["event"] == "stopped"
    assert all(device.is_running for device in devices)

    second = run.start_coordinator()
    second.wait_for(_of("round_closed"))
    _command("pause", run.file)
    second.wait_for(_of("paused"))
    _command("extend", run.file, _ROUNDS + 4)
    second.wait_for(_of("rounds_raised", rounds=_ROUNDS + 4))
    closed = len([e for e in second.events if e["event"] == "round_closed"])
    _command("resume", run.file)
    second.wait_for(
        lambda _: len([e for e in second.events if e["event"] == "round_closed"]) > closed
    )
    _command("stop", run.file, "--now")
    assert second.finish() == 0, second.log

    third = run.start_coordinator()
    assert third.finish() == 0, third.log
    assert third.events[0]["rounds"] == _ROUNDS + 4
    assert [device.finish() for device in devices] == [0] * 4
    plan, ledger = _ledger(run)
    with ledger:
        admissions, committed = ledger.admissions(), ledger.committed()
    assert [done.round_id for done in committed] == list(range(1, _ROUNDS + 5))
    assert len({(one.client_id, one.round_id) for one in admissions}) == len(admissions)
    assert len(admissions) == sum(done.participants for done in committed)
    _assert_same_bits(_replayed(run, plan, admissions), _states(run.run_dir))
