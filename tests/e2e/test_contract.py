"""What strategies may ask of the wire: class counts, other data, a final fit, abstaining."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from itertools import groupby

import census_strategy
import msgspec
import numpy as np
import pytest
from hostile_device import HostileDevice
from packed import pack_update
from threaded import CrashError, Federation, Thread, final_state
from tiny_bundle import tiny_bundle, tiny_data

from protofleet import strategies
from protofleet.coordinator import events
from protofleet.coordinator.process.run import open_service
from protofleet.datasets import DeviceData
from protofleet.edge.learning.training import LocalData
from protofleet.errors import InputError
from protofleet.federation.records import Costs
from protofleet.federation.settings import CohortSettings, FederationConfig, StrategySettings
from protofleet.strategies.types import Update
from protofleet.wire.messages import Presence, decode
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Link, LinkOptions, MqttMessage
from protofleet.wire.topics import Topics

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=1)]


@pytest.fixture(autouse=True)
def _census(monkeypatch):
    monkeypatch.setitem(strategies.STRATEGIES, "census", census_strategy.Census)
    monkeypatch.setitem(strategies.DESCRIPTIONS, "census", census_strategy.Census.description)


@pytest.fixture
def config(tmp_path, mosquitto_url, key):
    return FederationConfig(
        federation="home",
        broker=BrokerAccess(url=mosquitto_url),
        bundle=tiny_bundle(tmp_path / "tiny.pfb", key),
        run_dir=tmp_path / "run",
        rounds=2,
        strategy=StrategySettings(name="census", settings={"optimiser": {"lr": 0.1}}),
        cohort=CohortSettings(minimum=2),
    )


def _part(seed, *counts):
    """Examples with so many of each class."""
    y = np.repeat(np.arange(3), counts)
    x, _ = tiny_data(seed, len(y))
    test = tiny_data(1000 + seed, 6)
    classes = ("class0", "class1", "class2")
    return DeviceData(x_train=x, y_train=y, x_test=test[0], y_test=test[1], classes=classes)


_DATA = {
    "anna": LocalData(own=_part(1, 10, 5, 1), later=((2, _part(2, 1, 2, 0)),)),
    "berta": LocalData(own=_part(3, 0, 0, 100)),
}


def test_counts_are_those_of_the_round_s_data_and_the_last_fit_is_not_aggregated(config):
    with Federation(config, _DATA) as federation:
        result = federation.finish()
    state = final_state(config)
    found = {name: value.tolist() for name, value in state.tensors.items()}
    assert found == {
        "seen/1": [10, 5, 101],
        "senders/1": 0,
        "seen/2": [1, 2, 100],
        "senders/2": 2,
    }
    assert state.round_id == 3
    rows = [(row["round_id"], row["final"], row["participants"]) for row in result["rounds"]]
    assert rows == [(1, False, 2), (2, False, 2), (3, True, 2)]
    assert ["more" in row["scores"] for row in result["rounds"]] == [False, False, True]
    assert result["scores"]["more"].keys() == {"final"}
    finished = federation.reports[-1]
    assert (type(finished), finished.rounds) == (events.Finished, 2)


@contextmanager
def _presences(config, found):
    """Records of anna's topic as they pass the broker."""
    topic = Topics("home")
    filters = (f"{topic.announcement[: -len('all/ctl')]}st/anna",)
    over, ready = threading.Event(), threading.Event()
    link = Link(LinkOptions(broker=config.broker, filters=filters))

    def watch():
        with closing(link):
            link.start()
            while not over.is_set():
                event = link.get(0.02)
                if isinstance(event, Connected):
                    ready.set()
                elif isinstance(event, MqttMessage):
                    found.append(decode(event.payload, Presence))

    thread = Thread("eye", watch)
    assert ready.wait(10)
    yield
    over.set()
    thread.finish(10)


def test_counts_are_told_when_asked_for_and_again_when_the_data_change(config):
    found = []
    with _presences(config, found), Federation(config, _DATA) as federation:
        federation.finish()
    # A presence may be repeated: the coordinator calls the roll at its start.
    told = [key for key, _ in groupby((p.status, p.num_examples, p.class_counts) for p in found)]
    assert told == [
        ("online", 16, ()),
        ("online", 16, (10, 5, 1)),
        ("online", 3, (1, 2, 0)),
        ("left", 16, ()),
    ]


def test_a_strategy_that_does_not_ask_gets_no_counts(config):
    found = []
    config = msgspec.structs.replace(config, strategy=StrategySettings(name="fedavg"))
    with _presences(config, found), Federation(config, _DATA) as federation:
        federation.finish()
    assert {p.status for p in found} == {"online", "left"}
    assert {p.class_counts for p in found} == {()}


@pytest.mark.parametrize(
    "crash",
    [
        lambda r: isinstance(r, events.RoundOpened) and r.final,
        lambda r: isinstance(r, events.UpdateReceived) and r.round_id == 3,
        lambda r: isinstance(r, events.UpdateReceived) and (r.round_id, r.delivered) == (3, 2),
        lambda r: isinstance(r, events.RoundClosed) and r.final,
        lambda r: isinstance(r, events.RoundClosed) and r.round_id == 2,
    ],
    ids=["opened", "one update", "all updates", "closed", "before it"],
)
def test_a_final_fit_goes_on_after_a_crash_of_the_coordinator(config, crash):
    with Federation(config, _DATA, crash) as federation:
        with pytest.raises(CrashError):
            federation.coordinator.finish(60)
        federation.start_coordinator()
        result = federation.finish()
    rows = [(row["round_id"], row["final"], row["participants"]) for row in result["rounds"]]
    assert rows == [(1, False, 2), (2, False, 2), (3, True, 2)]
    assert final_state(config).tensors.keys() == {"seen/1", "senders/1", "seen/2", "senders/2"}


def test_after_a_final_fit_a_run_takes_no_more_rounds(config):
    with Federation(config, _DATA) as federation:
        federation.finish()
    more = msgspec.structs.replace(config, rounds=3)
    with pytest.raises(InputError, match="expected 2, after which"), open_service(more, print):
        pass


def test_a_device_that_registers_what_cannot_be_never_takes_part(config):
    hostile = HostileDevice(config, "hostile", lambda _: b"", class_counts=(2**60, 1, 1))
    with Federation(config, _DATA) as federation:
        federation.finish()
    hostile.stop()
    opened = [r for r in federation.reports if isinstance(r, events.RoundOpened)]
    assert {r.cohort for r in opened} == {("anna", "berta")}
    refused = [r.rule for r in federation.reports if isinstance(r, events.DeviceRefused)]
    assert set(refused) == {"class-counts"}


def test_an_update_of_more_examples_than_were_registered_is_refused(config):
    config = msgspec.structs.replace(config, cohort=CohortSettings(minimum=3))

    def boast(round_id):
        update = Update(client_id="hostile", round_id=round_id, num_examples=10**6, tensors={})
        return pack_update(update, Costs())

    hostile = HostileDevice(config, "hostile", boast, class_counts=(1, 0, 0))
    with Federation(config, _DATA) as federation:
        result = federation.finish()
    hostile.stop()
    assert "registered class counts, 1, got 1000000" in hostile.rejections[0]
    assert [row["participants"] for row in result["rounds"]] == [2, 2, 2]
