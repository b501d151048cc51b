"""What waits for the broker, in which order it goes, and what is given up."""

from __future__ import annotations

import pytest

from protofleet.wire.transfers.outbox import (
    CHUNKS_IN_FLIGHT_MAX,
    IN_FLIGHT_MAX,
    TRIES_MAX,
    Outbox,
    Outgoing,
)

_QUOTA, _INVALID = 0x97, 0x99


def _messages(count, **options):
    given = {"topic": "x", "retain": False, **options}
    return [Outgoing(payload=bytes([n]), **given) for n in range(count)]


def _put(outbox, messages):
    return [sent for message in messages for sent in outbox.put(message)]


def test_more_than_the_broker_takes_waits_in_order_and_chunks_leave_room_for_answers():
    outbox, messages = Outbox(), _messages(IN_FLIGHT_MAX + 3)
    assert outbox.room == CHUNKS_IN_FLIGHT_MAX
    assert _put(outbox, messages) == messages[:IN_FLIGHT_MAX]
    assert (outbox.room, outbox.unacknowledged) == (0, len(messages))
    assert outbox.acknowledged(messages[0], 0) == ([messages[IN_FLIGHT_MAX]], 0.0)


def test_after_a_refusal_nothing_is_sent_until_the_pause_is_over_and_then_less_at_a_time():
    outbox, messages = Outbox(8), _messages(9)
    _put(outbox, messages)
    following, pause_s = outbox.acknowledged(messages[0], _QUOTA)
    assert (following, outbox.room) == ([], 0)
    assert pause_s > 0
    assert outbox.acknowledged(messages[1], _QUOTA) == ([], 0.0)  # the pause is on already
    for message in messages[2:8]:
        assert outbox.acknowledged(message, 0) == ([], 0.0)
    assert outbox.unacknowledged == 3
    assert outbox.resume() == [messages[0], messages[1], messages[8]]


def test_pauses_double_and_begin_anew_when_something_was_taken():
    outbox, (message, other) = Outbox(), _messages(2)
    outbox.put(message)
    pauses = []
    for _ in range(3):
        pauses.append(outbox.acknowledged(message, _QUOTA)[1])
        outbox.resume()
    assert pauses == [pauses[0], 2 * pauses[0], 4 * pauses[0]]
    outbox.put(other)
    outbox.acknowledged(other, 0)
    assert outbox.acknowledged(message, _QUOTA)[1] == pauses[0]


def test_one_that_is_refused_for_ever_is_given_up_for_the_others():
    outbox, (message,) = Outbox(), _messages(1)
    outbox.put(message)
    for _ in range(TRIES_MAX - 1):
        assert outbox.acknowledged(message, _QUOTA)[1] > 0
        assert outbox.resume() == [message]
    assert outbox.acknowledged(message, _QUOTA) == ([], 0.0)
    assert outbox.unacknowledged == 0


def test_a_retained_message_that_a_newer_one_has_replaced_is_not_sent_again():
    """Else the older one would stay at the broker."""
    outbox, (old, new) = Outbox(), _messages(2, retain=True)
    _put(outbox, (old, new))
    assert outbox.acknowledged(old, _QUOTA) == ([], 0.0)
    assert outbox.acknowledged(new, 0) == ([], 0.0)
    assert outbox.unacknowledged == 0


@pytest.mark.parametrize("code", [_INVALID, 0x95, 0x90])
def test_what_no_repetition_helps_is_not_kept(code):
    outbox, (message,) = Outbox(), _messages(1)
    outbox.put(message)
    assert outbox.acknowledged(message, code) == ([], 0.0)
    assert outbox.unacknowledged == 0
