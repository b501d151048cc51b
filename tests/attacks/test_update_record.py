"""What a device says of its costs: bounded in number, length and range."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from protofleet.errors import RefusedError
from protofleet.federation.coding import decode_update
from protofleet.federation.records import MAX_PHASES, MAX_SAMPLES
from protofleet.strategies.types import TensorSchema, TensorSchemas
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding

_FORMS = TensorSchemas(required={"w": TensorSchema((2,))})


def _update(**changes):
    record = {"client_id": "a", "round_id": 1, "num_examples": 5, **changes}
    about = {"update": msgspec.json.encode(record).decode()}
    blob = blobs.encode({"w": np.zeros(2, np.float32)}, about)
    return decode_update(blob, Coding(), {}, max_bytes=1 << 24, forms=_FORMS)


def test_as_many_samples_and_phases_as_are_allowed_are_let_in():
    costs = {
        "train_step_ms": [1.5] * MAX_SAMPLES,
        "infer_ms": [0.0] * MAX_SAMPLES,
        "phases_s": {f"phase-{index}": 1.0 for index in range(MAX_PHASES)},
        "cpu_s": {"train": 1e12},
    }
    assert len(_update(costs=costs, loss=3.4e38).record.costs.train_step_ms) == MAX_SAMPLES


@pytest.mark.parametrize(
    "changes",
    [
        {"costs": {"train_step_ms": [1.5] * (MAX_SAMPLES + 1)}},
        {"costs": {"infer_ms": [1.5] * 100_000}},
        {"costs": {"phases_s": {str(index): 1.0 for index in range(MAX_PHASES + 1)}}},
        {"costs": {"cpu_s": {str(index): 1.0 for index in range(10_000)}}},
        {"costs": {"phases_s": {"x" * 33: 1.0}}},
        {"held_out": {"examples": 0, "gain": 0.5}},
        {"held_out": {"examples": 2**53, "gain": 0.5}},
        {"held_out": {"examples": 4, "gain": 1.5}},
        {"held_out": {"examples": 4, "gain": -1.5}},
        {"held_out": {"examples": 4, "gain": float("nan")}},
        {"held_out": {"examples": 4.5, "gain": 0}},
        {"held_out": {"examples": 4}},
        {"costs": {"phases_s": {"": 1.0}}},
        {"costs": {"phases_s": {"\x1b[2J": 1.0}}},
        {"costs": {"phases_s": {"train\n": 1.0}}},
        {"costs": {"cpu_s": {"train": -1.0}}},
        {"costs": {"infer_ms": [1e13]}},
        {"costs": {"peak_rss_bytes": 2**53}},
        {"costs": {"peak_rss_bytes": 10**400}},
        {"loss": 1e300},
        {"loss": -1e300},
        {"num_examples": 10**400},
        {"round_id": -1},
        {"client_id": 5},
    ],
)
def test_more_longer_or_impossible_ones_are_refused(changes):
    with pytest.raises(RefusedError) as caught:
        _update(**changes)
    assert caught.value.rule == "update-schema"
    assert len(str(caught.value)) < 500


def test_a_name_of_a_megabyte_is_not_repeated_in_a_message():
    with pytest.raises(RefusedError, match="evaluation") as caught:
        _update(evaluation={"more": {"x" * 1_000_000: [[1], [1, 2]]}})
    assert len(str(caught.value)) < 500
