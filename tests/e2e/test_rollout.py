"""Bundles that take each other's place while a federation runs: real devices, a real broker."""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import onnx
import pytest
import tiny_bundle as tiny_bundle_module
import torch
from click.testing import CliRunner
from tiny_bundle import PROGRAMS, tiny_bundle

from protofleet.benchmarks._keys import enrol_here
from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.cli.bundle import bundle as commands
from protofleet.cli.coordinator import coordinator as of_coordinators
from protofleet.edge.state.journal import bundle_path
from protofleet.edge.state.store import Store, load_state
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.models import build_model

pytestmark = [pytest.mark.mosquitto, pytest.mark.timeout(300)]

_SETTINGS = {"epochs": 60, "batch_size": 16, "optimiser": {"kind": "sgd", "lr": 0.05}}


def _of(kind, **fields):
    wanted = {"event": kind, **fields}
    return lambda event: all(event.get(key) == value for key, value in wanted.items())


def _say(*arguments):
    """A command's answer, as JSON."""
    found = CliRunner().invoke(commands, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.output)


def _climbing():
    """A training program whose gradients point the wrong way."""
    model = onnx.load(PROGRAMS / "4x3" / "train.onnx")
    for name in ("dw", "db"):
        for node in model.graph.node:
            node.output[:] = [f"{name}_right" if one == name else one for one in node.output]
        model.graph.node.append(onnx.helper.make_node("Neg", [f"{name}_right"], [name]))
    return model.SerializeToString()


def _bundle(tmp_path, key, sequence, **programs):
    path = tmp_path / f"tiny{sequence}.pfb"
    tiny_bundle(path, key, settings=_SETTINGS, sequence=sequence, **programs)
    return path, Bundle.open(path, any_signer=True).digest


def _closed(process):
    return [event for event in process.events if event["event"] == "round_closed"]


def _await_rounds(process, count=2):
    seen = len(_closed(process))
    process.wait_for(lambda _: len(_closed(process)) >= seen + count)


@pytest.mark.full_size
def test_a_sick_bundle_goes_back_and_a_sound_one_reaches_all_while_rounds_go_on(  # noqa: PLR0915 - one federation's long day
    make_federation, tmp_path, key
):
    first, old = _bundle(tmp_path, key, 1)
    broken, torn = _bundle(
        tmp_path, key, 2, train=(PROGRAMS / "4x3" / "features.onnx").read_bytes()
    )
    sick, ill = _bundle(tmp_path, key, 3, train=_climbing())
    sound, new = _bundle(tmp_path, key, 4)
    run = make_federation("run", first, 3)
    run.write(rounds=5000)
    coordinator = run.start_coordinator()
    devices = {name: run.start_device(name) for name in run.devices}
    _await_rounds(coordinator, 3)

    # Its programs do not run: the first device's rehearsal finds out, and nobody else fetches it.
    told = _say("publish", run.file, broken)
    assert (told["rollout"]["state"], told["rollout"]["target"]) == ("running", torn)
    coordinator.wait_for(_of("bundle_rollout", bundle=torn, state="taken_back"))
    told = _say("status", run.file)
    assert (told["active"], told["counts"]) == (old, {"failed": 1})
    assert told["devices"][0]["rule"] == "rehearsal"

    # It runs, and makes models worse: the first device's round shows it, and the device goes back.
    _say("publish", run.file, sick)
    coordinator.wait_for(_of("bundle_rollout", bundle=ill, state="taken_back"))
    told = _say("status", run.file)
    failed = [one for one in told["devices"] if one["state"] == "failed"]
    assert (told["active"], {one["rule"] for one in failed}) == (old, {"health"})
    devices[failed[0]["device_id"]].wait_for(_of("switched", bundle=old, taken_back=True))
    _await_rounds(coordinator)
    assert _closed(coordinator)[-1]["participants"] == 3

    # Sound, by hand, over kills of coordinator and device.
    _say("publish", run.file, sound, "--by-hand")
    coordinator.wait_for(_of("bundle_rollout", bundle=new, state="waiting"))
    assert [one["state"] for one in _say("status", run.file)["devices"]] == ["confirmed"]
    _await_rounds(coordinator)
    assert _closed(coordinator)[-1]["participants"] == 3  # with either bundle
    _say("next", run.file)
    coordinator.wait_for(_of("bundle_rollout", bundle=new, state="waiting", stage="rest"))
    coordinator.kill()
    devices["device2"].kill()
    _say("next", run.file)
    coordinator = run.start_coordinator()
    devices["device2"] = run.start_device("device2")
    coordinator.wait_for(_of("bundle_switched", bundle=new, former=old))
    coordinator.wait_for(_of("started", bundle=new, sequence=4))
    _await_rounds(coordinator, 3)
    assert _closed(coordinator)[-1]["participants"] == 3
    told = _say("status", run.file)
    assert (told["active"], told["counts"]) == (new, {"confirmed": 3})

    # Taken back once it is the run's own: on its signer's word, and a restart goes on with that.
    signing = tmp_path / "signing-key.pem"
    _write_key(signing, key)
    told = _say("rollback", run.file, "--key", signing)
    assert told["active"] == old
    coordinator.wait_for(_of("started", bundle=old))
    for device in devices.values():
        device.wait_for(_of("switched", bundle=old, former=new, taken_back=True))
    _await_rounds(coordinator, 3)
    assert _closed(coordinator)[-1]["participants"] == 3
    coordinator.terminate()
    for device in devices.values():
        device.terminate()
    numbers = [event["round_id"] for event in _closed(coordinator)]
    assert numbers == sorted(set(numbers))  # none was lost or repeated


@pytest.mark.slow(seconds=40)
@pytest.mark.parametrize(
    "schedule", ["synchronous", pytest.param("buffered", marks=pytest.mark.full_size)]
)
def test_with_keys_a_sick_bundle_goes_back_and_a_sound_one_comes_and_goes(
    make_federation, tmp_path, key, schedule
):
    """In a buffered schedule no round waits for anybody, and devices' tasks overlap the switch."""
    first, old = _bundle(tmp_path, key, 1)
    sick, ill = _bundle(tmp_path, key, 2, train=_climbing())
    sound, new = _bundle(tmp_path, key, 3)
    run = make_federation("run", first, 3)
    stores = {name: run.folder / f"store-{name}" for name in run.devices}
    enrol_here(run.folder / "federation", "home", stores, run.url)
    buffered = schedule == "buffered"
    run.write(rounds=5000, extra='[schedule]\nkind = "buffered"\nbuffer = 2\n' * buffered)
    run.file.write_text('keys = "federation"\n' + run.file.read_text())
    coordinator = run.start_coordinator()
    devices = {name: run.start_device(name) for name in run.devices}
    _await_rounds(coordinator, 3)

    _say("publish", run.file, sick)
    coordinator.wait_for(_of("bundle_rollout", bundle=ill, state="taken_back"))
    told = _say("status", run.file)
    failed = [one for one in told["devices"] if one["state"] == "failed"]
    assert (told["active"], [one["rule"] for one in failed]) == (old, ["health"])
    devices[failed[0]["device_id"]].wait_for(_of("switched", bundle=old, taken_back=True))
    _await_rounds(coordinator)

    _say("publish", run.file, sound)
    coordinator.wait_for(_of("bundle_switched", bundle=new, former=old))
    coordinator.wait_for(_of("started", bundle=new, sequence=3))
    _await_rounds(coordinator, 4)
    told = _say("status", run.file)
    assert (told["active"], told["counts"]) == (new, {"confirmed": 3})

    signing = tmp_path / "signing-key.pem"
    _write_key(signing, key)
    assert _say("rollback", run.file, "--key", signing)["active"] == old
    for device in devices.values():
        device.wait_for(_of("switched", bundle=old, former=new, taken_back=True))
    _await_rounds(coordinator, 4)
    for process in (coordinator, *devices.values()):
        process.terminate()
    numbers = [event["round_id"] for event in _closed(coordinator)]
    assert numbers == list(range(1, numbers[-1] + 1))
    counted = [
        (event["device_id"], event["round_id"])
        for event in coordinator.events
        if event["event"] == "update_received"
    ]
    assert len(counted) == len(set(counted))


@pytest.mark.slow(seconds=40)
def test_cut_by_power_loss_at_one_write_after_the_other_the_upgrade_comes_through(
    make_federation, tmp_path, key
):
    """Each process of the device dies one write later than the one before it."""
    first, old = _bundle(tmp_path, key, 1)
    later, new = _bundle(tmp_path, key, 2)
    run = make_federation("run", first, 1)
    run.write(rounds=5000)
    coordinator = run.start_coordinator()
    device = run.start_device("device0")
    _await_rounds(coordinator)
    device.kill()
    _say("publish", run.file, later)
    store, seen = run.folder / "store-device0", set()
    for fatal in itertools.count(2, 2):
        device = run.start_device("device0", _deadly(tmp_path, fatal))
        until = time.monotonic() + 60
        while device.is_running and time.monotonic() < until and not _has(coordinator, new):
            time.sleep(0.02)
        if _has(coordinator, new):
            break
        assert not device.is_running, device.log
        with Store.open(store) as opened:
            bundle = opened.journal.binding.bundle
            path = bundle_path(store, bundle)
            assert Bundle.open(path, any_signer=True).digest == bundle
            assert opened.load_memory().state is not None
            seen.add(bundle)
    assert old in seen
    device.kill()
    device = run.start_device("device0")
    _await_rounds(coordinator)
    told = _say("status", run.file)
    assert (told["active"], told["counts"]) == (new, {"confirmed": 1})
    numbers = [event["round_id"] for event in _closed(coordinator)]
    assert numbers == sorted(set(numbers))


def _perceptron(path, key, hidden, sequence):
    torch.manual_seed(sequence)
    spec = BundleSpec(
        name=path.stem,
        strategy="ditto",
        settings={"epochs": 1, "batch_size": 16, "optimiser": {"kind": "sgd", "lr": 0.05}},
        classes=("class0", "class1", "class2"),
        preprocessing=Preprocessing(input_shape=(4,)),
        sequence=sequence,
    )
    export_bundle(build_model("mlp", inputs=4, hidden=hidden, classes=3), spec, out=path, key=key)
    return path, Bundle.open(path, any_signer=True).digest


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("keyed", [pytest.param(False, marks=pytest.mark.full_size), True])
def test_devices_of_a_run_before_fetch_a_bundle_of_another_layout_and_take_along_what_fits(
    make_federation, tmp_path, key, keyed
):
    first, old = _perceptron(tmp_path / "first.pfb", key, (8, 8), 1)
    wider, new = _perceptron(tmp_path / "wider.pfb", key, (8, 12), 2)
    run = make_federation("run", first, 2)
    stores = {name: run.folder / f"store-{name}" for name in run.devices}
    if keyed:
        enrol_here(run.folder / "federation", "home", stores, run.url)

    def write(rounds):
        run.write(rounds=rounds)
        run.file.write_text('keys = "federation"\n' * keyed + run.file.read_text())

    write(5000)
    coordinator = run.start_coordinator()
    devices = {name: run.start_device(name) for name in run.devices}
    _await_rounds(coordinator, 3)
    stopped = CliRunner().invoke(of_coordinators, ["stop", str(run.file)])
    assert stopped.exit_code == 0, stopped.output
    assert coordinator.finish() == 0

    # Another run: what devices were told and have trained for the one before is over.
    run.bundle = wider
    write(3)
    run.file.write_text(run.file.read_text().replace('run_dir = "run"', 'run_dir = "other"'))
    coordinator = run.start_coordinator()
    coordinator.wait_for(_of("device_refused", rule="bundle"))
    assert _say("publish", run.file)["rollout"]["target"] == new
    devices["device0"].wait_for(_of("switched", bundle=new, former=old))
    devices["device1"].kill()  # wherever it stands; it is started as ever
    run.bundle = first
    devices["device1"] = run.start_device("device1")
    assert coordinator.finish() == 0, coordinator.log
    told = _say("status", run.file)
    assert (told["active"], told["counts"]) == (new, {"confirmed": 2})

    (switched,) = filter(_of("switched"), devices["device0"].events)
    tensors = switched["tensors"]
    kept = [name for name in tensors["kept"] if name.startswith("params/")]
    assert kept == ["params/body.0.bias", "params/body.0.weight", "params/head.bias"]
    assert "params/head.weight" in tensors["new"]
    assert all(device.finish() == 0 for device in devices.values())
    for store in stores.values():
        with Store.open(store) as opened:
            journal = opened.journal
            assert (journal.binding.bundle, journal.last_round_id) == (new, 3)
            assert journal.fallback.binding.bundle == old
            assert load_state(store, journal.fallback.state).round_id >= 3


def _has(coordinator, bundle):
    return any(map(_of("started", bundle=bundle), list(coordinator.events)))


def _deadly(folder, fatal):
    """A Python whose ``protofleet`` is killed before its ``fatal``-th write."""
    path = folder / f"deadly-{fatal}"
    script = Path(tiny_bundle_module.__file__).with_name("deadly_device.py")
    path.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {script} {fatal} "$@"\n')
    path.chmod(0o700)
    return str(path)


def _write_key(path, key):
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)
