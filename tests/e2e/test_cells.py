"""Cells and their root as processes: the bits of one coordinator, whoever is killed."""

from __future__ import annotations

import pytest
from tiny_bundle import tiny_bundle

from protofleet.federation.records import RunRecord, load_record

pytestmark = [pytest.mark.mosquitto, pytest.mark.timeout(300)]

_SUMS = 'send = "sums"\n[aggregation]\nkind = "exact_mean"\nnorm_clip = 0\nmost_examples = 0\n'


def _closed(round_id):
    return lambda one: one["event"] == "round_closed" and one["round_id"] == round_id


def _one(make_federation, bundle, extra, rounds=6):
    """The undisturbed run of one coordinator; its model and its scores."""
    calm = make_federation("calm", bundle, 4)
    calm.write(rounds=rounds, extra=extra)
    coordinator = calm.start_coordinator()
    devices = [calm.start_device(name) for name in calm.devices]
    assert coordinator.finish() == 0, coordinator.log
    assert [device.finish() for device in devices] == [0] * 4
    return calm


def _cells(make_federation, bundle, extra, rounds=6):
    """Files of root and two cells; each of them waits for two of the four devices."""
    run = make_federation("run", bundle, 4)
    run.write(rounds=rounds, extra=extra)
    run.file.write_text(run.file.read_text().replace("minimum = 4", "minimum = 2"))
    return run


def _start_devices(run):
    return [
        run.start_device(name, federation=f"home.{1 + index % 2}")
        for index, name in enumerate(run.devices)
    ]


@pytest.mark.slow(seconds=20)
def test_sums_of_two_cells_give_the_bits_of_one_coordinator_though_all_are_killed(
    make_federation, tmp_path, key
):
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    calm = _one(make_federation, bundle, _SUMS.removeprefix('send = "sums"\n'))
    run = _cells(make_federation, bundle, f"[cells]\ncount = 2\n{_SUMS}")
    root = run.start_coordinator()
    cells = [run.start_coordinator("--cell", str(cell)) for cell in (1, 2)]
    devices = _start_devices(run)
    cells[0].wait_for(lambda one: one["event"] == "update_received" and one["round_id"] == 2)
    cells[0].kill()
    cells[1].wait_for(lambda one: one["event"] == "update_received" and one["round_id"] == 2)
    root.kill()
    cells[1].kill()
    root = run.start_coordinator()
    cells = [run.start_coordinator("--cell", str(cell)) for cell in (1, 2)]
    root.wait_for(_closed(4))
    root.kill()
    root = run.start_coordinator()
    assert root.finish() == 0, root.log
    assert [cell.finish() for cell in cells] == [0, 0], cells[0].log
    assert [device.finish() for device in devices] == [0] * 4
    assert _model(run) == _model(calm)


@pytest.mark.slow(seconds=20)
def test_updates_of_two_cells_give_clusters_and_final_fit_of_one_coordinator(
    make_federation, tmp_path, key
):
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    clusters = '{cluster_round = 2, threshold = 0.05, head = "b"}'
    strategy = f'[strategy]\nname = "fedclar"\nsettings = {clusters}\n'
    calm = _one(make_federation, bundle, strategy, rounds=3)
    run = _cells(make_federation, bundle, f"{strategy}[cells]\ncount = 2\n", rounds=3)
    root = run.start_coordinator()
    cells = [run.start_coordinator("--cell", str(cell)) for cell in (1, 2)]
    devices = _start_devices(run)
    root.wait_for(lambda one: one["event"] == "update_received" and one["round_id"] == 2)
    for process in (root, cells[1]):
        process.kill()
    root, cells[1] = run.start_coordinator(), run.start_coordinator("--cell", "2")
    assert root.finish() == 0, root.log
    assert [cell.finish() for cell in cells] == [0, 0], cells[0].log
    assert [device.finish() for device in devices] == [0] * 4
    assert _model(run) == _model(calm)
    ours, theirs = (_record(one) for one in (run, calm))
    assert [one.scores for one in ours.rounds] == [one.scores for one in theirs.rounds]
    assert [one.participants for one in ours.rounds] == [4] * 4
    assert [one.id for one in ours.devices] == list(run.devices)


def _model(federation):
    return (federation.run_dir / "global.safetensors").read_bytes()


def _record(federation):
    return load_record(federation.run_dir / "result.json", RunRecord)
