"""The trail of what operators did and of what was refused: every act a line, of a flood few."""

from __future__ import annotations

import json
import socket
import threading

import msgspec
import pytest
from brokers import answers, wait_until
from starlette.testclient import TestClient

from protofleet.errors import InputError
from protofleet.hub.app import make_app
from protofleet.hub.dashboard import trail as trails
from protofleet.hub.dashboard.access import Access
from protofleet.hub.dashboard.app import Dashboard
from protofleet.hub.dashboard.trail import AuditRecord, Trail, read_trail
from protofleet.hub.dashboard.watch import Watch, WatchedRun
from protofleet.hub.names import Names
from protofleet.hub.run import Hub, HubOptions

_ORIGIN = {"Origin": "http://localhost"}
_RECORD = AuditRecord(time_s=1.0, address="::1", session="", action="a", target="", outcome="done")


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def access(tmp_path):
    return Access(tmp_path / "keys" / "operator-token", to_look=False)


@pytest.fixture
def client(access, tmp_path):
    watch = Watch([WatchedRun("home", tmp_path / "run")])
    app = make_app(Names(["localhost"]), dashboard=Dashboard(watch, access))
    with TestClient(app, base_url="http://localhost") as found:
        yield found


def _flood(client, number):
    """What somebody without token and session may send: fields as long as a form may be."""
    device = "\x9b\n" + "x" * 2000 if number % 2 else "ü" * 300
    path = f"/dashboard/home/do/{('pause', 'revoke', 'nothing')[number % 3]}"
    origin = _ORIGIN if number % 5 else {"Origin": "http://evil.test"}
    cookie = {"Cookie": f"protofleet_operator={number}"}
    fields = {"device": device, "form_token": str(number), "token": device}
    assert client.post(path, data=fields, headers=origin | cookie).status_code in (403, 404)
    assert client.post("/dashboard/sign-in", data=fields, headers=origin).status_code == 403


def test_strangers_refused_by_the_hundred_write_a_line_of_each_kind(
    client, access, tmp_path, monkeypatch
):
    folder, clock = tmp_path / "keys", [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    for number in range(300):
        _flood(client, number)
    first = _lines(folder / "refused.jsonl")
    assert len(first) == 5  # two actions, each from a page of the hub and from another, and sign-in
    assert {line["refused"] for line in first} == {1}
    assert (folder / "refused.jsonl").stat().st_size < 5 * 1000
    clock[0] += 60.0
    _flood(client, 1)
    assert len(_lines(folder / "refused.jsonl")) == 10
    access.trail.tell(everything=True)
    later = _lines(folder / "refused.jsonl")[5:]
    assert sum(line["refused"] for line in later) == 300 + 200 + 2 - 5
    assert all(len(line["target"]) < len(str(tmp_path)) + 90 for line in first + later)
    assert all(line["target"].isprintable() for line in first + later)
    assert _lines(folder / "audit.jsonl") == []


def test_an_act_is_a_line_in_the_midst_of_a_flood_and_stays_in_sight(client, access, tmp_path):
    for number in range(100):
        _flood(client, number)
    client.post("/dashboard/sign-in", data={"token": access.token}, headers=_ORIGIN)
    client.cookies.delete("protofleet_operator")
    for number in range(100):
        _flood(client, number)
    (line,) = _lines(tmp_path / "keys" / "audit.jsonl")
    assert (line["action"], line["outcome"], line["refused"]) == ("sign-in", "done", 0)
    client.post("/dashboard/sign-in", data={"token": access.token}, headers=_ORIGIN)
    access.trail.tell(everything=True)
    shown = client.get("/dashboard/home/operate").text
    assert "another token (199 times)" in shown
    assert shown[shown.index("What was done") :].count(">done<") == 2


def test_what_an_operator_could_not_do_is_an_act(client, access, tmp_path):
    client.post("/dashboard/sign-in", data={"token": access.token}, headers=_ORIGIN)
    page = client.get("/dashboard/home/operate").text
    token = page.partition('name="form_token" value="')[2].partition('"')[0]
    fields = {"form_token": token, "device": "berta"}
    for _ in range(3):
        client.post("/dashboard/home/do/revoke", data=fields, headers=_ORIGIN)
    acts = _lines(tmp_path / "keys" / "audit.jsonl")
    assert [line["action"] for line in acts] == ["sign-in"] + ["revoke"] * 3
    assert acts[-1]["outcome"].startswith("failed: ")
    assert not (tmp_path / "keys" / "refused.jsonl").exists()


@pytest.mark.parametrize("origin", ["http://[", "http://localhost"])
def test_halves_of_requests_and_broken_origins_are_refused_and_no_error(tmp_path, caplog, origin):
    """Each error's traceback in the log would be kilobytes."""
    options = HubOptions(port=0, token_file=tmp_path / "token")
    hub = Hub(None, options, [WatchedRun("home", tmp_path / "run")])
    thread = threading.Thread(target=hub.run)
    thread.start()
    try:
        wait_until(lambda: answers(hub.port))
        for path in ("sign-in", "home/do/pause", "sign-out"):
            head = f"POST /dashboard/{path} HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n"
            with socket.create_connection(("127.0.0.1", hub.port), 20) as link:
                link.sendall(f"{head}Content-Length: 9\r\n\r\ntoken".encode())
        wait_until(lambda: len(_lines(tmp_path / "refused.jsonl")) == 2)
    finally:
        hub.stop()
        thread.join()
    assert not caplog.records


def test_counts_that_were_not_due_are_told_when_the_hub_ends(tmp_path):
    trail = Trail(tmp_path)
    for _ in range(7):
        trail.refuse(_RECORD)
    trail.tell()
    assert [line["refused"] for line in _lines(tmp_path / "refused.jsonl")] == [1]
    trail.tell(everything=True)
    assert [line["refused"] for line in _lines(tmp_path / "refused.jsonl")] == [1, 6]
    trail.tell(everything=True)
    assert len(_lines(tmp_path / "refused.jsonl")) == 2


def test_two_hubs_write_one_trail_of_a_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr(trails, "AUDIT_BYTES", 20_000)

    def act(name):
        trail = Trail(tmp_path)
        for number in range(150):
            trail.act(msgspec.structs.replace(_RECORD, session=f"{name}{number}"))

    threads = [threading.Thread(target=act, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = [tmp_path / "audit.former.jsonl", tmp_path / "audit.jsonl"]
    kept = [line["session"] for path in files for line in _lines(path)]
    assert all(path.stat().st_size <= 20_000 for path in files)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    # The former one is full, and what it holds comes right before the present one's.
    for name in "ab":
        mine = [one for one in kept if one[0] == name]
        assert mine == [f"{name}{number}" for number in range(150 - len(mine), 150)]
    assert len(kept) > 20_000 / 200
    assert len(Trail(tmp_path).latest()) == len(kept)


@pytest.mark.parametrize("name", ["audit.jsonl", "refused.jsonl"])
def test_a_link_in_the_place_of_the_trail_is_refused_and_not_followed(tmp_path, name):
    trail, elsewhere = Trail(tmp_path), tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / name).symlink_to(elsewhere)
    with pytest.raises(InputError, match="is a link"):
        Trail(tmp_path)
    with pytest.raises(OSError, match="symbolic links"):
        (trail.act if name == "audit.jsonl" else trail.refuse)(_RECORD)
    assert elsewhere.read_text() == "mine"


@pytest.mark.parametrize("damage", [b"half a li", b"\xff\xfe", b'{"time_s": 1}'])
def test_the_trail_is_read_from_its_end_over_damaged_lines(tmp_path, damage):
    record = {"time_s": 1.0, "address": "::1", "session": "", "target": "", "outcome": "done"}
    lines = [msgspec.json.encode(record | {"action": f"n{number}"}) for number in range(9000)]
    path = tmp_path / "audit.jsonl"
    assert read_trail(path) == ()
    path.write_bytes(b"\n".join([*lines[:-1], damage, lines[-1]]) + b"\n")
    assert path.stat().st_size > 256 << 10
    found = [one.action for one in read_trail(path)]
    assert found == [f"n{number}" for number in range(8999, 8800, -1)]
