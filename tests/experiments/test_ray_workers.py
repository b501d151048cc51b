"""``--engine ray`` gives the bits of the local engine, also when actors or machines are lost.

What needs Ray is skipped without it, but not in ``.ci/run``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from ray_extra import needs_ray
from rich.console import Console

from protofleet.benchmarks._process_times import descendants
from protofleet.errors import InputError
from protofleet.experiments import ray_workers
from protofleet.experiments._ray_actor import read_state, write_state
from protofleet.experiments._worker import StoredClient
from protofleet.experiments.config import Experiment
from protofleet.experiments.runner import RunOptions, run_experiment
from protofleet.experiments.store import load_run, run_folder
from protofleet.federation.server import Server
from protofleet.settings import to_toml
from protofleet.tensors import blobs

_EXPERIMENT = {
    "title": "digits",
    "paper": "none",
    "table": "none",
    "data": [{"name": "digits"}],
    "partition": {"kind": "dirichlet", "clients": 5, "alpha": 1.0},
    "model": {"name": "mlp", "settings": {"inputs": 64, "hidden": [16, 12]}},
    "rounds": 5,
    "cohort": 3,
    "seeds": [1],
    "score": {"pooled_limit": 64},
    "training": {"epochs": 1, "optimiser": {"kind": "sgd", "lr": 0.05}},
    "methods": [
        {"label": "Ditto", "strategy": "ditto"},
        {"label": "coded", "strategy": "fedavg", "codec": {"up": "topk", "down": "int4"}},
    ],
}
"""Clients that keep a model of their own, and clients that keep what coding has left."""


@pytest.fixture
def ray(monkeypatch):
    needs_ray()
    import ray  # noqa: PLC0415 - an extra

    for name in ("RAY_ADDRESS", *ray_workers.STARTED_HERE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_workers, "_WRITE_ROUNDS", 2)
    return ray


@pytest.fixture
def cluster(ray, monkeypatch):  # noqa: ARG001 - Ray is there
    """What ``RAY_ADDRESS`` names: two machines of a CPU each, as far as Ray can tell."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - an extra

    for name, value in ray_workers.STARTED_HERE.items():
        monkeypatch.setenv(name, value)
    machines = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    machines.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", machines.address)
    yield machines
    machines.shutdown()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the experiment; the hashes of the server's states, and the records."""
    hashes = []
    aggregate, here = Server.aggregate, threading.get_ident()

    def hashed(self, *args, **options):
        outcome = aggregate(self, *args, **options)
        if threading.get_ident() == here:  # not of a coordinator that another test has left
            hashes.append(hashlib.sha256(blobs.encode(outcome.state.tensors)).hexdigest())
        return outcome

    monkeypatch.setattr(Server, "aggregate", hashed)

    def go(engine, labels=None):
        hashes.clear()
        results = run_experiment(
            "digits",
            msgspec.convert(_EXPERIMENT, Experiment),
            tmp_path / ("wired" if engine == "mqtt" else "runs"),
            RunOptions(data_root=tmp_path, workers=2, engine=engine, labels=labels),
            Console(quiet=True),
        )
        rounds = [one for result in results for one in result.rounds]
        return list(hashes), [_untimed(one) for one in rounds]

    return go


def _untimed(record):
    return msgspec.structs.replace(record, seconds=0.0, costs=None)


def answering(monkeypatch, act):
    """Call ``act(actors, count, home)`` before every answer of an actor is taken."""
    answer, counted = ray_workers.RayActors._answer, iter(range(1_000_000))

    def acted(self, ref, call, home):
        act(self, next(counted), home)
        return answer(self, ref, call, home)

    monkeypatch.setattr(ray_workers.RayActors, "_answer", acted)


def _killed_actor():
    """Ends the process of one actor by SIGKILL; its niceness, if there was any."""
    for pid in sorted(descendants(os.getpid())):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::ClientActor"):
                niceness = os.getpriority(os.PRIO_PROCESS, pid)
                os.kill(pid, signal.SIGKILL)
                return [niceness]
    return []


@pytest.mark.slow(seconds=60)
@pytest.mark.mosquitto
@pytest.mark.timeout(400)
def test_local_mqtt_and_ray_give_the_same_scores(ray, run):  # noqa: ARG001 - Ray is there
    """And the engines without a broker the same states; bytes are counted elsewhere over MQTT."""
    states, records = run("local")
    rayed = run("ray")
    assert rayed[0] == states
    assert rayed[1] == records
    _, wired = run("mqtt")
    assert len(wired) == len(records) == 10
    assert [one.scores for one in wired] == [one.scores for one in records]
    assert [one.update_norms for one in wired] == [one.update_norms for one in records]


@pytest.mark.full_size
@pytest.mark.timeout(400)
def test_a_learning_rate_is_chosen_alike_though_an_actor_is_lost_meanwhile(
    ray,  # noqa: ARG001 - Ray is there
    tmp_path,
    monkeypatch,
):
    optimiser = {"kind": "sgd", "lr": "auto"}
    method = {"label": "Ditto", "strategy": "ditto", "settings": {"optimiser": optimiser}}
    values = {**_EXPERIMENT, "rounds": 1, "training": {"epochs": 1}, "methods": [method]}
    killed = []
    answering(monkeypatch, lambda _, n, __: killed.extend(_killed_actor()) if n == 1 else None)
    local, ours = (
        run_experiment(
            "digits",
            msgspec.convert(values, Experiment),
            tmp_path / engine,
            RunOptions(data_root=tmp_path, workers=2, engine=engine),
            Console(quiet=True),
        )[0]
        for engine in ("local", "ray")
    )
    assert killed
    assert local.calibration == ours.calibration
    assert local.calibration.devices == 5
    assert [one.scores for one in local.rounds] == [one.scores for one in ours.rounds]
    assert ours.settings["optimiser"]["lr"] == ours.calibration.lr


@pytest.mark.full_size
@pytest.mark.slow(seconds=60)
@pytest.mark.timeout(400)
def test_lost_actors_and_an_interruption_cost_no_bit(ray, run, tmp_path, monkeypatch):
    """Actors die, half of them by SIGKILL; then the run is interrupted, and goes on.

    They had the priority of the command that started Ray.
    """
    expected = run("local")
    lost, killed, stops = [], [], [22]

    def act(actors, count, home):
        if count in {1, 4, 14}:
            ray.kill(actors._actors[home], no_restart=False)
            lost.append(count)
        if count in {3, 9, 30}:
            killed.extend(_killed_actor())
        if count in stops:
            stops.clear()
            raise KeyboardInterrupt

    answering(monkeypatch, act)
    with pytest.raises(KeyboardInterrupt):
        run("ray")
    method = msgspec.convert(_EXPERIMENT, Experiment).methods
    folder = run_folder(tmp_path / "runs", method[1], 1)
    states, _ = run("ray")
    left = [load_run(run_folder(tmp_path / "runs", one, 1)) for one in method]
    records = [_untimed(record) for one in left for record in one.rounds]
    assert len(lost) + len(killed) >= 5
    assert len(killed) >= 2
    assert set(killed) == {os.getpriority(os.PRIO_PROCESS, 0)}
    assert [one.engine for one in left] == ["ray", "ray"]
    assert records == expected[1]
    assert states == expected[0][-len(states) :]
    assert 0 < len(states) < 10
    assert not (folder / "states").exists()
    assert not ray.is_initialized()


@pytest.mark.full_size
@pytest.mark.timeout(400)
def test_a_lost_machine_of_a_cluster_costs_no_bit(ray, cluster, run, monkeypatch):
    """Its actor starts on the machine that comes instead; the cluster outlives the run."""
    expected = run("local", ["Ditto"])
    (machine,) = cluster.worker_nodes
    alive = []

    def act(_actors, count, _home):
        if count == 4:
            cluster.remove_node(machine, allow_graceful=False)
            cluster.add_node(num_cpus=1)
        alive[:] = sorted(one["Alive"] for one in ray.nodes())

    answering(monkeypatch, act)
    assert run("ray", ["Ditto"]) == expected
    assert alive == [False, True, True]
    assert cluster.head_node.any_processes_alive()


@pytest.mark.full_size
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("cluster")
def test_two_commands_at_once_on_a_cluster_score_as_the_local_engine(tmp_path):
    """Each has a seed and one of the two machines' CPUs; data and bundles are made once."""
    values = {**_EXPERIMENT, "rounds": 3, "seeds": [1, 2]}
    experiment = msgspec.convert(values, Experiment)
    method, local = experiment.methods[1], tmp_path / "local"
    options = RunOptions(data_root=tmp_path, workers=2, labels=[method.label])
    expected = run_experiment("digits", experiment, local, options, Console(quiet=True))
    file = tmp_path / "digits.toml"
    file.write_bytes(to_toml(values))
    start = (sys.executable, "-c", "from protofleet.cli.main import main; main()", "experiment")
    asked = ("--engine", "ray", "--workers", "1", "--methods", method.label)
    runs = run_folder(local, method, 1).parent.name
    drivers, folders = [], [tmp_path / f"ray-{one.seed}" for one in expected]
    for one, folder in zip(expected, folders, strict=True):
        shutil.copytree(local, folder, ignore=shutil.ignore_patterns(runs))
        where = ("--seeds", str(one.seed), "--out", str(folder), "--data-root", str(tmp_path))
        drivers.append(subprocess.Popen([*start, "run", str(file), *asked, *where]))
    assert [one.wait() for one in drivers] == [0, 0]
    for one, folder in zip(expected, folders, strict=True):
        found = load_run(run_folder(folder, method, one.seed))
        assert (found.engine, len(found.rounds)) == ("ray", 3)
        assert [_untimed(x) for x in found.rounds] == [_untimed(x) for x in one.rounds]


@pytest.mark.full_size
def test_another_version_on_a_machine_of_the_cluster_is_refused(ray, run, monkeypatch):
    """And Ray, which was started here, tells its makers nothing, and ends with the run."""
    from ray._common.usage.usage_lib import usage_stats_enabled  # noqa: PLC0415 - an extra

    monkeypatch.setattr(ray_workers, "__version__", "0.0")
    with pytest.raises(InputError, match=r"a machine of the cluster has protofleet .*, this one"):
        run("ray")
    assert not usage_stats_enabled()
    assert not ray.is_initialized()


def test_a_written_state_is_read_back_only_as_it_was_written(tmp_path):
    one = StoredClient(round_id=2, state=b"abc", residual=b"d")
    digest = write_state(tmp_path, one)
    assert write_state(tmp_path, one) == digest
    (file,) = tmp_path.iterdir()
    assert file.stem == hashlib.sha256(file.read_bytes()).hexdigest() == digest
    assert read_state(tmp_path, 2, digest) == one
    file.write_bytes(one.packed()[:-1])
    with pytest.raises(InputError, match="is not what its name says"):
        read_state(tmp_path, 2, digest)
    file.unlink()
    with pytest.raises(InputError, match="every machine of the cluster needs the folder"):
        read_state(tmp_path, 2, digest)
