from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.errors import RefusedError
from protofleet.wire import messages
from protofleet.wire.messages import (
    Announcement,
    AnyMessage,
    BundleOffer,
    BundleProgress,
    CalibrationAnswer,
    CalibrationOrder,
    Heartbeat,
    Need,
    Presence,
    Receipt,
    Task,
    TransferOffer,
    decode,
    encode,
)

_GOLDEN = Path(__file__).parent / "golden"
_OFFER = TransferOffer(
    transfer_id="000102030405060708090a0b0c0d0e0f",
    kind="payload",
    round_id=3,
    total_bytes=100_000,
    sha256="ab" * 32,
    chunk_bytes=64_976,
)
MESSAGES = {
    "presence": Presence(
        device_id="pi-7",
        boot_id="b1",
        status="online",
        bundle="cd" * 32,
        layout_hash="ef" * 32,
        num_examples=120,
        class_counts=(100, 20),
        strategies=("fedavg", "fedali"),
        chunk_bytes=3900,
        held=("charging", "quiet-hours"),
        sequence=4,
        takes_bundles=True,
        progress=BundleProgress(bundle="ab" * 32, state="tested"),
    ),
    "announcement": Announcement(
        federation="lab",
        boot_id="c1",
        phase="training",
        round_id=3,
        rounds=20,
        strategy="fedali",
        bundle="cd" * 32,
        layout_hash="ef" * 32,
        roll_call=2,
        spread_s=75.0,
        bundles=("ab" * 32,),
    ),
    "announcement-calibration": Announcement(
        federation="lab",
        boot_id="c1",
        phase="waiting",
        round_id=1,
        rounds=20,
        strategy="fedavg",
        bundle="cd" * 32,
        layout_hash="ef" * 32,
        calibration=CalibrationOrder(
            key="0123456789abcdef",
            settings={"optimiser": {"lr": 0.001, "kind": "sgd"}},
            seed=1,
            rates=(0.001, 0.01, 0.1),
            devices=("pi-7", "pi-8"),
        ),
    ),
    "presence-calibration": Presence(
        device_id="pi-7",
        boot_id="b1",
        status="online",
        bundle="cd" * 32,
        layout_hash="ef" * 32,
        num_examples=120,
        calibration=CalibrationAnswer(key="0123456789abcdef", ratios=(0.95, 0.4, 1.25)),
    ),
    "manifest": _OFFER,
    "task": Task(
        task="train",
        round_id=3,
        federation="lab",
        strategy="fedali",
        settings={"optimiser": {"lr": 0.1, "kind": "adam"}, "epochs": 5},
        seed=1,
        deadline_s=600.0,
        payload=_OFFER,
        work=0.5,
    ),
    "bundle": BundleOffer(
        federation="lab",
        bundle="ab" * 32,
        sequence=5,
        payload=TransferOffer(
            transfer_id="000102030405060708090a0b0c0d0e0f",
            kind="bundle",
            round_id=0,
            total_bytes=100_000,
            sha256="12" * 32,
            chunk_bytes=64_976,
        ),
        epoch=7,
    ),
    "need": Need(transfer_id=_OFFER.transfer_id, missing=((0, 1), (4, 7)), credit=4),
    "receipt": Receipt(transfer_id=_OFFER.transfer_id, status="reject", reason="late"),
    "receipt-done": Receipt(transfer_id=_OFFER.transfer_id, status="done"),
    "receipt-rule": Receipt(
        transfer_id=_OFFER.transfer_id, status="reject", reason="expected raw", rule="codec"
    ),
    "heartbeat": Heartbeat(
        device_id="pi-7",
        boot_id="b1",
        round_id=3,
        phase="train",
        bytes_up=10,
        bytes_down=20,
        peak_rss_bytes=30,
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_bytes(name):
    """Another implementation may rely on these bytes: change them only with the version."""
    golden = (_GOLDEN / f"{name}.json").read_bytes()
    assert encode(MESSAGES[name]) == golden
    assert decode(golden, AnyMessage) == MESSAGES[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_unknown_fields_are_ignored(name):
    fields = json.loads((_GOLDEN / f"{name}.json").read_bytes())
    fields["from_a_later_minor_version"] = {"deep": [1]}
    assert decode(json.dumps(fields).encode(), AnyMessage) == MESSAGES[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_missing_or_wrong_field_is_named(name):
    golden = (_GOLDEN / f"{name}.json").read_bytes()
    for field in type(MESSAGES[name]).__struct_encode_fields__:
        fields = json.loads(golden)
        fields[field] = {"not": "this"} if field != "settings" else 7
        with pytest.raises(RefusedError, match=field):
            decode(json.dumps(fields).encode(), AnyMessage)


@given(st.binary(max_size=300))
def test_noise_is_refused(noise):
    with pytest.raises(RefusedError):
        decode(noise, AnyMessage)


def test_deep_nesting_and_size_are_refused():
    deep = b'{"type":"task","settings":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    for data in (deep, b" " * (messages.MAX_MESSAGE_BYTES + 1)):
        with pytest.raises(RefusedError):
            decode(data, AnyMessage)


def test_the_garbage_collector_does_not_visit_records():
    """A coordinator holds thousands."""
    assert not gc.is_tracked(decode(encode(_OFFER)))
