"""An operator's commands on a running coordinator: other processes, SIGKILL, the same bits."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_bundle as tiny_bundle_module
from click.testing import CliRunner
from tiny_bundle import tiny_bundle

from protofleet.benchmarks._keys import enrol_here
from protofleet.cli.coordinator import coordinator as commands
from protofleet.edge.state.journal import read_journal

pytestmark = [pytest.mark.mosquitto, pytest.mark.timeout(300)]


def _of(kind, **fields):
    wanted = {"event": kind, **fields}
    return lambda event: all(event.get(key) == value for key, value in wanted.items())


def _say(*arguments):
    """A command's answer, as JSON."""
    found = CliRunner().invoke(commands, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.output)


def _model(federation):
    return (federation.run_dir / "global.safetensors").read_bytes()


@pytest.mark.slow(seconds=12)
def test_paused_killed_extended_stopped_and_resumed_it_ends_in_the_same_bits(
    make_federation, tmp_path, key
):
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    calm, run = make_federation("calm", bundle, 3), make_federation("run", bundle, 3)
    calm.write(rounds=16)
    run.write(rounds=14)
    undisturbed = calm.start_coordinator()
    devices = [calm.start_device(name) for name in calm.devices]
    assert undisturbed.finish() == 0, undisturbed.log
    assert [device.finish() for device in devices] == [0] * 3

    first = run.start_coordinator()
    devices = [run.start_device(name) for name in run.devices]
    first.wait_for(_of("round_closed", round_id=1))
    assert _say("status", run.file)["served"]
    assert _say("pause", run.file)["taken"]
    first.wait_for(lambda event: event["event"] == "paused")
    first.kill()
    told = _say("status", run.file)
    assert (told["operation"], told["served"]) == ("paused", False)
    closed = told["committed"]

    second = run.start_coordinator()
    second.wait_for(lambda event: event["event"] == "paused")
    second.wait_for(_of("device_online", live=3))
    time.sleep(0.3)
    assert not [event for event in second.events if event["event"] == "round_opened"]
    assert _say("extend", run.file, 16)["rounds"] == 16
    assert _say("resume", run.file)["operation"] == "running"
    second.wait_for(_of("round_opened", round_id=closed + 1))
    assert _say("stop", run.file)["taken"]
    assert second.finish() == 0, second.log
    stopped = second.events[-1]
    assert (stopped["event"], stopped["open"]) == ("stopped", False)
    assert _say("status", run.file)["operation"] == "stopped"

    third = run.start_coordinator()
    assert third.finish() == 0, third.log
    assert third.events[0]["rounds"] == 16
    assert [device.finish() for device in devices] == [0] * 3
    assert _model(run) == _model(calm)


@pytest.mark.slow(seconds=14)
def test_a_second_coordinator_is_refused_follows_the_dead_or_replaces_the_living(
    make_federation, tmp_path, key
):
    """The others have folders of their own, so that no lock is between them."""
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    run = make_federation("run", bundle, 2)
    run.write(rounds=60, extra="[liveness]\nlease_s = 5.0\n")
    first = run.start_coordinator()
    devices = [run.start_device(name) for name in run.devices]
    first.wait_for(_of("round_closed", round_id=2))
    _say("pause", run.file)
    first.wait_for(lambda event: event["event"] == "paused")

    beside = _copied(run, "beside")
    refused = beside.start_coordinator()
    assert refused.finish() == 1
    assert "another coordinator serves it" in refused.log
    assert [one["event"] for one in refused.events] == ["started"]
    here = run.start_coordinator()
    assert here.finish() == 1
    assert "another coordinator is running in it" in here.log

    second = beside.start_coordinator("--take-over")
    assert first.finish() == 1
    assert "another coordinator has taken over" in first.log
    assert first.events[-1]["event"] == "lease_lost"
    _say("resume", beside.file)
    second.wait_for(lambda event: event["event"] == "round_closed")
    _say("pause", beside.file)
    second.wait_for(lambda event: event["event"] == "paused")
    second.kill()

    after = _copied(beside, "after")
    third = after.start_coordinator("--wait")
    third.wait_for(lambda event: event["event"] == "lease_awaited")
    _say("resume", after.file)
    assert third.finish() == 0, third.log
    assert [device.finish() for device in devices] == [0] * 2
    closed = [one for one in third.events if one["event"] == "round_closed"]
    assert closed[-1]["round_id"] == 60
    assert all(one["participants"] == 2 for one in closed)


def _copied(federation, name):
    """The federation with a copy of its folder, taken while it is in use by nobody or somebody."""
    folder = federation.folder.parent / name
    # Files of rounds that are over go while it is copied.
    shutil.copytree(federation.folder, folder, ignore=shutil.ignore_patterns("store-*", "removed"))
    return replace(federation, folder=folder)


@pytest.mark.slow(seconds=14)
@pytest.mark.parametrize("ends", ["stays away", "is started again"])
def test_a_device_killed_before_its_last_receipt_keeps_the_round_that_counts(
    make_federation, tmp_path, key, ends
):
    """The coordinator has ended when it is back, or is started once more behind the end."""
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    run = make_federation("run", bundle, 2)
    run.write(rounds=2, extra="[liveness]\ngrace_s = 1.0\n")
    coordinator = run.start_coordinator()
    told = run.start_device("device0")
    untold = run.start_device("device1", _untold(tmp_path, 2))
    assert coordinator.finish() == 0, coordinator.log
    assert (told.finish(), untold.finish()) == (0, -signal.SIGKILL)
    store = run.folder / "store-device1"
    trained = read_journal(store).pending.state
    assert trained.round_id == 2
    if ends == "is started again":
        again = run.start_coordinator()
        assert again.finish() == 0, again.log
    back = run.start_device("device1")
    assert back.finish() == 0, back.log
    assert [one["round_id"] for one in back.events if one["event"] == "delivered"] == [2]
    journal = read_journal(store)
    assert (journal.stage, journal.state) == ("idle", trained)


def _untold(folder, fatal):
    """A Python whose ``protofleet`` is killed by its receipt for a round."""
    path, script = folder / "untold", Path(tiny_bundle_module.__file__).with_name("dies_untold.py")
    path.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {script} {fatal} "$@"\n')
    path.chmod(0o700)
    return str(path)


@pytest.mark.slow(seconds=10)
def test_two_federations_in_one_process_end_each_on_its_own(make_federation, tmp_path, key):
    """One fails while the other has an open round; Ctrl-C leaves both to be resumed."""
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    home, lab = make_federation("home", bundle, 2), make_federation("lab", bundle, 1)
    home.write(rounds=30)
    lab.write(rounds=30)
    lab.file.write_text(lab.file.read_text().replace('federation = "home"', 'federation = "lab"'))
    both = home.start_coordinator(str(lab.file))
    devices = [home.start_device(name) for name in home.devices]
    both.wait_for(_of("started", federation="lab"))
    other = lab.start_device("device0", federation="lab")
    both.wait_for(_of("round_closed", federation="home", round_id=1))
    both.wait_for(_of("round_closed", federation="lab", round_id=1))
    shutil.rmtree(lab.run_dir / "spool")  # its disk is gone
    shutil.rmtree(lab.run_dir / "states")
    both.wait_for(_of("failed", federation="lab"))
    last = max(one["round_id"] for one in both.events if one["event"] == "round_closed")
    both.wait_for(
        lambda event: (
            event["event"] == "finished"
            or (event["event"] == "round_closed" and event["round_id"] > last)
        ),
    )
    both.terminate()
    # On a slow machine the other federation may have ended: the process ends by itself, too.
    assert both.finish() in (143, 1, -signal.SIGTERM)
    assert {one["federation"] for one in both.events} == {"home", "lab"}
    other.terminate()
    again = home.start_coordinator()
    assert again.finish() == 0, again.log
    assert [device.finish() for device in devices] == [0] * 2


@pytest.mark.slow(seconds=14)
def test_moved_to_another_folder_in_a_round_after_receipts_were_given(
    make_federation, tmp_path, key
):
    """The first coordinator is killed behind the backup; what it received since counts once."""
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    calm, run = make_federation("calm", bundle, 3), make_federation("run", bundle, 3)
    calm.write(rounds=4)
    run.write(rounds=4, extra="[liveness]\nlease_s = 2.0\n")
    undisturbed = calm.start_coordinator()
    devices = [calm.start_device(name) for name in calm.devices]
    assert undisturbed.finish() == 0, undisturbed.log
    assert [device.finish() for device in devices] == [0] * 3

    first = run.start_coordinator()
    late = [run.start_device(name) for name in run.devices[1:]]
    first.wait_for(_of("device_online", live=2))
    for device in late:
        device.signal(signal.SIGSTOP)
    early = run.start_device(run.devices[0])
    first.wait_for(_of("update_received", round_id=1, device_id="device0"))
    _say("backup", run.file, run.folder / "run.tar")
    late[0].signal(signal.SIGCONT)
    first.wait_for(_of("update_received", round_id=1, device_id="device1"))
    late[0].wait_for(_of("delivered", round_id=1))
    first.kill()
    late[1].signal(signal.SIGCONT)

    run.run_dir.rename(run.folder / "dead")
    listed = _say("restore", run.file, run.folder / "run.tar")
    assert (listed["federation"], listed["round_id"], listed["phase"]) == ("home", 1, "open")
    second = run.start_coordinator()
    assert second.finish() == 0, second.log
    assert [device.finish() for device in (early, *late)] == [0] * 3
    received = [
        one["device_id"]
        for one in second.events
        if (one["event"], one.get("round_id")) == ("update_received", 1)
    ]
    assert sorted(received) == ["device1", "device2"]
    closed = [one for one in second.events if one["event"] == "round_closed"]
    assert [one["participants"] for one in closed] == [3] * 4
    assert _model(run) == _model(calm)


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize("without_keys", [pytest.param(False, marks=pytest.mark.full_size), True])
def test_a_backup_of_a_federation_with_keys_goes_on_elsewhere_in_the_middle_of_a_round(
    make_federation, tmp_path, key, without_keys
):
    """Of three updates one is in the backup, one came after it, and one never came."""
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    calm, run = make_federation("calm", bundle, 3), make_federation("run", bundle, 3)
    calm.write(rounds=12)
    undisturbed = calm.start_coordinator()
    devices = [calm.start_device(name) for name in calm.devices]
    assert undisturbed.finish() == 0, undisturbed.log
    assert [device.finish() for device in devices] == [0] * 3

    stores = {name: run.folder / f"store-{name}" for name in run.devices}
    enrol_here(run.folder / "keys", "home", stores, run.url)
    run.write(rounds=12, extra="[liveness]\nlease_s = 2.0\n")
    run.file.write_text('keys = "keys"\n' + run.file.read_text())
    first = run.start_coordinator()
    running = {name: run.start_device(name) for name in run.devices}
    first.wait_for(_of("round_closed", round_id=1))
    _say("pause", run.file)
    first.wait_for(lambda event: event["event"] == "paused")
    closed = _say("status", run.file)["committed"]
    for name in ("device1", "device2"):
        running[name].signal(signal.SIGSTOP)
    _say("resume", run.file)
    first.wait_for(_of("update_received", device_id="device0", round_id=closed + 1))
    archive, options = tmp_path / "run.tar", ["--without-keys"] * without_keys
    _say("backup", run.file, archive, *options)
    running["device1"].signal(signal.SIGCONT)
    first.wait_for(_of("update_received", device_id="device1", round_id=closed + 1))
    first.kill()

    elsewhere = replace(run, folder=tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    shutil.copytree(run.folder / "keys", elsewhere.folder / "keys")
    for file in (run.file, run.pooled):
        shutil.copy(file, elsewhere.folder)
    _say("restore", elsewhere.file, archive)
    second = elsewhere.start_coordinator("--wait")
    running["device2"].signal(signal.SIGCONT)
    assert second.finish() == 0, second.log
    assert [device.finish() for device in running.values()] == [0] * 3
    received = [
        (event["device_id"], event["round_id"])
        for event in second.events
        if event["event"] == "update_received"
    ]
    again = [name for name, round_id in received if round_id == closed + 1]
    assert sorted(again) == ["device1", "device2"]
    assert _model(elsewhere) == _model(calm)
