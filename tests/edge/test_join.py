"""Whole device processes against a scripted coordinator over a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from scripted_coordinator import ScriptedCoordinator

from protofleet.edge.store import Store, read_personal
from protofleet.strategies import build
from protofleet.strategies.types import Model

pytestmark = pytest.mark.mosquitto

SETTINGS = {"epochs": 2, "batch_size": 16}


def _events(process):
    out, err = process.communicate(timeout=20)
    sys.stderr.write(err)
    return [json.loads(line) for line in out.splitlines()]


def _strategy(bundle):
    values = bundle.model()
    model = Model(params=values.params, state=values.state, num_classes=values.num_classes)
    return build("fedavg", SETTINGS, model)


def _coordinator(world, url, **options):
    strategy = options.pop("strategy", None) or _strategy(world.bundle)
    settings = options.pop("settings", SETTINGS)
    return ScriptedCoordinator(
        url, world.root / "server", world.bundle, strategy, settings=settings, **options
    )


def test_four_devices_train_deliver_and_leave(world, mosquitto_url):
    names = ["anna", "berta", "carla", "dora"]
    with _coordinator(world, mosquitto_url, devices=4, rounds=3) as coordinator:
        devices = [
            world.start(world.arguments(mosquitto_url, name, seed))
            for seed, name in enumerate(names)
        ]
        coordinator.wait()
        reports = [_events(device) for device in devices]
    assert [d.returncode for d in devices] == [0] * 4
    assert [sorted(coordinator.updates[r]) for r in (1, 2, 3)] == [names] * 3
    order = ["joined", *["task", "trained", "delivered"] * 3, "left"]
    assert [[e["event"] for e in report] for report in reports] == [order] * 4
    assert {p.status for p in coordinator.presence.values()} == {"left"}
    update, costs = coordinator.updates[3]["anna"], coordinator.costs[3]["anna"]
    assert update.num_examples == 40
    assert update.evaluation.own.sum() == 20
    assert update.evaluation.pooled is None
    assert len(costs.train_step_ms) == 6
    assert len(costs.infer_ms) == 30
    assert {"receive", "train", "evaluate", "infer", "send"} <= costs.phases_s.keys()
    last = [h for h in coordinator.heartbeats if h.device_id == "anna"][-1]
    assert last.bytes_up > update.num_examples
    assert 0 < last.bytes_down <= reports[0][-1]["bytes_down"]


def test_a_killed_device_ends_in_the_undisturbed_state(world, mosquitto_url):
    """SIGKILL at six writes of the store; personal state and updates equal the closed form."""
    script = world.root / "child.py"
    script.write_text(_COUNTING + _DEADLY)
    namespace: dict = {}
    exec(compile(_COUNTING, "counting", "exec"), namespace)  # noqa: S102 - the text above
    strategy = namespace["counting"]({}, None)
    rounds = 8
    with _coordinator(
        world, mosquitto_url, rounds=rounds, strategy=strategy, settings={}
    ) as coordinator:
        arguments = world.arguments(mosquitto_url, "anna")
        killed = 0
        for fatal in (12, 17, 21, 24, 30, 33, 0):
            child = world.start([str(fatal), *arguments], script)
            _events(child)
            killed += child.returncode == -signal.SIGKILL
            if child.returncode == 0:
                break
        coordinator.wait()
    assert child.returncode == 0
    assert killed >= 4
    chain, expected = 0.0, []
    for round_id in range(1, rounds + 1):
        chain = 10 * chain + round_id
        expected.append(chain)
    got = [coordinator.updates[r]["anna"].tensors["chain"][0] for r in range(1, rounds + 1)]
    assert got == expected
    _, state = read_personal(world.root / "anna")
    assert state.tensors["chain"][0] == chain


_COUNTING = """
import numpy as np
from protofleet import strategies
from protofleet.strategies.types import *

def counting(settings, model):
    def client_update(state, payload, tools):
        chain = {"chain": state.tensors["chain"] * 10 + payload.round_id}
        update = Update(client_id=tools.client_id, round_id=payload.round_id,
                        num_examples=len(tools.y), tensors=chain)
        return ClientState(round_id=payload.round_id, tensors=chain), update

    return Strategy(
        name="counting", paper="", programs=(), settings=None,
        travels=Travels(down=(), up=(), personal=()),
        server_init=lambda model: ServerState(round_id=0, tensors={"r": np.zeros(1)}),
        downlink=lambda s, c: Payload(round_id=s.round_id + 1, tensors={"r": np.ones(1)}),
        client_init=lambda model: ClientState(round_id=0, tensors={"chain": np.zeros(1)}),
        client_update=client_update,
        client_model=lambda state: (model.params, model.state),
        aggregate=lambda s, u: ServerState(round_id=s.round_id + 1, tensors=s.tensors),
        server_model=lambda s: None,
    )

strategies.STRATEGIES["counting"] = counting
"""

_DEADLY = """
import itertools, os, signal, sys
from pathlib import Path
from protofleet.cli import main

fatal, calls = int(sys.argv[1]), itertools.count(1)

def deadly(function):
    def call(*args, **kwargs):
        if next(calls) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

os.fsync = deadly(os.fsync)
Path.replace = deadly(Path.replace)
main(sys.argv[2:])
"""


def test_sigterm_leaves_gracefully_and_keeps_the_state(world, mosquitto_url):
    with _coordinator(world, mosquitto_url, devices=1, rounds=10**6) as coordinator:
        device = world.start(world.arguments(mosquitto_url, "anna"))
        for line in device.stdout:
            if json.loads(line)["event"] == "delivered":
                break
        device.send_signal(signal.SIGTERM)
        events = _events(device)
        coordinator.wait_for_status("anna", "left")
    assert device.returncode == 128 + signal.SIGTERM
    assert events[-1]["event"] == "left"
    assert not events[-1]["finished"]
    assert read_personal(world.root / "anna")[1].round_id >= 1
    assert coordinator.presence["anna"].status == "left"


def test_a_federation_with_another_bundle_is_refused(world, mosquitto_url):
    with _coordinator(world, mosquitto_url, announced_bundle="f" * 64):
        device = world.start(world.arguments(mosquitto_url, "anna"))
        _, err = device.communicate(timeout=20)
    assert device.returncode == 1
    assert "join with the federation's own bundle" in err.splitlines()[-1]


def test_the_personal_model_infers_beside_and_after_the_federation(world, mosquitto_url):
    with _coordinator(world, mosquitto_url) as coordinator:
        device = world.start(world.arguments(mosquitto_url, "anna"))
        coordinator.wait()
        _events(device)
    arguments = ["device", "infer", "--json", "--store", str(world.root / "anna")]
    arguments += ["--bundle", str(world.bundle_path), "--data", str(world.data(1))]
    infer = world.start([*arguments, "--trust", str(world.trust)])
    scores = _events(infer)[0]
    own = coordinator.updates[2]["anna"].evaluation.own
    assert scores["examples"] == 20
    assert scores["round_id"] == 2
    assert scores["accuracy"] == pytest.approx(np.trace(own) / own.sum())
    assert scores["infer_ms"].keys() == {"p50", "p95", "p99"}


def test_an_untrusted_signer_is_refused_with_the_way_to_trust_it(world, mosquitto_url):
    arguments = world.arguments(mosquitto_url, "anna")
    place = arguments.index("--trust")
    del arguments[place : place + 2]
    device = world.start(arguments)
    _, err = device.communicate(timeout=20)
    assert device.returncode == 1
    assert "protofleet bundle trust KEY.pem" in err


def test_a_device_process_loads_nothing_heavy(world, mosquitto_url):
    """A whole join: neither torch nor SciPy, scikit-learn, matplotlib, rich are imported."""
    script = world.root / "modules.py"
    script.write_text(
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))\n"
        "from protofleet.cli import main\nmain(sys.argv[1:])\n"
    )
    with _coordinator(world, mosquitto_url) as coordinator:
        device = world.start(world.arguments(mosquitto_url, "anna"), script)
        coordinator.wait()
        _, err = device.communicate(timeout=20)
    loaded = {name.partition(".")[0] for name in err.splitlines()[-1].split()}
    assert "onnxruntime" in loaded
    assert not loaded & {"torch", "scipy", "sklearn", "matplotlib", "rich", "onnx", "amqtt"}


def test_importing_the_edge_loads_no_torch():
    code = "import protofleet.edge, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "scipy", "sklearn", "matplotlib", "rich", "numba"}


def test_the_store_is_bound_to_its_first_federation(world, mosquitto_url):
    with Store.open(world.root / "anna", device_id="berta"):
        pass
    device = world.start(world.arguments(mosquitto_url, "anna"))
    _, err = device.communicate(timeout=20)
    assert device.returncode == 1
    assert "belongs to device 'berta', got --id 'anna'" in err
