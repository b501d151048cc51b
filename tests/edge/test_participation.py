"""What a device does when its owner's conditions are met no more, and when they are again."""

from __future__ import annotations

import json
import threading
import time

import pytest
from click.testing import CliRunner
from fake_endpoint import CONNECTED, QUIET, UNTIL_WOKEN

from protofleet.cli.device import device as device_command
from protofleet.edge.learning.training import Learner
from protofleet.edge.owner.conditions import PlatformReader
from protofleet.edge.owner.data_use import DataUse
from protofleet.edge.owner.participation import (
    Participation,
    PolicySource,
    WatchedParticipation,
    look_at_policy,
)
from protofleet.edge.owner.policy import Unmet
from protofleet.edge.state.store import Store
from protofleet.errors import InputError


class _Switch(Participation):
    """Held or free as a script says."""

    def held_by(self, *conditions):
        def step():
            self._unmet = tuple(Unmet(name, f"{name} forbids it") for name in conditions)

        return step

    free = property(lambda self: self.held_by())


@pytest.fixture
def switch(device):
    device.participation = _Switch()
    return device.participation


def _said(endpoint):
    presences = [one for one in endpoint.published if hasattr(one, "held")]
    return [(one.status, *one.held) for one in presences]


def test_a_held_device_says_why_refuses_its_task_and_takes_it_when_it_is_free(device, switch):
    switch.held_by("charging", "quiet-hours")()
    first = device.round()
    endpoint = device.play(CONNECTED, first[0], switch.free, first, device.delivered)
    assert (device.fetched(), device.answers(), device.sent()) == ([1], ["policy", "done"], [1])
    assert _said(endpoint)[0] == ("online", "charging", "quiet-hours")
    assert _said(endpoint)[-2:] == [("online",), ("left",)]
    names = device.names()
    assert names == ["held", "joined", "free", "task", "trained", "delivered", "left"]
    assert device.reports[0][1]["reason"] == "charging forbids it; quiet-hours forbids it"


def test_held_for_a_while_the_connection_rests_and_comes_back_when_the_device_is_free(
    device, switch
):
    connected = []

    def look():
        connected.append(device.endpoint.connected)

    endpoint = device.play(
        CONNECTED,
        *(switch.held_by("charging"), _passes(device, 59), look, _passes(device, 2), look),
        *(switch.free, look, CONNECTED),
        *(device.round(), device.delivered),
    )
    assert connected == [True, False, True]
    assert (endpoint.rested, device.sent()) == (1, [1])
    said = _said(endpoint)
    assert said[:2] == [("online",), ("online", "charging")]
    assert said[-2:] == [("online",), ("left",)]


def _passes(device, seconds):
    return lambda: device.clock.advance(seconds)


def test_conditions_that_come_and_go_cost_no_reconnect(device, switch):
    often = (switch.held_by("idle"), _passes(device, 50), switch.free, _passes(device, 50))
    endpoint = device.play(CONNECTED, *often * 6)
    assert endpoint.rested == 0


def test_what_may_be_transferred_is_before_the_connection_rests(device, switch):
    """Held by its charger, a payload may come; the update waits until it may be made."""
    task, rested = device.round(), []

    def look():
        rested.append(device.endpoint.rested)

    device.play(
        CONNECTED,
        *(task[0], switch.held_by("charging"), _passes(device, 200), look),
        *(task[1], _passes(device, 1), look),
    )
    assert rested == [0, 1]


def test_where_it_is_switched_off_no_connection_rests(device, switch):
    device.rests = False
    endpoint = device.play(CONNECTED, switch.held_by("charging"), _passes(device, 200), QUIET)
    assert endpoint.rested == 0


class _Watched(Learner):
    """Says when it begins."""

    began = threading.Event()

    def train(self, strategy, state, payload, *, seed, work):
        self.began.set()
        return super().train(strategy, state, payload, seed=seed, work=work)


def test_training_waits_between_steps_and_the_update_has_the_same_bits(device, switch):
    plain = device.play(CONNECTED, device.round(), device.delivered).sent[0].blob
    device.world.root.joinpath("anna").rename(device.world.root / "before")
    task = device.round()

    def while_held():
        assert _Watched.began.wait(20)
        assert not device.agent._training._running.done()

    endpoint = device.play(
        CONNECTED,
        task[0],
        switch.held_by("charging"),
        task[1],
        while_held,
        switch.free,
        UNTIL_WOKEN,
        device.delivered,
        kind=_Watched,
    )
    assert device.names()[-3:] == ["trained", "delivered", "left"]
    trained = [figures for name, figures in device.reports if name == "trained"]
    assert trained[0]["loss"] == trained[1]["loss"]
    tensors = [_tensors(blob) for blob in (plain, endpoint.sent[0].blob)]
    assert tensors[0] == tensors[1]
    assert ("online", "charging") in _said(endpoint)


def _tensors(blob):
    from protofleet.tensors import blobs  # noqa: PLC0415 - of this helper alone

    found, _ = blobs.decode(blob, max_bytes=1 << 20)
    return {name: value.tobytes() for name, value in found.items()}


def test_where_nothing_may_be_transferred_a_payload_is_given_back(device, switch):
    task = device.round()
    endpoint = device.play(
        CONNECTED,
        task[0],
        switch.held_by("network"),
        QUIET,
        switch.free,
        QUIET,
        task,
        device.delivered,
    )
    assert device.answers() == ["policy", "done"]
    assert (device.fetched(), device.sent()) == ([1, 1], [1])
    assert ("online", "network") in _said(endpoint)


def test_where_nothing_may_be_transferred_an_update_waits_in_the_outbox(device, switch):
    sent = []

    def while_held():
        sent.append(device.sent())
        assert device.endpoint.cancelled == [device.endpoint.sent[0].offer.transfer_id]

    device.play(
        CONNECTED,
        device.round(),
        switch.held_by("data-per-day"),
        QUIET,
        while_held,
        switch.free,
        QUIET,
        device.delivered,
    )
    assert (sent, device.sent()) == ([[1]], [1, 1])
    assert (device.journal.stage, device.journal.last_round_id) == ("idle", 1)


def test_a_process_that_starts_held_keeps_its_update_until_it_is_free(device, switch):
    device.play(CONNECTED, device.round())
    switch.held_by("network")()
    device.play(CONNECTED, QUIET)
    assert (device.sent(), device.journal.stage) == ([], "outbox")
    device.play(CONNECTED, QUIET, switch.free, QUIET, device.delivered)
    assert (device.sent(), device.journal.last_round_id) == ([1], 1)


def test_an_update_may_go_while_power_is_away(device, switch):
    device.play(CONNECTED, device.round(), switch.held_by("charging"), QUIET, device.delivered)
    assert (device.sent(), device.journal.last_round_id) == ([1], 1)


def test_a_task_that_may_be_answered_late_is_gone_on_with(device, switch):
    """So many rounds as the announcement says; then it is over."""
    switch.held_by()()
    late = device.announced(round_id=3, rounds=9, staleness=2)
    device.play(CONNECTED, device.round()[0], late, QUIET)
    assert device.dropped() == []
    over = device.announced(round_id=4, rounds=9, staleness=2)
    device.play(CONNECTED, device.round()[0], late, over, QUIET)
    assert device.dropped() == [(1, "round 1 is over")]


def test_a_round_that_the_announcement_says_is_over_is_given_up(device, switch):
    task = device.round()
    switch.held_by()()
    device.play(
        CONNECTED,
        task[0],
        device.announced(round_id=2, rounds=9),
        QUIET,
    )
    assert (1, "round 1 is over") in device.dropped()
    assert device.journal.last_round_id == 0


@pytest.fixture
def source(tmp_path):
    return PolicySource(path=tmp_path / "policy.toml")


def _watched(source, tmp_path, total=lambda: 0):
    return WatchedParticipation(
        source, PlatformReader(tmp_path, lambda _: ""), DataUse(tmp_path / "use.json"), total
    )


def test_a_policy_is_read_again_when_its_file_changes(tmp_path, source, caplog):
    watched = _watched(source, tmp_path)
    assert (watched.held, watched.news()) == ((), False)
    now = time.localtime()
    later = f"{(now.tm_hour + 2) % 24:02}:00"
    source.path.write_text(f'quiet_hours = ["{now.tm_hour:02}:00-{later}"]')
    watched.look()
    assert (watched.held, watched.news(), watched.news()) == (("quiet-hours",), True, False)
    source.path.write_text("quiet_hours = 7")
    watched.look()
    assert watched.held == ("quiet-hours",)
    assert "the policy before stays in force" in caplog.text
    source.path.unlink()
    watched.look()
    assert watched.held == ()


def test_what_is_not_told_is_said_once(tmp_path, source, caplog):
    source.path.write_text("only_charging = true\nonly_unmetered = true\n")
    watched = _watched(source, tmp_path)
    watched.look()
    assert watched.held == ()
    assert caplog.text.count("does not tell charging, network: taken for allowed") == 1
    assert "does not tell" in caplog.text


def test_a_round_that_is_too_large_for_the_day_holds_at_once(tmp_path, source):
    source.path.write_text("data_per_day_mb = 1\n")
    watched = _watched(source, tmp_path)
    watched.expect(900_000)
    assert watched.held == ()
    watched.expect(1_000_001)
    assert (watched.held, watched.may_transfer) == (("data-per-day",), False)
    assert watched.refusal.rule == "policy"


def test_the_watch_wakes_the_agent_when_something_has_changed(tmp_path, source, monkeypatch):
    monkeypatch.setattr("protofleet.edge.owner.participation.CHECK_S", 0.01)
    watched, woken = _watched(source, tmp_path), threading.Event()
    watched.start(woken.set)
    source.path.write_text("data_per_month_mb = 0\n")
    assert woken.wait(20)
    assert watched.held == ("data-per-month",)
    watched.close()


def test_a_policy_that_is_not_there_is_named(tmp_path):
    Store.open(tmp_path / "store", device_id="pi-7").close()
    with pytest.raises(InputError, match="no such file"):
        look_at_policy(tmp_path / "store", tmp_path / "none.toml", {})
    with pytest.raises(InputError, match="there is none"):
        look_at_policy(tmp_path / "nothing", None, {})


def test_the_command_shows_what_is_told_and_what_follows(tmp_path):
    store = tmp_path / "store"
    with Store.open(store, device_id="pi-7"):
        arguments = ["policy", "--store", str(store), "--data-per-day", "0", "--only-idle"]
        done = CliRunner().invoke(device_command, [*arguments, "--json"], catch_exceptions=False)
        figures = json.loads(done.output)
        assert figures["may_take_part"] is False
        assert "data-per-day" in [one["condition"] for one in figures["unmet"]]
        assert (figures["policy"]["only_idle"], figures["day_bytes"]) == (True, 0)
        shown = CliRunner().invoke(device_command, arguments, catch_exceptions=False).output
        assert "0.0 of 0 MB are used today" in shown.splitlines()[-1]
        free = CliRunner().invoke(device_command, ["policy", "--store", str(store)])
        assert free.output.endswith("may take part now\n")
