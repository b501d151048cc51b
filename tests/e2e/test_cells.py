"""Cells and their root as processes: the bits of one coordinator, whoever is killed."""

from __future__ import annotations

import json
from functools import partial

import msgspec
import pytest
from keyed_federation import DATA, keyed_config, outcome
from threaded import Device, Thread
from threaded import Federation as Running
from tiny_bundle import tiny_bundle

from protofleet.benchmarks._keys import enrol_here
from protofleet.cli._cells import root_access
from protofleet.coordinator.process.run import open_service
from protofleet.edge.join import JoinOptions
from protofleet.errors import InputError
from protofleet.federation.cells import cell_config, root_store
from protofleet.federation.records import RunRecord, load_record
from protofleet.federation.settings import AggregationSettings, CellSettings, CohortSettings
from protofleet.hub.dashboard.reading import RunReader

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
def test_updates_of_two_cells_give_clusters_early_end_and_final_fit_of_one_coordinator(
    make_federation, tmp_path, key
):
    """The target is reached in the third round of nine; the fourth is the final fit."""
    bundle = tiny_bundle(tmp_path / "tiny.pfb", key)
    optimiser = 'optimiser = {kind = "adam", lr = 0.002}'
    clusters = f'{{cluster_round = 2, threshold = 0.05, head = "b", {optimiser}}}'
    strategy = f'[strategy]\nname = "fedclar"\nsettings = {clusters}\n[stop]\ntarget = 0.9\n'
    calm = _one(make_federation, bundle, strategy, rounds=9)
    run = _cells(make_federation, bundle, f"{strategy}[cells]\ncount = 2\n", rounds=9)
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
    assert not [one.log for one in devices if "expected it behind round" in one.log]
    assert _model(run) == _model(calm)
    ours, theirs = (_record(one) for one in (run, calm))
    assert [one.scores for one in ours.rounds] == [one.scores for one in theirs.rounds]
    assert [one.participants for one in ours.rounds] == [4] * 4
    assert ours.early_end == theirs.early_end
    assert (ours.early_end.after, ours.early_end.why) == (3, "target")
    assert [one.id for one in ours.devices] == list(run.devices)
    assert ours.outcome is not None
    assert ours.outcome == theirs.outcome
    assert ours.outcome.told == 4
    assert RunReader("home", run.run_dir).read().outcome == ours.outcome.summary


class _Keyed:
    """Root, cells and devices in threads, of a federation with keys."""

    def __init__(self, config, homes):
        self._config, self._homes = config, homes
        for cell in (1, 2):
            own = cell_config(config, cell)
            stores = {name: _store(config, name) for name, home in homes.items() if home == cell}
            enrol_here(own.keys, own.federation, stores, config.broker.url)
        roots = {f"cell-{cell}": root_store(config, cell) for cell in (1, 2)}
        enrol_here(config.keys, config.federation, roots, config.broker.url)

    def run(self):
        servers = [Thread(f"part {cell}", partial(self._serve, cell)) for cell in (None, 1, 2)]
        devices = [
            Device(
                JoinOptions(
                    broker=None,
                    federation=None,
                    bundle=self._config.bundle,
                    store=_store(self._config, name),
                    device_id=name,
                ),
                DATA[name],
            )
            for name in self._homes
        ]
        for thread in (*servers, *(device.thread for device in devices)):
            thread.finish(150)

    def _serve(self, cell):
        access = partial(root_access, self._config, cell)
        with open_service(self._config, lambda _: None, cell=cell, to_root=access) as service:
            service.run()


def _store(config, name):
    return config.run_dir.with_name(f"keyed-{name}")


@pytest.mark.slow(seconds=5)
def test_with_keys_cells_enrol_with_the_root_and_devices_with_their_cell(
    tmp_path, mosquitto_url, key
):
    alone = keyed_config(tmp_path, mosquitto_url, key)
    exact = AggregationSettings(kind="exact_mean", norm_clip=0, most_examples=0)
    alone = msgspec.structs.replace(alone, aggregation=exact)
    with Running(alone, DATA) as federation:
        expected = federation.finish()
    folder = tmp_path / "cells"
    folder.mkdir()
    config = msgspec.structs.replace(
        alone,
        run_dir=folder / "run",
        keys=folder / "keys",
        cohort=CohortSettings(minimum=1),
        cells=CellSettings(count=2, send="sums"),
    )
    with pytest.raises(InputError, match="protofleet device invite cell-2 --keys"):
        root_access(config, 2)
    _Keyed(config, {"anna": 1, "berta": 2}).run()
    models = [one.run_dir / "global.safetensors" for one in (config, alone)]
    assert models[0].read_bytes() == models[1].read_bytes()
    assert outcome(json.loads((config.run_dir / "result.json").read_text())) == outcome(expected)


def _model(federation):
    return (federation.run_dir / "global.safetensors").read_bytes()


def _record(federation):
    return load_record(federation.run_dir / "result.json", RunRecord)
