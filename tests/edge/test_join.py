"""Whole device processes against a scripted coordinator over a real broker."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import counting_strategy
import numpy as np
import pytest
from brokers import KillableBroker
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scripted_coordinator import ScriptedCoordinator
from tiny_bundle import tiny_bundle

from protofleet.bundle import Bundle
from protofleet.bundle.keys import save_public_key
from protofleet.cli._process import NEEDS_PERSON
from protofleet.cli.device import join
from protofleet.datasets import DeviceData
from protofleet.edge.join import JoinOptions, open_agent
from protofleet.edge.learning.training import LocalData
from protofleet.edge.state.journal import read_journal
from protofleet.edge.state.store import Store, read_personal
from protofleet.errors import ProvisionError
from protofleet.strategies import build
from protofleet.wire.messages import TransferOffer
from protofleet.wire.mqtt.broker_access import BrokerAccess

_CHILD = Path(counting_strategy.__file__).with_name("counting_device.py")

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=1)]

SETTINGS = {"epochs": 2, "batch_size": 16}
_CLASSES = ["class0", "class1", "class2"]


def _events(process):
    out, err = process.communicate(timeout=60)
    sys.stderr.write(err)
    return [json.loads(line) for line in out.splitlines()]


def _strategy(bundle):
    model = bundle.model()
    return build("fedavg", SETTINGS, model)


def _coordinator(world, url, **options):
    strategy = options.pop("strategy", None) or _strategy(world.bundle)
    settings = options.pop("settings", SETTINGS)
    return ScriptedCoordinator(
        url, world.root / "server", world.bundle, strategy, settings=settings, **options
    )


@pytest.mark.slow
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
    told = [[e["event"] for e in report if e["event"] != "in_use"] for report in reports]
    assert told == [order] * 4
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


def test_a_device_takes_other_data_from_a_round_on(world, mosquitto_url):
    later = ["--data-from", f"2:{world.data(8, n=25)}", "--data-from", f"3:{world.data(9, n=10)}"]
    with _coordinator(world, mosquitto_url, rounds=3) as coordinator:
        device = world.start([*world.arguments(mosquitto_url, "anna"), *later])
        coordinator.wait()
        _events(device)
    assert [coordinator.updates[r]["anna"].num_examples for r in (1, 2, 3)] == [40, 25, 10]


@pytest.mark.parametrize("wrong", ["b.npz", "x:b.npz", "3:"])
def test_later_data_without_a_round_or_a_file_are_named(world, wrong):
    device = world.start([*world.arguments("mqtt://127.0.0.1", "anna"), "--data-from", wrong])
    _, err = device.communicate(timeout=60)
    assert device.returncode == 2
    assert "expected ROUND:DATA as in 51:b.npz" in err


def _counting(world, url, **options):
    strategy = counting_strategy.Counting(None, None)
    return _coordinator(world, url, strategy=strategy, settings={}, **options)


def _counting_device(world, url, *, fatal: int = 0, settle_s: float = 10.0):
    arguments = world.arguments(url, "anna")
    return world.start([str(fatal), str(settle_s), *arguments], _CHILD)


def _chains(coordinator, name="anna"):
    updates = coordinator.updates.values()
    return [int(got[name].tensors["chain"][0]) for got in updates if name in got]


@pytest.mark.slow(seconds=3)
def test_a_killed_device_ends_in_the_undisturbed_state(world, mosquitto_url):
    """SIGKILL at six writes of the store; every round is trained once, on the right state."""
    killed = 0
    with _counting(world, mosquitto_url, rounds=8) as coordinator:
        for fatal in (12, 17, 21, 24, 30, 33, 0):
            child = _counting_device(world, mosquitto_url, fatal=fatal)
            _events(child)
            killed += child.returncode == -signal.SIGKILL
            if child.returncode == 0:
                break
        coordinator.wait()
    assert child.returncode == 0
    assert killed >= 4
    assert _chains(coordinator) == [int("12345678"[:r]) for r in range(1, 9)]
    _, state = read_personal(world.root / "anna")
    assert state.tensors["chain"][0] == 12345678


def test_a_rejected_update_leaves_no_trace_in_the_state(world, mosquitto_url):
    def answer(offered, _current):
        return "reject" if offered == 2 else "take"

    with _counting(world, mosquitto_url, rounds=3, answer=answer) as coordinator:
        device = _counting_device(world, mosquitto_url)
        coordinator.wait()
        events = _events(device)
    assert _chains(coordinator) == [1, 13]
    assert [e["reason"] for e in events if e["event"] == "dropped"] == ["as the test wants it"]


@pytest.mark.parametrize(("late", "expected"), [("take", [1, 12, 123]), ("ignore", [1, 13])])
def test_a_newer_task_waits_for_the_fate_of_the_update_before(world, mosquitto_url, late, expected):
    """The receipt of round 2 comes only after the task of round 3, or never."""

    def answer(offered, current):
        return "take" if offered != 2 else late if current > 2 else "ignore"

    with _counting(world, mosquitto_url, rounds=3, answer=answer) as coordinator:
        device = _counting_device(world, mosquitto_url, settle_s=10.0 if late == "take" else 0.2)
        coordinator.wait()
        _events(device)
    assert _chains(coordinator) == expected
    assert device.returncode == 0


def test_a_restarted_broker_costs_no_round(world, tmp_path):
    """The broker is killed and comes back empty, with the payload of round 2 on its way."""
    broker = KillableBroker(tmp_path)

    def before_round(round_id):
        if round_id == 2:
            broker.restart()

    with broker, _counting(world, broker.url, rounds=3, before_round=before_round) as coordinator:
        device = _counting_device(world, broker.url)
        coordinator.wait()
        _events(device)
    assert _chains(coordinator) == [1, 12, 123]
    assert device.returncode == 0


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


def test_a_device_stopped_in_a_round_keeps_it(world, mosquitto_url):
    """Its training ends without a result; nothing is dropped, and the payload stays."""
    endless = {"epochs": 100_000, "batch_size": 16}
    with _coordinator(world, mosquitto_url, settings=endless) as coordinator:
        device = world.start(world.arguments(mosquitto_url, "anna"))
        for line in device.stdout:
            if json.loads(line)["event"] == "task":
                break
        while read_journal(world.root / "anna").stage != "received":
            assert device.poll() is None
            time.sleep(0.01)
        device.send_signal(signal.SIGTERM)
        events = _events(device)
        coordinator.wait_for_status("anna", "left")
    assert device.returncode == 128 + signal.SIGTERM
    assert [event["event"] for event in events] == ["left"]
    assert read_journal(world.root / "anna").stage == "received"


def test_what_an_older_run_left_at_the_broker_does_not_end_a_device(world, mosquitto_url):
    """A retained announcement of another bundle, from before the present coordinator."""
    with _coordinator(world, mosquitto_url, announced_bundle="f" * 64, devices=2) as older:
        while not older._endpoint.connected:
            time.sleep(0.01)
        time.sleep(0.3)
    device = world.start(world.arguments(mosquitto_url, "anna"))
    while "waiting for another coordinator" not in (line := device.stderr.readline()):
        assert line
    with _coordinator(world, mosquitto_url) as coordinator:
        coordinator.wait()
        _events(device)
    assert device.returncode == 0


class _Insistent(ScriptedCoordinator):
    """Rejects the first update of round 2 and sends the same task again."""

    insisted = False

    def _hear(self, device_id, message):
        if isinstance(message, TransferOffer) and message.round_id == 2 and not self.insisted:
            self.insisted = True
            self._endpoint.reject(device_id, message.transfer_id, "offer", "once more")
            self._send_task(device_id, 2)
        else:
            super()._hear(device_id, message)


def test_a_device_whose_update_was_rejected_can_be_asked_for_the_round_again(world, mosquitto_url):
    """It has acknowledged that payload before, and does not have it any more."""
    strategy = _strategy(world.bundle)
    coordinator = _Insistent(
        mosquitto_url, world.root / "server", world.bundle, strategy, settings=SETTINGS
    )
    with coordinator:
        device = world.start(world.arguments(mosquitto_url, "anna"))
        coordinator.wait()
        events = [event["event"] for event in _events(device)]
    assert sorted(coordinator.updates) == [1, 2]
    assert events.count("dropped") == 1
    assert "anna" in coordinator.updates[2]


def test_a_federation_with_another_bundle_is_told_and_another_coordinator_waited_for(
    world, mosquitto_url
):
    with _coordinator(world, mosquitto_url, announced_bundle="f" * 64):
        device = world.start(world.arguments(mosquitto_url, "anna"))
        while (event := json.loads(device.stdout.readline()))["event"] != "waiting":
            assert event["event"] == "joined"
        device.send_signal(signal.SIGTERM)
        _, err = device.communicate(timeout=60)
    assert "join with the federation's own bundle" in event["awaited"]
    assert "join with the federation's own bundle" in err
    assert device.returncode == 128 + signal.SIGTERM
    assert read_journal(world.root / "anna").binding is None


def test_the_service_s_unit_names_options_that_exist_and_stays():
    unit = (Path(__file__).resolve().parents[2] / "docs" / "protofleet-device.service").read_text()
    start = unit[unit.index("ExecStart=") : unit.index("Environment=")]
    named = set(re.findall(r"--[a-z-]+", start))
    known = {option for parameter in join.params for option in parameter.opts}
    assert "--stay" in named <= known
    assert {"Restart=always", f"RestartPreventExitStatus={NEEDS_PERSON}"} <= set(unit.split())


def test_the_personal_model_infers_beside_and_after_the_federation(world, mosquitto_url):
    with _coordinator(world, mosquitto_url) as coordinator:
        device = world.start(world.arguments(mosquitto_url, "anna"))
        coordinator.wait()
        _, err = device.communicate(timeout=60)
    hint = f"to use the model: protofleet device predict --data FILE --store {world.root / 'anna'}"
    assert err.splitlines()[-1] == hint
    arguments = ["device", "predict", "--json", "--latency", "--store", str(world.root / "anna")]
    served, *_ = _events(world.start([*arguments, "--data", str(world.data(1))]))
    assert served["served"] == ("personal" if served["reason"].startswith("personal") else "bundle")
    assert "on 30 examples that it has not seen" in served["reason"]  # 20 test, and a fold of 40
    arguments += ["--use", "personal"]
    model, *predictions, scores = _events(world.start([*arguments, "--data", str(world.data(1))]))
    own = coordinator.updates[2]["anna"].evaluation.own
    assert scores["examples"] == len(predictions) == 20
    assert model["round_id"] == 2
    assert scores["accuracy"] == pytest.approx(np.trace(own) / own.sum())
    assert scores["infer_ms"].keys() == {"p50", "p95", "p99"}


def test_a_store_goes_on_with_another_bundle_of_its_federation(world, mosquitto_url):
    """The coordinator's next run has a bundle trained anew; the personal model starts from its own.

    What the first run left at the broker says that the federation has finished; it is not heeded.
    """
    settings = {"epochs": 3, "batch_size": 16}
    other = tiny_bundle(world.root / "second", Ed25519PrivateKey.generate(), settings=settings)
    bundle = Bundle.open(other, any_signer=True)
    stored = []
    for path, used in ((world.bundle_path, world.bundle), (other, bundle)):
        strategy = build("local", settings, used.model())
        folder = world.root / f"server-{len(stored)}"
        with ScriptedCoordinator(
            mosquitto_url, folder, used, strategy, settings=settings, rounds=1
        ) as coordinator:
            arguments = world.arguments(mosquitto_url, "anna")
            arguments[arguments.index("--bundle") + 1] = str(path)
            keys = world.root / f"{used.signer[:8]}.pem"
            save_public_key(bytes.fromhex(used.signer), keys)
            device = world.start([*arguments, "--trust", str(keys)])
            coordinator.wait()
            events = _events(device)
        assert device.returncode == 0
        stored.append(read_personal(world.root / "anna"))
    (moved,) = [event for event in events if event["event"] == "moved"]
    assert (moved["kept"], moved["new"]) == (["params/b", "params/w"], [])
    assert "optimiser/0.steps" in moved["dropped"]
    (first, before), (second, after) = stored
    assert (first.binding.bundle, second.binding.bundle) == (world.bundle.digest, bundle.digest)
    assert before.round_id == after.round_id == 1
    start = world.bundle.model().params["w"]
    # Trained on from the personal model: further from the bundle's values than one round goes.
    reached = [np.abs(state.tensors["params/w"] - start).max() for state in (before, after)]
    assert reached[1] > reached[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y_train": np.full(65, 0.7)}, "y_train: .*65 of 65 that are not whole, such as 0.7"),
        ({"y_train": np.array(["1"] * 65)}, r"numbers as text: save y.astype\(np.int64\)"),
        ({"x_train": np.ones((65, 4), complex)}, "x_train: expected real numbers"),
        ({"y_train": np.array([0, None] * 32 + [1], object)}, "'y_train' holds Python objects"),
        ({"x_train": np.ones((65, 5))}, r"expected x_train \(n, 4\) as the bundle's input"),
    ],
)
def test_data_that_no_program_takes_end_the_command_before_it_connects(world, changes, said):
    x, y = np.ones((65, 4), np.float32), np.arange(65) % 3
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "classes": _CLASSES}
    arguments = world.arguments("mqtt://127.0.0.1:1", "anna")
    np.savez(world.root / "data-1.npz", **{**arrays, **changes})
    device = world.start(arguments)
    _, err = device.communicate(timeout=60)
    assert device.returncode == 2
    assert re.search(said, err.splitlines()[-1])
    assert "Traceback" not in err
    assert not (world.root / "anna").exists()


def test_a_name_that_no_federation_has_makes_no_store(world):
    arguments = world.arguments("mqtt://127.0.0.1:1", "anna")
    arguments[arguments.index("--federation") + 1] = "my study"
    _, err = (device := world.start(arguments)).communicate(timeout=60)
    assert device.returncode == 2
    assert "federation: expected 1 to 64 characters" in err.splitlines()[-1]
    assert not (world.root / "anna").exists()


def test_an_untrusted_signer_is_refused_with_the_way_to_trust_it(world, mosquitto_url):
    arguments = world.arguments(mosquitto_url, "anna")
    place = arguments.index("--trust")
    del arguments[place : place + 2]
    device = world.start(arguments)
    _, err = device.communicate(timeout=60)
    assert device.returncode == 2
    assert "protofleet bundle trust KEY.pem" in err


def test_a_bundle_of_a_strategy_that_is_not_installed_here_is_refused(world):
    key = Ed25519PrivateKey.generate()
    bundle = tiny_bundle(world.root / "foreign", key, strategy="gentle")
    options = JoinOptions(
        broker=BrokerAccess(url="mqtt://127.0.0.1:1"),
        federation="home",
        bundle=bundle,
        store=world.root / "anna",
        trusted={key.public_key().public_bytes_raw()},
    )
    x, y = np.ones((6, 4), np.float32), np.arange(6) % 3
    own = DeviceData(x_train=x, y_train=y, x_test=x, y_test=y, classes=tuple(_CLASSES))
    refused = pytest.raises(ProvisionError, match=r"'gentle': unknown.*install that package")
    with refused, open_agent(options, LocalData(own=own), lambda *_: None):
        pass
    assert not (world.root / "anna").exists()


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
        _, err = device.communicate(timeout=60)
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
    _, err = device.communicate(timeout=60)
    assert device.returncode == 2
    assert "belongs to device 'berta', got --id 'anna'" in err
