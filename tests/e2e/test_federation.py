"""Eight device processes, one coordinator process, a real broker, and real SIGKILLs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_bundle import tiny_bundle, tiny_data
from tiny_prototypes import tiny_prototype_bundle

from protofleet.datasets import DeviceData
from protofleet.edge.state.store import read_personal

pytestmark = pytest.mark.mosquitto

_ROUNDS = 5
_FAST_LEARNING = '[strategy.settings]\noptimiser = {kind = "sgd", lr = 0.1}\n'


def _of(event, **fields):
    """Matches a coordinator's event."""
    return lambda e: e["event"] == event and all(e[k] == v for k, v in fields.items())


def _outcome(federation):
    """Everything that must not depend on faults."""
    result = json.loads((federation.run_dir / "result.json").read_text())
    rounds = [(r["round_id"], r["participants"], r["scores"]) for r in result["rounds"]]
    tensors = (federation.run_dir / "global.safetensors").read_bytes()
    return tensors, result["scores"], rounds, [d["id"] for d in result["devices"]]


def _undisturbed(federation):
    coordinator = federation.start_coordinator()
    devices = [federation.start_device(name) for name in federation.devices]
    assert coordinator.finish() == 0, coordinator.log
    assert [device.finish() for device in devices] == [0] * len(devices)
    return coordinator


@pytest.mark.slow(seconds=15)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("write", [tiny_bundle, tiny_prototype_bundle], ids=["fedavg", "fedali"])
def test_killed_device_and_coordinator_change_no_bit(make_federation, tmp_path, key, write):
    """A device and the coordinator are SIGKILLed in open rounds; tensors and scores stay equal."""
    bundle = write(tmp_path / "tiny.pfb", key)
    calm, rough = make_federation("calm", bundle, 8), make_federation("rough", bundle, 8)
    for federation in (calm, rough):
        federation.write(rounds=_ROUNDS, extra=_FAST_LEARNING)
    _undisturbed(calm)

    coordinator = rough.start_coordinator()
    devices = {name: rough.start_device(name) for name in rough.devices}
    coordinator.wait_for(_of("update_received", round_id=2))
    devices["device5"].kill()
    devices["device5"] = rough.start_device("device5")
    coordinator.wait_for(_of("update_received", round_id=4))
    coordinator.kill()
    again = rough.start_coordinator()
    assert again.finish() == 0, again.log
    assert [device.finish() for device in devices.values()] == [0] * 8

    started = again.events[0]
    assert started["event"] == "started"
    assert started["resumed"]
    assert started["round_id"] in (4, 5)
    assert _outcome(rough) == _outcome(calm)


@pytest.mark.slow(seconds=15)
@pytest.mark.timeout(600)
def test_a_rate_is_chosen_alike_though_all_are_killed_meanwhile(make_federation, tmp_path, key):
    """A device while it tries rates, and the coordinator when some have told theirs."""
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    calm, rough = make_federation("calm", bundle, 8), make_federation("rough", bundle, 8)
    left_open = '[strategy.settings]\nepochs = 20\noptimiser = {kind = "sgd", lr = "auto"}\n'
    for federation in (calm, rough):
        federation.write(rounds=3, extra=left_open)
    told = _undisturbed(calm)
    assert [one["event"] for one in told.events].count("calibrated") == 1

    coordinator = rough.start_coordinator()
    devices = {name: rough.start_device(name) for name in rough.devices}
    devices["device5"].wait_for(_of("calibrating"))
    devices["device5"].kill()
    devices["device3"].wait_for(_of("calibrated"))
    coordinator.kill()
    devices["device5"] = rough.start_device("device5")
    again = rough.start_coordinator()
    assert again.finish() == 0, again.log
    assert [device.finish() for device in devices.values()] == [0] * 8
    assert _outcome(rough) == _outcome(calm)
    found, expected = (
        json.loads((one.run_dir / "result.json").read_text())["calibration"]
        for one in (rough, calm)
    )
    assert found == expected
    assert found["devices"] == 8


@pytest.mark.slow(seconds=3)
def test_the_result_has_scores_bytes_and_latencies_of_every_device(make_federation, tmp_path, key):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 3)
    federation.write(rounds=3)
    coordinator = _undisturbed(federation)
    result = json.loads((federation.run_dir / "result.json").read_text())
    assert (result["strategy"], result["seed"]) == ("fedavg", 3)
    sections = ("personalisation", "generalisation", "global")
    assert result["scores"].keys() == {*sections, "own_loss"}
    assert 0 < result["scores"]["own_loss"]["mean"] < 2
    for section in (result["scores"][name] for name in sections):
        assert 0.3 < section["macro_f1"]["mean"] <= 1
        assert section["accuracy"]["std"] >= 0
    assert [r["round_id"] for r in result["rounds"]] == [1, 2, 3]
    assert not any(r["final"] for r in result["rounds"])
    for one in result["rounds"]:
        assert one["participants"] == 3
        assert one["bytes_up"] > 3 * 60
        assert one["bytes_down"] > 3 * 60
    for device in result["devices"]:
        assert device["bytes_up"] > sum(r["bytes_up"] for r in result["rounds"]) / 6
        assert device["train_step_ms"].keys() == {"p50", "p95"}
        assert device["infer_ms"].keys() == {"p50", "p95", "p99"}
        assert device["peak_rss_bytes"] > 10**7
    details = json.loads((federation.run_dir / "devices.json").read_text())
    assert sum(map(sum, details["devices"][0]["evaluation"]["own"])) == 20
    assert sum(map(sum, details["devices"][0]["evaluation"]["pooled"])) == 60
    order = [e["event"] for e in coordinator.events if e["event"].startswith("round_")]
    assert order == ["round_opened", "round_closed"] * 3
    assert coordinator.events[-1]["event"] == "finished"


@pytest.mark.slow(seconds=4)
def test_a_device_that_diverges_is_named_and_stays(make_federation, tmp_path, key):
    """From round 2 on one has values that no float32 model survives; it ends with round 1's."""
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    federation.write(rounds=3, extra=_FAST_LEARNING)
    x, y = tiny_data(0, 30)
    extreme = DeviceData(
        x_train=x * np.float32(1e30),
        y_train=(y + 1) % 3,
        x_test=x,
        y_test=y,
        classes=("class0", "class1", "class2"),
    )
    extreme.save(tmp_path / "extreme.npz")
    coordinator = federation.start_coordinator()
    options = {"data-from": f"2:{tmp_path / 'extreme.npz'}"}
    devices = [federation.start_device("device0", **options), federation.start_device("device1")]
    assert coordinator.finish() == 0, coordinator.log
    assert [device.finish() for device in devices] == [0, 0]
    refused = [event for event in coordinator.events if event["event"] == "task_refused"]
    # A device that presents itself anew before the round is closed is asked once more.
    told = dict.fromkeys((e["round_id"], e["device_id"], e["rule"]) for e in refused)
    assert list(told) == [(2, "device0", "diverged"), (3, "device0", "diverged")]
    assert "expected a finite loss of 'task_loss'" in refused[0]["reason"]
    closed = [e for e in coordinator.events if e["event"] == "round_closed"]
    assert [e["participants"] for e in closed] == [2, 1, 1]
    assert read_personal(federation.folder / "store-device0")[1].round_id == 1
    assert "not normalised?" in devices[0].log


@pytest.mark.slow(seconds=3)
def test_a_terminated_coordinator_says_how_to_resume(make_federation, tmp_path, key):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    federation.write(rounds=2)
    coordinator = federation.start_coordinator()
    coordinator.wait_for(_of("waiting"))
    coordinator.terminate()
    assert coordinator.finish() == 143
    assert f"protofleet coordinator run {federation.file}" in coordinator.log
    # An upload that a crash cut off between rounds; nobody will ask for it again.
    leftover = federation.run_dir / "partial" / "device0"
    leftover.mkdir(parents=True)
    (leftover / "blob.part").write_bytes(b"half")
    _undisturbed(federation)
    assert not (leftover / "blob.part").exists()


@pytest.mark.slow(seconds=5)
def test_a_run_that_reaches_its_target_sends_its_devices_home(make_federation, tmp_path, key):
    """None of them takes the end for a mistake: they knew of another last round."""
    federation = make_federation("short", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    federation.write(rounds=300, extra=f"[stop]\ntarget = 0.5\n{_FAST_LEARNING}")
    coordinator = federation.start_coordinator()
    devices = [federation.start_device(name) for name in federation.devices]
    assert coordinator.finish() == 0, coordinator.log
    assert [device.finish() for device in devices] == [0, 0]
    (ended,) = [one for one in coordinator.events if one["event"] == "ended_early"]
    assert (ended["planned"], ended["why"]) == (300, "target")
    result = json.loads((federation.run_dir / "result.json").read_text())
    assert len(result["rounds"]) == ended["after"] < 20
    assert not [device.log for device in devices if "expected it behind round" in device.log]
