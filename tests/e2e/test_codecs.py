"""Coded payloads and updates over a real broker: faults change no bit, losses are made good."""

from __future__ import annotations

import shutil

import msgspec
import pytest
from threaded import CrashError, Federation, final_state
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.coordinator import events
from protofleet.datasets import DeviceData
from protofleet.edge.learning.training import LocalData
from protofleet.edge.state.store import Store
from protofleet.federation.settings import CodecSettings, CohortSettings, FederationConfig
from protofleet.wire.mqtt.broker_access import BrokerAccess

pytestmark = pytest.mark.mosquitto

_FEATURES = 40  # so that ``w`` is large enough to be coded
_CODEC = CodecSettings(up="topk", down="int4", keep=0.2)


def _data(seed):
    x, y = tiny_data(seed, 24, features=_FEATURES)
    x_test, y_test = tiny_data(1000 + seed, 9, features=_FEATURES)
    classes = ("class0", "class1", "class2")
    own = DeviceData(x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=classes)
    return LocalData(own=own)


_DATA = {name: _data(seed) for seed, name in enumerate(("anna", "berta", "carla"))}


@pytest.fixture
def config(tmp_path, mosquitto_url, key):
    return FederationConfig(
        federation="home",
        broker=BrokerAccess(url=mosquitto_url),
        bundle=tiny_bundle(tmp_path / "tiny.pfb", key, features=_FEATURES),
        run_dir=tmp_path / "run",
        rounds=5,
        codec=_CODEC,
        cohort=CohortSettings(size=2, minimum=3),
    )


def _elsewhere(config, name):
    """Another federation beside it."""
    run_dir = config.run_dir.with_name(name) / "run"
    return msgspec.structs.replace(config, federation=name, run_dir=run_dir)


def _bits(config):
    state = final_state(config)
    return state.round_id, {name: value.tobytes() for name, value in state.tensors.items()}


def _received(round_id):
    return lambda r: isinstance(r, events.UpdateReceived) and r.round_id == round_id


def _opened(round_id):
    return lambda r: isinstance(r, events.RoundOpened) and r.round_id == round_id


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize(
    "crash", [_received(3), _opened(4)], ids=["after an update", "as a round opens"]
)
def test_a_crash_of_the_coordinator_changes_no_bit(config, crash):
    """Two of three take part in a round, so that devices have different payloads."""
    with Federation(config, _DATA) as calm:
        calm.finish()
    rough = _elsewhere(config, "rough")
    with Federation(rough, _DATA, crash) as federation:
        with pytest.raises(CrashError):
            federation.coordinator.finish(60)
        federation.start_coordinator()
        result = federation.finish()
    assert [row["participants"] for row in result["rounds"]] == [2] * 5
    assert _bits(rough) == _bits(config)


@pytest.mark.slow(seconds=3)
def test_a_restarted_device_changes_no_bit(config):
    config = msgspec.structs.replace(config, cohort=CohortSettings(minimum=3))
    with Federation(config, _DATA) as calm:
        calm.finish()
    rough = _elsewhere(config, "rough")
    with Federation(rough, _DATA) as federation:
        federation.wait_for(_received(2))
        federation.devices["berta"].stop()
        federation.start("berta")
        result = federation.finish()
    assert [row["participants"] for row in result["rounds"]] == [3] * 5
    assert _bits(rough) == _bits(config)


def test_a_device_that_lost_its_store_gets_what_it_can_read(config):
    """Its differences to the bundle, while the others get theirs to the last payload."""
    config = msgspec.structs.replace(config, cohort=CohortSettings(minimum=3))
    with Federation(config, _DATA) as federation:
        federation.wait_for(_received(2))
        federation.devices["berta"].stop()
        shutil.rmtree(federation.store("berta"))
        federation.start("berta")
        result = federation.finish()
    assert [row["participants"] for row in result["rounds"]] == [3] * 5
    assert not [r for r in federation.reports if isinstance(r, events.TaskRefused)]


def test_a_device_keeps_a_residual_and_the_payloads_that_later_ones_may_name(config):
    with Federation(config, _DATA) as federation:
        federation.finish()
        with Store.open(federation.store("anna")) as store:
            residual = store.load_memory().residual
            assert residual.keys() == {"params/w"}
            assert residual["params/w"].any()
            assert 1 <= len(store.journal.payloads) <= 2
            for payload in store.journal.payloads:
                assert store.load_payload(payload.sha256).keys() == {"params/w", "params/b"}
