"""Devices that drop out, are held by their owners, or are slow, over a real broker."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import numpy as np
import pytest
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.api.results import read_results
from protofleet.coordinator.status import read_status
from protofleet.datasets import DeviceData
from protofleet.federation.settings import load_config
from protofleet.report import write_report

pytestmark = pytest.mark.mosquitto

_CLASSES = ("class0", "class1", "class2")
_TROUBLE = "device_trouble"
_ROUNDS, _DEVICES, _WANTED, _SEED = 6, 8, 5, 22
_SLOW = '[strategy.settings]\noptimiser = {{kind = "sgd", lr = 0.01}}\nepochs = {0}\n'
"""So many passes that a device is killed before it has trained."""


def _of(event, **fields):
    return lambda e: e["event"] == event and all(e[k] == v for k, v in fields.items())


def _all(process, event):
    return [one for one in process.events if one["event"] == event]


def _write(federation, rounds, cohort, extra):
    federation.write(rounds=rounds, extra=extra)
    text = federation.file.read_text()
    federation.file.write_text(text.replace("[cohort]\n", f"[cohort]\n{cohort}\n"))


@pytest.mark.full_size
@pytest.mark.timeout(600)
def test_drop_outs_of_a_tenth_cost_no_round(make_federation, tmp_path, key):
    """In each round every device is SIGKILLed with probability 0.1, and is back in the next."""
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), _DEVICES)
    cohort = f'size = {_WANTED}\nover_selection = 1.3\nselection = "least_recent"'
    _write(federation, _ROUNDS, cohort, _SLOW.format(400))
    names = np.array(federation.devices)
    killed = [names[row] for row in np.random.default_rng(_SEED).random((_ROUNDS, _DEVICES)) < 0.1]
    coordinator = federation.start_coordinator()
    devices = {name: federation.start_device(name) for name in names}
    for round_id, victims in enumerate(killed, 1):
        coordinator.wait_for(_of("round_opened", round_id=round_id))
        for name in victims:
            devices[name].kill()
        coordinator.wait_for(_of("round_closed", round_id=round_id))
        devices |= {name: federation.start_device(name) for name in victims}
    assert coordinator.finish() == 0, coordinator.log
    assert sum(map(len, killed)) >= _ROUNDS
    opened, closed = (_all(coordinator, f"round_{what}") for what in ("opened", "closed"))
    assert [len(one["cohort"]) for one in opened] == [7] * _ROUNDS
    assert [(one["round_id"], one["participants"]) for one in closed] == [
        (round_id, _WANTED) for round_id in range(1, _ROUNDS + 1)
    ]
    assert _all(coordinator, "round_extended") == []
    cohorts = [set(one["cohort"]) for one in opened]
    assert all(one | after == set(names) for one, after in pairwise(cohorts))
    received = [(one["round_id"], one["device_id"]) for one in _all(coordinator, "update_received")]
    assert len(received) == len(set(received)) == _WANTED * _ROUNDS


@pytest.mark.slow(seconds=8)
@pytest.mark.timeout(300)
def test_a_device_that_its_owner_holds_is_told_of_and_takes_part_when_it_may(
    make_federation, tmp_path, key
):
    """And one whose training takes too long does a part of it from the next round on."""
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    _write(federation, 3, "", _SLOW.format(40) + "[stragglers]\nbudget_s = 0.0001\n")
    policy = tmp_path / "policy.toml"
    policy.write_text("data_per_month_mb = 0\n")
    coordinator = federation.start_coordinator()
    held = federation.start_device("device0", policy=str(policy))
    free = federation.start_device("device1")
    coordinator.wait_for(_of("device_held", device_id="device0"))
    held.wait_for(_of("held", conditions=["data-per-month"]))
    coordinator.wait_for(_of("device_online", device_id="device1"))
    assert _all(coordinator, "round_opened") == []
    status = _status_of(federation)
    assert [(one.device_id, one.conditions) for one in status.held] == [
        ("device0", ("data-per-month",))
    ]
    policy.write_text("")  # it looks again within 20 s
    held.wait_for(_of("free"))
    assert coordinator.finish() == 0, coordinator.log
    assert [held.finish(), free.finish()] == [0, 0]
    assert [one["participants"] for one in _all(coordinator, "round_closed")] == [2, 2, 2]
    steps = [len(one["train_step_ms"]) for one in _details(federation)]
    # 40 epochs of two batches in the first round, a tenth of them in the two others.
    assert steps == [80 + 8 + 8] * 2


@pytest.mark.slow(seconds=5)
def test_data_off_their_scale_and_a_training_that_diverges_are_told_of(
    make_federation, tmp_path, key
):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    _write(federation, 1, "", _SLOW.format(1))
    x, y = tiny_data(1, 30)
    own = DeviceData(
        x_train=x * np.float32(1e30), y_train=y, x_test=x[:9], y_test=y[:9], classes=_CLASSES
    )
    own.save(federation.folder / "device1.npz")
    coordinator = federation.start_coordinator()
    devices = [federation.start_device(name) for name in federation.devices]
    assert coordinator.finish() == 0, coordinator.log
    assert [one.finish() for one in devices] == [0, 0]
    told = [(one["device_id"], one["what"].split(",")[0]) for one in _all(coordinator, _TROUBLE)]
    assert told == [
        ("device1", "the training examples are far from the bundle's scale"),
        ("device1", "training ended in NaN or infinity in the last round"),
    ]
    assert "device data: values have a standard deviation of " in devices[1].log
    results = read_results(federation.run_dir)
    assert results.device_troubles == {"diverged": ("device1",), "scale": ("device1",)}
    assert "scale, on 1 device: device1" in write_report(federation.run_dir).read_text()


def _status_of(federation):
    """As soon as the coordinator has written what holds whom."""
    config = load_config(federation.file)
    while not (status := read_status(config)).held:
        time.sleep(0.05)
    return status


def _details(federation):
    return json.loads((federation.run_dir / "devices.json").read_text())["devices"]
