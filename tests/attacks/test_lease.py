"""Leases and epochs that no coordinator writes."""

from __future__ import annotations

import json

import pytest

from protofleet.errors import RefusedError
from protofleet.wire.messages import MOST_EPOCH, Announcement, LeaseRecord, Task, decode, encode

_LEASE = LeaseRecord(
    federation="lab", boot_id="c1", step="held", epoch=1, valid_s=30.0, nonce="ab" * 16
)
_ANNOUNCEMENT = Announcement(
    federation="lab",
    boot_id="c1",
    phase="waiting",
    round_id=1,
    rounds=2,
    strategy="fedavg",
    bundle="b",
    layout_hash="l",
)
_TASK = Task(task="train", round_id=1, federation="lab")


def _read(message, **changes):
    text = json.dumps({**json.loads(encode(message)), **changes})
    return decode(text.encode(), type(message))


@pytest.mark.parametrize("message", [_LEASE, _ANNOUNCEMENT, _TASK])
@pytest.mark.parametrize("epoch", [-1, MOST_EPOCH + 1, 10**30, 1.5, "1", True, None])
def test_an_epoch_that_no_lease_has_makes_a_record_invalid(message, epoch):
    with pytest.raises(RefusedError) as caught:
        _read(message, epoch=epoch)
    assert caught.value.rule == "message-schema"
    assert _read(message, epoch=MOST_EPOCH).epoch == MOST_EPOCH


@pytest.mark.parametrize(
    "changes",
    [
        {"valid_s": -1.0},
        {"valid_s": 86_401.0},
        {"valid_s": float("nan")},
        {"valid_s": float("inf")},
        {"valid_s": "30"},
        {"step": "stolen"},
        {"step": None},
        {"nonce": "x" * 65},
        {"answers": "x" * 65},
        {"boot_id": "x" * 65},
        {"federation": ["lab"]},
        {"certificate": "x" * 4097},
    ],
)
def test_a_lease_that_cannot_be_is_invalid(changes):
    with pytest.raises(RefusedError) as caught:
        _read(_LEASE, **changes)
    assert caught.value.rule.startswith("message")
    assert len(str(caught.value)) < 500
