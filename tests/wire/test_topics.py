from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.errors import InputError
from protofleet.wire.topics import (
    PREFIX,
    Channel,
    TopicAddress,
    Topics,
    check_device_id,
    is_retained,
)

_IDS = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
_OF_DEVICES = [channel for channel in Channel if not channel.value.startswith("all")]

GOLDEN = {
    Channel.PRESENCE: "fl/v2/lab/st/pi-7",
    Channel.UP_OFFER: "fl/v2/lab/up/pi-7/m",
    Channel.UP_CHUNK: "fl/v2/lab/up/pi-7/c",
    Channel.UP_REQUEST: "fl/v2/lab/up/pi-7/q",
    Channel.UP_STATUS: "fl/v2/lab/up/pi-7/s",
    Channel.DOWN_ANSWER: "fl/v2/lab/dn/pi-7/a",
    Channel.DOWN_CHUNK: "fl/v2/lab/dn/pi-7/c",
    Channel.DOWN_TASK: "fl/v2/lab/dn/pi-7/t",
    Channel.DOWN_BUNDLE: "fl/v2/lab/dn/pi-7/b",
}


@pytest.mark.parametrize("channel", _OF_DEVICES, ids=lambda c: c.name)
def test_topics_are_those_of_the_specification(channel):
    assert Topics("lab").of(channel, "pi-7") == GOLDEN[channel]


def test_topics_for_all():
    topics = Topics("lab")
    assert topics.announcement == "fl/v2/lab/all/ctl"
    assert topics.parse("fl/v2/lab/all/ctl") == TopicAddress(Channel.ANNOUNCEMENT, "")


@given(_IDS, _IDS, st.sampled_from(_OF_DEVICES))
def test_what_was_built_is_parsed(federation, device, channel):
    """Every topic names its channel and device again and has at most 7 slashes."""
    topics = Topics(federation)
    topic = topics.of(channel, device)
    assert topics.parse(topic) == TopicAddress(channel, device)
    assert topic.count("/") <= 7


@pytest.mark.parametrize("bad", ["", "a/b", "a+b", "#", "ü", "a b", "x" * 65, "a\n", "a\0"])
def test_ids_that_break_topics_are_refused(bad):
    with pytest.raises(InputError, match="expected 1 to 64 characters"):
        Topics(bad)
    with pytest.raises(InputError, match="expected 1 to 64 characters"):
        Topics("lab").of(Channel.UP_CHUNK, bad)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "fl/v2/lab",
        "fl/v2/other/up/a/m",
        "fl/v1/lab/up/a/m",
        "fl/v2/lab/up/a",
        "fl/v2/lab/up/a/m/x",
        "fl/v2/lab/up//m",
        "fl/v2/lab/up/a/z",
        "fl/v2/lab/all/other",
        "fl/v2/lab/st/a/b",
    ],
)
def test_foreign_topics_are_not_parsed(topic):
    assert Topics("lab").parse(topic) is None


def test_a_device_needs_at_most_four_subscriptions():
    assert Topics("lab").device_filters("a") == ("fl/v2/lab/all/ctl", "fl/v2/lab/dn/a/+")
    assert Topics("lab").coordinator_filters() == (
        "fl/v2/lab/all/lease",
        "fl/v2/lab/all/ctl",
        "fl/v2/lab/up/+/+",
        "fl/v2/lab/st/+",
    )


@pytest.mark.parametrize("name", ["coordinator", "invite.a", "a b", ""])
def test_accounts_of_other_purposes_are_no_devices(name):
    """Neither may a device be called so, nor is anything heard from one."""
    topics = Topics("home")
    for use in (check_device_id, topics.device_filters, lambda it: topics.of(Channel.PRESENCE, it)):
        with pytest.raises(InputError, match="device id"):
            use(name)
    assert topics.parse(f"{PREFIX}/home/up/{name}/m") is None
    assert topics.parse(f"{PREFIX}/home/up/invited/m") is not None


def test_announcements_leases_and_presences_alone_are_retained():
    topics = Topics("home")
    kept = {channel for channel in _OF_DEVICES if is_retained(topics.of(channel, "a"))}
    assert kept == {Channel.PRESENCE}
    assert is_retained(topics.announcement)
    assert is_retained(topics.lease)
    assert topics.parse(topics.lease) == (Channel.LEASE, "")
    assert not is_retained(f"{PREFIX}/home/all/ctl/x")


def test_an_invited_device_has_topics_of_its_own():
    topics = Topics("lab")
    assert topics.enrolment_request("pi-7") == "fl/v2/lab/en/invite.pi-7/q"
    assert topics.enrolment_answer("pi-7") == "fl/v2/lab/en/invite.pi-7/a"
    assert topics.enrolment_filter == "fl/v2/lab/en/+/q"
    assert topics.enrolling(topics.enrolment_request("pi-7")) == "pi-7"
    for topic in ("en/pi-7/q", "en/invite.pi-7/a", "en/invite./q", "en/invite.a/b/q", "up/a/q"):
        assert topics.enrolling(f"fl/v2/lab/{topic}") is None
    assert topics.enrolling("fl/v2/other/en/invite.pi-7/q") is None
    for wrong in ("invite.pi-7", "coordinator", "x" * 58, "a/b"):
        with pytest.raises(InputError, match="device"):
            topics.enrolment_answer(wrong)


def test_a_devices_name_is_one_string_in_all_its_messages():
    """Thousands of devices are remembered in many places."""
    topics = Topics("lab")
    first, second = (topics.parse(topics.of(channel, "pi-7")) for channel in list(_OF_DEVICES)[:2])
    assert first.device_id is second.device_id
