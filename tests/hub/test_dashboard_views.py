"""Pages without a run: five thousand devices, alerts, prototypes, and what hostile names become."""

from __future__ import annotations

import gzip
import re

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from protofleet.coordinator import events
from protofleet.coordinator.devices.registry import Device
from protofleet.coordinator.devices.sightings import Sightings
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.federation.outcomes.calibration import CalibrationProgress, choose
from protofleet.federation.records import RoundRecord, Scores, Spread
from protofleet.hub.dashboard.access import Access
from protofleet.hub.dashboard.app import Dashboard
from protofleet.hub.dashboard.details import RoundTimes
from protofleet.hub.dashboard.pages import PageRequest, now, rounds
from protofleet.hub.dashboard.pages.alerts import alerts_of
from protofleet.hub.dashboard.prototypes import read_prototypes
from protofleet.hub.dashboard.records import CurrentRound, DeviceView, LoggedEvent, RunSnapshot
from protofleet.hub.dashboard.watch import Watch, WatchedRun, run_keys
from protofleet.strategies.types import ServerState
from protofleet.tensors import blobs
from protofleet.wire.mqtt.usage import DeviceUsage

_MANY = 5000
_IDENTITY = {"federation": "home", "strategy": "fedavg", "bundle": "ab" * 32}


def _client(folder, tmp_path):
    access = Access(tmp_path / "keys" / "operator-token", to_look=False)
    return TestClient(Dashboard(Watch([WatchedRun("home", folder)]), access).app)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """A run folder with five thousand devices, half of which have gone."""
    folder = tmp_path_factory.mktemp("crowd") / "run"
    names = [f"device{number:05d}" for number in range(_MANY)]
    with Ledger(folder, _IDENTITY) as ledger:
        ledger.open_round(1, names, 1e9)
        for number, name in enumerate(names):
            used = DeviceUsage(bytes_up=number, bytes_down=2 * number, peak_rss_bytes=3)
            ledger.usage.note(name, 1, used)
    sightings = Sightings(folder)
    for number, name in enumerate(names):
        known = Device(device_id=name, fits=True, live=True, bundle="ab" * 32)
        sightings.stands(name, "online", known)
        if number % 2:
            sightings.stands(name, "silent")
    sightings.close()
    return folder


def test_who_is_late_with_an_earlier_task_is_shown_with_what_it_does():
    slow = DeviceView(device_id="slow", state="online", phase="train", phase_round=2)
    current = CurrentRound(
        round_id=5, phase="open", final=False, size=1, attempt=0, opened_s=1e9,
        cohort=("quick",), late=("slow",),
    )  # fmt: skip
    devices = {"slow": slow, "quick": DeviceView(device_id="quick", state="online")}
    run = RunSnapshot(
        key="a", name="a", folder="a", read_s=1e9, operation="running", served=True,
        current=current, devices=devices,
    )  # fmt: skip
    page = now.view(PageRequest(run=run, query={}, now_s=1e9, runs={}))
    told = [(cell.device_id, cell.look, cell.text) for cell in page.cells]
    assert told == [("quick", "idle", "has not begun"), ("slow", "busy", "trains")]


def test_a_page_of_five_thousand_devices_is_small_in_every_order(crowd, tmp_path):
    client = _client(crowd, tmp_path)
    for query in (
        "",
        "?sort=up&order=descending",
        "?state=silent&first=2450",
        "?search=device0499",
    ):
        page = client.get(f"/home/fleet{query}")
        assert len(page.content) < 60_000
        assert len(gzip.compress(page.content)) < 6_000
    found = re.findall(r'id="d-(\w+)"', client.get("/home/fleet?sort=up&order=descending").text)
    assert found == [f"device{number:05d}" for number in range(_MANY - 1, _MANY - 51, -1)]
    found = re.findall(r'id="d-(\w+)"', client.get("/home/fleet?state=silent&first=2450").text)
    assert found[-1] == f"device{_MANY - 1:05d}"
    assert len(found) == 50


def test_pages_of_a_crowd_swap_the_table_alone_and_have_addresses_of_their_own(crowd, tmp_path):
    client = _client(crowd, tmp_path)

    def links(query):
        text = client.get(f"/home/fleet{query}").text
        found = [re.search(rf'<a id="{name}"([^>]*)>', text)[1] for name in ("before", "next")]
        for one in found:
            assert re.findall(r' href="([^"]*)', one) == re.findall(r' hx-get="([^"]*)', one)
            assert (' hx-target="#live"' in one) != (' aria-disabled="true"' in one)
        return [re.findall(r"first=(\d+)", one)[:1] for one in found]

    assert links("") == [[], ["50"]]
    assert links("?first=50") == [["0"], ["100"]]
    assert links("?first=4950") == [["4900"], []]


@pytest.mark.parametrize("name", ["now", "rounds", "costs", "alerts", "federations", "model"])
def test_other_pages_name_a_part_of_a_crowd(crowd, tmp_path, name):
    assert len(_client(crowd, tmp_path).get(f"/home/{name}").content) < 120_000


@pytest.mark.parametrize(
    "query", ["?first=99999999", "?first=-1", "?sort=x&order=y", "?search=%00"]
)
def test_nonsense_in_an_address_is_no_error(crowd, tmp_path, query):
    assert _client(crowd, tmp_path).get(f"/home/fleet{query}").status_code == 200


def test_what_devices_write_is_shown_as_text(tmp_path):
    folder = tmp_path / "run"
    with Ledger(folder, _IDENTITY):
        pass
    bad = "<script>alert(1)</script>\x1b[2J"
    event = events.UpdateRejected(round_id=1, device_id="d", rule="r", reason=bad)
    (folder / "events.jsonl").write_text(f"{events.to_line(event, 1.0)}\nhalf a li")
    text = _client(folder, tmp_path).get("/home/now").text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert "\x1b" not in text


def test_a_devices_last_log_is_shown_as_text_however_much_has_happened_since(tmp_path):
    folder, name = tmp_path / "run", "anna"
    with Ledger(folder, _IDENTITY) as ledger:
        ledger.open_round(1, [name, "berta"], 1e9)
    sent = {"event": "device_log", "time_s": 1.0, "device_id": name, "round_id": 7}
    lines = ["first"] * 100 + ["<b>bad</b>\x1b[2J " + "x" * 5000] + ["last"] * 50
    later = {"event": "waiting", "time_s": 2.0, "round_id": 1, "live": 0, "needed": 1}
    stream = [sent | {"lines": lines}, *[later] * 3000]
    (folder / "events.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, stream)) + b"\n")
    client = _client(folder, tmp_path)
    text = client.get(f"/home/device?id={name}").text
    (log,) = re.findall(r'<pre class="log"[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert log.count("first") == 49
    assert log.count("last") == 50
    assert "&lt;b&gt;bad&lt;/b&gt;" in log
    assert log.count("x") < 400
    assert "\x1b" not in log
    assert "when round 7 failed on it" in text
    assert "It has sent none" in client.get("/home/device?id=berta").text


def test_a_folder_without_a_run_and_a_damaged_one_say_so(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert _client(empty, tmp_path).get("/home/now").status_code == 200
    (empty / "ledger.sqlite").write_bytes(b"no database at all" * 100)
    assert "file is not a database" in _client(empty, tmp_path).get("/home/now").text


def _round(round_id, loss):
    scores = Scores(own_loss=Spread(mean=loss, std=0.0, n=2))
    return RoundRecord(
        round_id=round_id, seconds=1, participants=2, bytes_up=0, bytes_down=0, scores=scores
    )


def _run(**fields):
    base = {"key": "home", "name": "home", "folder": "/run", "read_s": 0.0, "operation": "running"}
    return RunSnapshot(**{**base, **fields})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"operation": "down", "identity": _IDENTITY}, "no coordinator serves"),
        ({"disk_bytes": 10**11, "disk_free_bytes": 10**9}, "1 GB left"),
        ({"devices": {"a": DeviceView(device_id="a", state="silent")}}, "is not heard of"),
        (
            {"devices": {n: DeviceView(device_id=n, state="offline") for n in "ab"}},
            "^2 devices have lost their connection$",
        ),
        ({"devices": {"a": DeviceView(device_id="a", state="refused")}}, "cannot take part"),
        ({"committed": [_round(n, x) for n, x in enumerate((1, 1.1, 1.2, 1.3))]}, "loss .* rises"),
        (
            {
                "events": (
                    LoggedEvent.of(
                        events.UpdateRejected(round_id=1, device_id="a", rule="norm", reason="x"),
                        99.0,
                    ),
                )
            },
            "rule 'norm': 1",
        ),
        (
            {
                "served": True,
                "events": (LoggedEvent.of(events.BrokerDisconnected(reason="gone"), 9.0),),
            },
            "no connection to the broker",
        ),
    ],
)
def test_an_alert_says_what_is_wrong(fields, said):
    (alert,) = alerts_of(_run(**fields), now_s=100.0)
    assert re.search(said, alert.what)
    assert alert.remedy


def test_alerts_of_one_level_are_no_landmarks_of_one_name(tmp_path):
    folder = tmp_path / "run"
    with Ledger(folder, _IDENTITY):
        pass
    sightings = Sightings(folder)
    for name, state in (("anna", "silent"), ("berta", "offline")):
        sightings.stands(name, "online", Device(device_id=name, fits=True, live=True, bundle="ab"))
        sightings.stands(name, state)
    sightings.close()
    text = _client(folder, tmp_path).get("/home/alerts").text
    assert text.count('class="card alert warning"') == 2
    assert "<section" not in text


def test_a_run_that_goes_well_has_no_alert():
    devices = {"a": DeviceView(device_id="a", state="online")}
    committed = [_round(number, 1 / (1 + number)) for number in range(5)]
    refusal = events.TaskRefused(round_id=1, device_id="a", rule="policy", reason="night")
    held = LoggedEvent.of(refusal, 0.9)
    run = _run(devices=devices, committed=committed, disk_bytes=0, events=(held,))
    assert alerts_of(run, now_s=1.0) == ()


def test_prototypes_move_from_their_own_places_of_the_round_before(tmp_path):
    states = tmp_path / "states"
    states.mkdir()
    first = np.array([[0, 0, 0], [10, 0, 0], [0, 10, 0]], np.float32)
    # Each moved by more than the way to another's place.
    second = np.roll(first, 1, axis=0)
    for round_id, values in ((1, first), (2, second)):
        tensors = {"state/l.global_prototypes": values, "params/w": np.ones((4, 4), np.float32)}
        (states / f"{round_id:06d}.safetensors").write_bytes(blobs.encode(tensors))
    (layer,) = read_prototypes(tmp_path)
    ways = [10.0, 10.0, 200**0.5]
    assert (layer.rounds, layer.count) == ((1, 2), 3)
    assert layer.shift == pytest.approx(np.mean(ways))
    lengths = [np.linalg.norm(np.subtract(end, start)) for start, end in layer.moves]
    assert sorted(lengths) == pytest.approx(ways)
    assert [end for _, end in layer.moves] == list(layer.points)


def test_the_model_page_draws_the_prototypes_of_a_runs_states(tmp_path):
    folder, generator = tmp_path / "run", np.random.default_rng(0)
    with Ledger(folder, _IDENTITY) as ledger:
        for round_id in (1, 2, 3):
            values = generator.normal(size=(200, 5)).astype(np.float32)
            state = ServerState(round_id=round_id, tensors={"state/l.global_prototypes": values})
            ledger.open_round(round_id, ["anna"], 1e9)
            scores = _round(round_id, 1.0).scores
            ledger.commit_round(state, scores, 1e9 + 1, update_norms={"w": 0.5}, keep_states=2)
    text = _client(folder, tmp_path).get("/home/model").text
    assert "100 of 200 after round 3" in text
    assert text.count('<circle class="prototype"') == 100
    assert text.count('<line class="moved"') == 100
    assert "Devices' own are not shown" in text
    assert "Drift of devices from the server" in text


def test_the_model_page_draws_the_learning_rates_that_were_tried(tmp_path):
    folder = tmp_path / "run"
    asked = CalibrationProgress(asked=("anna",))
    told = [np.array([0.9, 0.0, 10.0])]
    chosen = choose("sgd", (0.01, 0.1, 1.0), told, otherwise=0.1)
    page = now.view(PageRequest(run=_run(calibration=asked), query={}, now_s=1e9, runs={}))
    assert page.headline == "Round 1 waits for a learning rate"
    with Ledger(folder, _IDENTITY) as ledger:
        ledger.run.note_calibration(msgspec.structs.replace(asked, chosen=chosen))
    text = _client(folder, tmp_path).get("/home/model").text
    assert "0.01: 0.9, 0.1: 0, 1: 10" in text
    assert "learning rate 0.1 (sgd), chosen by 1 device from 3" in text
    assert text.count('<circle class="prototype"') == 3
    assert text.count('r="6"') == 1


def test_runs_of_one_name_have_keys_of_their_own(tmp_path):
    names = ["a/run", "b/run", "c/sign-in", "d/e f"]
    runs = [WatchedRun("", tmp_path / name) for name in names]
    assert run_keys(runs) == ["run", "run-2", "sign-in-2", "e-f"]


def test_who_is_awaited_straggles_once_it_takes_longer_than_the_others():
    """And whose round has closed without it; not everybody while the first have just answered."""

    def stragglers(seconds, now_s):
        times = RoundTimes(
            round_id=1, opened_s=0.0, seconds=seconds, phases_s={"a": {"train": 1.0}, "b": {}}
        )
        run = RunSnapshot(key="home", name="home", folder="run", read_s=0.0)
        lanes, _ = rounds._lanes(run, times, now_s)
        return [one.device_id for one in lanes if one.straggles]

    assert stragglers(None, 1.5) == []
    assert stragglers(None, 30.0) == ["b"]
    assert stragglers(5.0, 30.0) == ["b"]
