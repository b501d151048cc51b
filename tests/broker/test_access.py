"""Who may do what on which topic: one table, for Mosquitto, the embedded broker and our reader."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from brokers import wait_until
from secured_broker import PASSWORD, let_in

from protofleet.broker.access import (
    AccessList,
    access_list,
    check_account,
    federations_of,
    with_invitation,
    without_account,
)
from protofleet.broker.probe import BrokerProbe, Credential
from protofleet.errors import InputError
from protofleet.wire.topics import PREFIX, Channel, Topics

_ROLES = ("coordinator", "a", "b", "invite.a", "invite.b")
_DEVICES = {"coordinator", "a", "b"}
# Topic: who may publish there, who may receive from there.
_TABLE = {
    "all/ctl": ({"coordinator"}, _DEVICES),
    "all/lease": ({"coordinator"}, _DEVICES),
    "all/c/0123": ({"coordinator"}, _DEVICES),
    "st/a": ({"coordinator", "a"}, {"coordinator"}),
    "st/b": ({"coordinator", "b"}, {"coordinator"}),
    "up/a/m": ({"a"}, {"coordinator"}),
    "up/a/c": ({"a"}, {"coordinator"}),
    "up/a/q": ({"a"}, {"coordinator"}),
    "up/a/s": ({"a"}, {"coordinator"}),
    "up/b/m": ({"b"}, {"coordinator"}),
    "dn/a/t": ({"coordinator"}, {"a"}),
    "dn/a/c": ({"coordinator"}, {"a"}),
    "dn/a/a": ({"coordinator"}, {"a"}),
    "dn/a/b": ({"coordinator"}, {"a"}),
    "dn/b/t": ({"coordinator"}, {"b"}),
    "en/invite.a/q": ({"invite.a"}, {"coordinator"}),
    "en/invite.a/a": ({"coordinator"}, {"invite.a"}),
    "en/invite.b/q": ({"invite.b"}, {"coordinator"}),
    "en/invite.b/a": ({"coordinator"}, {"invite.b"}),
    # An invitation is no device, a device no invitation.
    "up/invite.a/m": (set(), {"coordinator"}),
    "st/invite.a": ({"coordinator"}, {"coordinator"}),
    "dn/invite.a/t": ({"coordinator"}, set()),
    "en/a/q": (set(), {"coordinator"}),
    "en/a/a": ({"coordinator"}, set()),
    # Below, beside and above what is anybody's.
    "st/a/x": (set(), set()),
    "up/a/x": (set(), {"coordinator"}),
    "up/a/m/x": (set(), {"coordinator"}),
    "up": (set(), {"coordinator"}),
    "en/a": (set(), set()),
    "x": (set(), set()),
}
_BASE = f"{PREFIX}/home/"


def test_the_table_has_every_channel():
    topics = Topics("home")
    known = {_BASE + tail for tail in _TABLE}
    for channel in Channel:
        of_all = channel.value.startswith("all")
        version = "/0123" if channel is Channel.SHARED_CHUNK else ""
        topic = _BASE + channel.value + version if of_all else topics.of(channel, "a")
        assert topic in known


@pytest.mark.parametrize("tail", _TABLE)
def test_our_reader_says_what_the_table_says(tail):
    rules = AccessList(access_list(invited=["invite.a", "invite.b"]))
    writers, readers = _TABLE[tail]
    assert {role for role in _ROLES if rules.may(role, "write", _BASE + tail)} == writers
    assert {role for role in _ROLES if rules.may(role, "read", _BASE + tail)} == readers
    assert {role for role in _ROLES if rules.may_subscribe(role, _BASE + tail)} == readers


def test_brokers_do_what_the_table_says(secured_broker):
    """Every role publishes on every topic and has subscribed to every topic."""
    received = {
        (tail, writer, reader)
        for tail, (writers, readers) in _TABLE.items()
        for writer in writers
        for reader in readers
    }
    let_in(secured_broker, *_ROLES[1:])
    with ExitStack() as stack:
        probes = {role: stack.enter_context(_probe(secured_broker, role)) for role in _ROLES}
        assert [probe.refused for probe in probes.values()] == [""] * len(_ROLES)
        for probe in probes.values():
            for tail in _TABLE:
                probe.subscribe(_BASE + tail)
        for role, probe in probes.items():
            for tail in _TABLE:
                probe.publish(_BASE + tail, role.encode())
        wait_until(lambda: _seen(probes) >= received)
        time.sleep(0.3)  # for what must not come
        assert _seen(probes) == received


def _seen(probes):
    return {
        (message.topic.removeprefix(_BASE), message.payload.decode(), reader)
        for reader, probe in probes.items()
        for message in list(probe.messages)
    }


def _probe(running, role):
    if role == "coordinator":
        return BrokerProbe(running.place, running.coordinator)
    return BrokerProbe(running.place, Credential(user=role, password=PASSWORD))


@pytest.mark.parametrize("wanted", ["#", "fl/#", f"{PREFIX}/+/dn/+/+", f"{PREFIX}/+/+/#", "$SYS/#"])
def test_a_subscription_must_lie_inside_what_may_be_received(wanted):
    rules = AccessList(access_list())
    assert not rules.may_subscribe("a", wanted)
    assert rules.may_subscribe("a", f"{PREFIX}/+/all/ctl")
    assert rules.may_subscribe("a", f"{PREFIX}/home/dn/a/+")
    assert rules.may_subscribe("coordinator", f"{PREFIX}/home/up/+/+")


@pytest.mark.parametrize("name", ["+", "#", "a/b", ""])
def test_a_name_with_wildcards_stands_for_nobody_else(name):
    rules = AccessList(access_list())
    assert not rules.may(name, "write", f"{PREFIX}/home/up/b/m")
    assert not rules.may(name, "read", f"{PREFIX}/home/dn/b/t")
    with pytest.raises(InputError, match="account: expected 1 to 64 characters"):
        check_account(name)


def test_sections_of_invitations_come_and_go():
    text = access_list()
    assert without_account(with_invitation(text, "invite.a"), "invite.a") == text
    both = with_invitation(with_invitation(text, "invite.a"), "invite.b")
    assert both == access_list(invited=["invite.a", "invite.b"])
    assert without_account(both, "invite.a") == access_list(invited=["invite.b"])


def test_named_federations_are_all_that_is_allowed():
    text = access_list(["home", "lab"], ["invite.a"])
    assert federations_of(text) == ["home", "lab"]
    rules = AccessList(text)
    for name, allowed in (("home", True), ("lab", True), ("other", False)):
        assert rules.may("a", "write", f"{PREFIX}/{name}/up/a/m") is allowed
        assert rules.may("coordinator", "write", f"{PREFIX}/{name}/all/ctl") is allowed
        assert rules.may("invite.a", "write", f"{PREFIX}/{name}/en/invite.a/q") is allowed
        assert not rules.may("invite.a", "read", f"{PREFIX}/{name}/all/ctl")
    with pytest.raises(InputError, match="federation: expected 1 to 64"):
        access_list(["#"])


@pytest.mark.parametrize("line", ["topic fl/#", "pattern own a", "user a b", "include other"])
def test_a_line_that_is_not_understood_is_named(line):
    with pytest.raises(InputError, match=r"access list: line \d+: not understood"):
        AccessList(access_list() + line)


def test_the_documented_access_list_is_the_tested_one():
    """docs/protocol.md, which clients in other languages read, without our comments."""
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    (shown,) = re.findall(r"```text\n(user coordinator\n.*?)```", page, re.DOTALL)
    written = access_list(invited=["invite.pi-7"])
    assert shown == re.sub(r"(?m)^#.*\n", "", written).lstrip()
