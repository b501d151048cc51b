"""What sensors publish by MQTT, in the forms of three systems and in hostile ones, into a CSV."""

from __future__ import annotations

import itertools
import json
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
from brokers import KillableBroker, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt import publish

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.cli import main
from protofleet.edge.data.mqtt_readings import (
    MOST_BYTES,
    ChannelTopic,
    Joiner,
    parse_payload,
    read_mqtt,
    time_of,
    value_at,
)
from protofleet.edge.data.termux import Reading
from protofleet.errors import InputError, UnavailableError
from protofleet.wire.mqtt import link as mqtt_link
from protofleet.wire.mqtt.broker_access import BrokerAccess, BrokerAddress
from protofleet.wire.mqtt.link import Connected, Disconnected, Link, LinkOptions, MqttMessage

_NOW = 1_780_000_000.0
"""2026-05-28T20:26:40Z."""


def _joined(topics, *messages):
    """What a joiner makes of (seconds, topic, payload), and the joiner."""
    joiner = Joiner([ChannelTopic.parse(text) for text in topics])
    found = []
    for after_s, topic, said in messages:
        payload = said if isinstance(said, bytes) else said.encode()
        message = MqttMessage(topic, payload, retained=False)
        found += joiner.push(message, _NOW + after_s)
    return found + joiner.flush(), joiner


def _rows(topics, *messages):
    found, _ = _joined(topics, *messages)
    return [(reading.time_s - _NOW, *reading.values) for reading in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("esphome/wrist/sensor/acc_x/state", ("esphome/wrist/sensor/acc_x/state", "", 1.0)),
        ("zigbee2mqtt/bed=temperature", ("zigbee2mqtt/bed", "temperature", 1.0)),
        ("a/b=c.d*0.10197", ("a/b", "c.d", 0.10197)),
        ("a/b*-1e-3", ("a/b", "", -0.001)),
    ],
)
def test_a_topic_has_a_field_and_a_factor(text, expected):
    assert ChannelTopic.parse(text) == ChannelTopic(*expected)


@pytest.mark.parametrize("text", ["", "=x", "a=", "a*", "a*x", "a*nan", "a*1e999", "a/+", "a/#"])
def test_what_names_no_topic_is_refused_with_the_form(text):
    with pytest.raises(InputError, match=r"expected (TOPIC\[=FIELD\]|the name of one topic)"):
        ChannelTopic.parse(text)


@pytest.mark.parametrize(
    ("payload", "field", "value"),
    [
        (b"21.5", "", 21.5),
        (b" -3e2\n", "", -300.0),
        (b"007", "", 7.0),
        (b'"21.5"', "", 21.5),
        (b'{"temperature": 21.5, "linkquality": 90}', "temperature", 21.5),
        (b'{"accel": {"x": 1, "y": 2}}', "accel.y", 2.0),
        (b'{"acc": [0.1, 0.2]}', "acc.1", 0.2),
        (b'{"event_data": {"new_state": {"state": "61"}}}', "event_data.new_state.state", 61.0),
        (b'{"temperature": null}', "temperature", None),
        (b'{"state": "Unknown"}', "state", None),
        (b"unavailable", "", None),
        (b"unavailable", "temperature", None),
        (b"", "", None),
    ],
)
def test_a_payload_is_a_number_or_json_with_one(payload, field, value):
    assert value_at(parse_payload(payload), field) == value


_HOSTILE = [
    (b"\xff\xfe2\x001\x00", "a", "a: not UTF-8"),
    (b"1" * (MOST_BYTES + 1), "a", "a: more than 64 KiB"),
    (b"x" * 1_000_000, "a", "a: more than 64 KiB"),
    (b"[" * 60_000, "a=x", "a: JSON that is nested too deep"),
    (b"nan", "a", "a: no finite number"),
    (b"Infinity", "a", "a: no finite number"),
    (b"1e999", "a", "a: no finite number"),
    (b"9" * 5_000, "a", "a: no finite number"),
    (b"1" + b"0" * 400, "a", "a: no finite number"),
    (b"1e308", "a*10", "a: no finite number"),
    (b"1_000", "a", "a: no finite number"),
    ("١٢".encode(), "a", "a: no finite number"),
    (b"21.5 C", "a", "a: no finite number"),
    (b"ON", "a", "a: no finite number"),
    (b"true", "a", "a: no finite number"),
    (b'{"x": true}', "a=x", "a=x: no finite number"),
    (b'{"x": {"y": 1}}', "a=x", "a=x: no finite number"),
    (b'{"x": NaN}', "a=x", "a=x: no finite number"),
    (b'{"y": 1}', "a=x", "a=x: no such field"),
    (b"[1]", "a=1", "a=1: no such field"),
    (b"[1]", "a=" + "9" * 5_000, "a=" + "9" * 5_000 + ": no such field"),
    (b"21.5", "a=x", "a=x: no JSON"),
    (b'{"x": 1', "a=x", "a=x: no JSON"),
    (b'{"x": 1}', "a", "a: JSON; name its field, TOPIC=FIELD"),
    (b"unavailable", "a", "a: the sensor has no value (unavailable, unknown, null)"),
]


@pytest.mark.parametrize(("payload", "topic", "reason"), _HOSTILE)
def test_what_is_no_number_is_counted_by_its_reason(payload, topic, reason):
    found, joiner = _joined([topic], (0, "a", payload), (1, "a", payload))
    assert found == []
    assert joiner.left_out == {reason: 2}
    assert joiner.silent == (ChannelTopic.parse(topic),)


_SAID = st.one_of(
    st.binary(max_size=50),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["x", "time", "timestamp"]), inner, max_size=3),
        ),
    ).map(lambda value: json.dumps(value).encode()),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("ab"), _SAID), max_size=6))
def test_any_payload_gives_a_reading_or_is_counted(said):
    found, joiner = _joined(["a=x", "b"], *((k, *one) for k, one in enumerate(said)))
    of_a = sum(times for reason, times in joiner.left_out.items() if reason.startswith("a"))
    of_b = sum(times for reason, times in joiner.left_out.items() if reason.startswith("b"))
    topics = [topic for topic, _ in said]
    assert len(found) <= topics.count("a") - of_a
    assert (ChannelTopic("b") in joiner.silent) == (of_b == topics.count("b"))
    for reading in found:
        assert len(reading.values) == 2
        assert all(abs(value) < float("inf") for value in reading.values)
        assert abs(reading.time_s - _NOW) <= 86_400 + len(said)


def test_several_channels_come_out_of_one_message():
    one = '{"accel": {"x": 1, "y": 2}}'
    found, joiner = _joined(["m=accel.x", "m=accel.y*10"], (0, "m", one))
    assert found == [Reading(_NOW, (1.0, 20.0))]
    assert joiner.topics == ("m",)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_sensors_that_speak_together_are_joined_whatever_comes_first(order):
    """Three axes every 50 ms, 2 ms apart; what was said before the first round is not mixed in."""
    places = itertools.product(range(4), enumerate(order))
    said = [(0.05 * n + 0.002 * place, f"{k}", f"{n}{k}") for n, (place, k) in places]
    rows = _rows(["0", "1", "2"], *said)
    assert [row[1:] for row in rows] == [(10.0 * n, 10.0 * n + 1, 10.0 * n + 2) for n in range(4)]


def test_of_a_slower_sensor_the_newest_value_is_taken_and_of_a_faster_one_the_nearest():
    slow = _rows(
        ["fast", "slow"],
        (0, "slow", "5"), (10, "fast", "1"), (11, "fast", "2"), (30, "slow", "6"),
        (31, "fast", "3"),
    )  # fmt: skip
    assert slow == [(10.0, 1.0, 5.0), (11.0, 2.0, 5.0), (31.0, 3.0, 6.0)]
    fast = _rows(
        ["slow", "fast"],
        (0, "fast", "1"), (0.75, "fast", "2"), (1, "slow", "9"), (1.5, "fast", "3"),
        (2.25, "fast", "4"), (3, "slow", "8"), (3.25, "fast", "5"),
    )  # fmt: skip
    assert fast == [(1.0, 9.0, 2.0), (3.0, 8.0, 5.0)]


def test_a_reading_waits_until_all_have_spoken_and_no_longer():
    joiner = Joiner([ChannelTopic("a"), ChannelTopic("b")])

    def push(topic, said, after_s):
        return joiner.push(MqttMessage(topic, said, retained=False), _NOW + after_s)

    assert push("b", b"1", 0) == []
    assert push("a", b"2", 1) == []
    assert push("b", b"3", 1.5) == [Reading(_NOW + 1, (2.0, 3.0))]
    assert joiner.flush() == []


def test_a_sensor_that_went_away_gives_no_more_readings_until_it_is_back():
    rows = _rows(
        ["a", "b"],
        (0, "b", "1"), (10, "a", "1"), (11, "b", "unavailable"), (20, "a", "2"), (30, "a", "3"),
        (31, "b", "7"), (40, "a", "unknown"), (41, "b", "8"), (50, "a", "5"),
        (51, "b", "unavailable"), (60, "a", "6"), (61, "a", "unknown"), (70, "b", "9"),
    )  # fmt: skip
    assert rows == [(10.0, 1.0, 1.0), (30.0, 3.0, 7.0), (50.0, 5.0, 8.0)]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"timestamp": _NOW + 5.25}, 5.25),
        ({"time": int(_NOW * 1000) + 5250}, 5.25),
        ({"timestamp": int(_NOW) * 10**9}, 0.0),
        ({"timestamp": str(_NOW + 2)}, 2.0),
        ({"last_seen": "2026-05-28T20:26:45.250Z"}, 5.25),
        ({"last_seen": "2026-05-28T22:26:45+0200"}, 5.0),
        ({"Time": "2026-05-28T22:26:40"}, 7200.0),
        ({"time": "20:26:45", "last_seen": "2026-05-28T20:26:41Z"}, 1.0),
        ({"time": 86_399}, 30.0),
        ({"timestamp": "2021-01-01T00:00:00Z"}, 30.0),
        ({"timestamp": True}, 30.0),
        ({"timestamp": float("nan")}, 30.0),
        ({"timestamp": 10**400}, 30.0),
        ({"timestamp": ["2026-05-28"]}, 30.0),
        ({"timestamp": "0001-01-01T00:00:00+14:00"}, 30.0),
        ([], 30.0),
        (21.5, 30.0),
    ],
)
def test_a_time_is_the_messages_own_if_it_can_be_true_else_that_of_arrival(said, expected):
    assert time_of(said, _NOW + 30) == pytest.approx(_NOW + expected, abs=1e-3)


def test_a_reading_has_the_time_of_its_first_channel():
    own = json.dumps({"x": 1, "time": _NOW - 2})
    assert _rows(["a=x", "b"], (0, "a", own), (0.5, "b", "4")) == [(-2.0, 1.0, 4.0)]


class _Events:
    """Events a second apart by their own clock."""

    def __init__(self, *events):
        self.events, self.now = list(events), _NOW

    def get(self, timeout_s=None):
        comes = bool(self.events) and (timeout_s is None or timeout_s >= 1.0)
        self.now += 1.0 if comes else timeout_s
        return self.events.pop(0) if comes else None

    def clock(self):
        return self.now


def _message(said):
    return MqttMessage("a", said, retained=False)


def test_a_recording_begins_ends_and_outlives_lost_connections(caplog):
    lost = Disconnected("connection lost")
    said = [_message(b"%d" % n) for n in range(5)]
    source = _Events(Connected("5"), *said[:3], lost, Connected("5"), *said[3:])
    joiner = Joiner([ChannelTopic("a")])
    end_s = _NOW + 7.5
    readings = list(read_mqtt(source, joiner, source.clock, begin_s=_NOW + 3, end_s=end_s))
    assert [reading.values for reading in readings] == [(1.0,), (2.0,), (3.0,)]
    assert "connection lost; trying again" in caplog.text


def test_the_reading_that_is_open_at_the_end_is_kept():
    source = _Events(MqttMessage("b", b"1", retained=False), _message(b"2"))
    joiner = Joiner([ChannelTopic("a"), ChannelTopic("b")])
    found = list(read_mqtt(source, joiner, source.clock, end_s=_NOW + 4))
    assert [reading.values for reading in found] == [(2.0, 1.0)]


def test_a_broker_that_refuses_the_account_ends_it():
    source = _Events(Disconnected("broker refused: Not authorized", final=True))
    with pytest.raises(UnavailableError, match=r"Not authorized.*--broker-user"):
        next(read_mqtt(source, Joiner([ChannelTopic("a")]), source.clock))


def _publish(url, *messages, retain=False):
    place = BrokerAddress.parse(url)
    publish.multiple(
        [{"topic": topic, "payload": said, "qos": 1, "retain": retain} for topic, said in messages],
        hostname=place.host,
        port=place.port,
    )


@pytest.mark.mosquitto
def test_readings_go_on_when_the_broker_was_gone(tmp_path):
    joiner = Joiner([ChannelTopic("a", "x")])
    with KillableBroker(tmp_path) as broker:
        options = LinkOptions(broker=BrokerAccess(url=broker.url), filters=joiner.topics)
        link = Link(options)
        link.start()
        try:
            readings = read_mqtt(link, joiner, time.time)
            for said in (1.0, 2.0):
                wait_until(lambda: link.connected)
                _publish(broker.url, ("a", json.dumps({"x": said})))
                assert next(readings).values == (said,)
                if said == 1.0:
                    broker.restart()
                    wait_until(lambda: not link.connected)
        finally:
            link.close()


@pytest.fixture
def bundle(world, monkeypatch):
    """The world's bundle as one of three sensors."""
    inputs = Preprocessing(
        input_shape=(8, 3),
        rate_hz=10.0,
        window=8,
        hop=4,
        channels=("temperature", "acc_x", "pulse"),
        mean=(1.0,),
    )
    manifest = msgspec.structs.replace(world.bundle.manifest, preprocessing=inputs)
    monkeypatch.setattr(Bundle, "open", lambda *_, **__: SimpleNamespace(manifest=manifest))
    monkeypatch.setattr("protofleet.cli.record.trusted_keys", lambda _: frozenset())


_BED, _WRIST = "zigbee2mqtt/bed", "wrist/sensor/acc_x/state"
_PULSE = "homeassistant/sensor/pulse/state"
_GIVEN = (
    *("--bundle", "b.pfb", "--label", "class0", "--after", "0"),
    *("--topic", f"{_BED}=temperature", "--topic", f"{_WRIST}*2", "--topic", _PULSE),
)


def _record(capsys, *given, code):
    with pytest.raises(SystemExit) as ended:
        main(["device", "record", *given])
    assert ended.value.code == code
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.mosquitto
@pytest.mark.usefixtures("bundle")
def test_three_systems_fill_a_csv(mosquitto_url, tmp_path, monkeypatch, capsys):
    """Zigbee2MQTT's JSON, ESPHome's and Home Assistant's numbers, and what they say while away."""
    links, over = [], threading.Event()

    class Watched(Link):
        def __init__(self, options):
            super().__init__(options)
            links.append(self)

    def bed(temperature, time_s):
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_s))
        return json.dumps(
            {"temperature": temperature, "linkquality": 98, "last_seen": f"{stamp}.250Z"}
        )

    now = int(time.time())

    def play():
        wait_until(lambda: links and links[0].connected)
        _publish(
            mosquitto_url,
            (_PULSE, "unavailable"), (_BED, bed(20.0, now)), (_WRIST, "0.25"), (_WRIST, b"\xff"),
            (_PULSE, "61"), (_PULSE, "unavailable"), (_WRIST, "unknown"), (_BED, bed(None, now)),
            (_BED, bed(20.5, now + 1)), (_WRIST, "0.5"), (_PULSE, "62"),
        )  # fmt: skip
        wait_until(lambda: len(out.read_text().splitlines()) == 3)
        over.set()
        _publish(mosquitto_url, (_BED, "{}"))  # wakes it, to see that its time is over

    out = tmp_path / "mine.csv"
    clock = SimpleNamespace(time=lambda: time.time() + 1e6 * over.is_set())
    monkeypatch.setattr("protofleet.cli.record.time", clock)
    monkeypatch.setattr(mqtt_link, "Link", Watched)
    _publish(mosquitto_url, (_WRIST, "99"), retain=True)
    player = threading.Thread(target=play)
    player.start()
    said = _record(
        capsys, *_GIVEN, "--broker", mosquitto_url, "--out", str(out), "--seconds", "500", code=0
    )
    player.join()
    assert out.read_text().splitlines() == [
        "time_s,temperature,acc_x,pulse,label",
        f"{now}.2500,20.0,0.5,61.0,class0",
        f"{now + 1}.2500,20.5,1.0,62.0,class0",
    ]
    assert f"1 x {_WRIST}: retained, so of before the recording" in said
    assert f"1 x {_WRIST}: not UTF-8" in said
    assert f"2 x {_PULSE}: the sensor has no value" in said
    assert said.endswith("2 readings")


@pytest.mark.usefixtures("bundle")
def test_topics_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, capsys):
    out = tmp_path / "mine.csv"
    broker = ("--broker", "mqtt://127.0.0.1:1", "--out", str(out))
    given = ("--bundle", "b.pfb", *broker)
    said = _record(capsys, *given, "--topic", "a", code=1)
    assert "one for each channel of the bundle (temperature, acc_x, pulse), in this order" in said
    assert "expected the name of one topic" in _record(capsys, *given, "--topic", "a/#", code=2)
    either = "one of --sensor, --iio, --serial, or --topic together with --broker"
    assert either in _record(capsys, *given, code=2)
    assert either in _record(capsys, *given, "--topic", "a", "--sensor", "a", code=2)
    assert either in _record(capsys, *_GIVEN, "--out", str(out), code=2)
    assert not out.exists()
