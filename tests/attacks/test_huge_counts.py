"""Counts of thousands of digits: to add them up, or to write the sum out, ended the coordinator."""

from __future__ import annotations

import pytest

from protofleet.coordinator.devices.registry import Registry
from protofleet.errors import RefusedError
from protofleet.wire.messages import Presence, decode, encode

_HUGE = int("9" * 4299)  # the longest that a JSON reader takes


@pytest.mark.parametrize(
    ("counts", "told"), [((_HUGE,) * 15, 1), ((_HUGE, 0, 0), _HUGE), ((1, 0, 0), _HUGE), ((-1,), 0)]
)
def test_class_counts_that_no_device_has_are_refused(counts, told):
    registry = Registry(
        bundle="b", layout_hash="l", strategy="fedavg", silent_after_s=1.0, num_classes=3
    )
    presence = Presence(
        device_id="a",
        boot_id="1",
        status="online",
        bundle="b",
        layout_hash="l",
        num_examples=told,
        class_counts=counts,
    )
    with pytest.raises(RefusedError) as caught:
        registry.presence("a", decode(encode(presence), Presence), 0.0)
    assert caught.value.rule == "class-counts"
    assert len(str(caught.value)) < 200
