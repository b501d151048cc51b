"""Conditions that no owner has, shares of work that cannot be, and devices that flicker."""

from __future__ import annotations

import json
import sqlite3

import pytest

from protofleet.coordinator.devices.registry import Registry
from protofleet.coordinator.ledger.device_rows import DeviceRows
from protofleet.coordinator.ledger.rows import SCHEMA
from protofleet.coordinator.membership.held import HeldDevices
from protofleet.errors import RefusedError
from protofleet.wire.messages import Presence, Task, decode, encode

_PRESENCE = Presence(device_id="a", boot_id="1", status="online", bundle="b", layout_hash="l")
_TASK = Task(task="train", round_id=1, federation="home")


def _with(message, name, value):
    return json.dumps({**json.loads(encode(message)), name: value}).encode()


@pytest.mark.parametrize(
    "held",
    [
        ["charging"] * 17,
        ["x" * 33],
        [""],
        ["Charging"],
        ["char ging"],
        ["\x1b[2J"],
        ["charging\n"],
        ["[bold]hi[/bold]"],
        [1],
        [None],
        "charging",
        {"charging": True},
        None,
    ],
)
def test_words_that_are_no_conditions_make_a_presence_invalid(held):
    with pytest.raises(RefusedError) as caught:
        decode(_with(_PRESENCE, "held", held), Presence)
    assert caught.value.rule == "message-schema"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("work", [0, -0.5, 1.0001, 1e300, "0.5", True, None, [1]])
def test_a_task_for_a_share_that_cannot_be_is_invalid(work):
    with pytest.raises(RefusedError) as caught:
        decode(_with(_TASK, "work", work), Task)
    assert caught.value.rule == "message-schema"


def test_a_condition_that_nobody_knows_yet_holds_like_the_others():
    registry = Registry(bundle="b", layout_hash="l", strategy="fedavg", silent_after_s=1.0)
    presence = decode(_with(_PRESENCE, "held", ["on-a-journey"] * 16), Presence)
    device = registry.presence("a", presence, 0.0)
    assert (device.fits, device.live, len(device.held)) == (True, False, 16)
    assert registry.heard("a", 0.5) is False
    assert not registry.live
    assert registry.presence("a", _PRESENCE, 1.0).live


def test_a_device_that_flickers_costs_one_write_a_second():
    db = sqlite3.connect(":memory:")
    db.executescript(SCHEMA)
    written = []
    db.set_trace_callback(lambda text: written.append(text) if "COMMIT" in text else None)
    held = HeldDevices(DeviceRows(db))
    written.clear()
    for change in range(10_000):
        held.note("a", ("charging",) if change % 2 else ())
        held.flush(change / 1000)
    assert len(written) <= 11
