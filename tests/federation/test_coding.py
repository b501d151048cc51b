from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from packed import pack_update

from protofleet.errors import RefusedError
from protofleet.federation.coding import decode_update
from protofleet.federation.records import Costs
from protofleet.strategies.types import Evaluation, Update
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding


def _decoded(blob, *, max_bytes):
    found = decode_update(blob, Coding(), {}, max_bytes=max_bytes)
    return found.update, found.record


_PROTOCOL = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"


def _update(**changes):
    fields = {
        "client_id": "pi-7",
        "round_id": 3,
        "num_examples": 120,
        "tensors": {"params/w": np.arange(6, dtype=np.float32).reshape(2, 3)},
        "evaluation": Evaluation(own=np.array([[9, 1], [2, 8]])),
        "loss": 0.5,
    }
    return Update(**{**fields, **changes})


_COSTS = Costs(
    train_step_ms=(1.5,),
    infer_ms=(0.25,),
    phases_s={"train": 2.5},
    cpu_s={"train": 2.25},
    peak_rss_bytes=1_000_000,
)


def test_the_record_is_the_one_that_the_protocol_shows():
    """The example in docs/protocol.md is what this code writes, byte for byte but for spaces."""
    section = _PROTOCOL.read_text().split("## Blobs")[1]
    shown = re.search(r"```json\n(.*?)```", section, re.DOTALL)[1]
    _, metadata = blobs.decode(pack_update(_update(), _COSTS), max_bytes=10**6)
    assert metadata == {"update": json.dumps(json.loads(shown), separators=(",", ":"))}


def test_an_update_arrives_as_it_was_sent():
    update, record = _decoded(pack_update(_update(), _COSTS), max_bytes=10**6)
    np.testing.assert_array_equal(update.tensors["params/w"], _update().tensors["params/w"])
    np.testing.assert_array_equal(update.evaluation.own, [[9, 1], [2, 8]])
    assert update.evaluation.pooled is None
    assert (update.client_id, update.round_id, update.loss) == ("pi-7", 3, 0.5)
    assert record.costs == _COSTS


def test_an_update_without_training_has_no_loss():
    update, record = _decoded(pack_update(_update(loss=np.nan), Costs()), max_bytes=10**6)
    assert np.isnan(update.loss)
    assert record.loss is None


def test_a_blob_without_a_record_is_refused():
    with pytest.raises(RefusedError, match="metadata"):
        _decoded(blobs.encode(_update().tensors), max_bytes=10**6)


@pytest.mark.parametrize(
    ("classes", "kept"), [(100, (True, True)), (600, (True, False)), (1500, (False, False))]
)
def test_counts_of_very_many_classes_are_left_out_and_the_update_still_travels(classes, kept):
    counts = np.eye(classes, dtype=np.int64)
    update = Update(
        client_id="a",
        round_id=1,
        num_examples=5,
        tensors={"w": np.ones(3, np.float32)},
        evaluation=Evaluation(own=counts, pooled=counts),
    )
    found, _ = _decoded(pack_update(update, Costs()), max_bytes=10**7)
    evaluation = found.evaluation
    assert (evaluation.own is not None, evaluation.pooled is not None) == kept


def test_counts_that_wrap_around_in_their_sum_are_refused():
    """2048 counts of 2^53 - 1 add up to nearly 2^64: as int64 less than nothing."""
    counts = np.zeros((46, 46), np.int64)
    counts.reshape(-1)[:2048] = 2**53 - 1
    update = dataclasses.replace(_update(), evaluation=Evaluation(own=counts))
    with pytest.raises(RefusedError, match="evaluation 'own', in all: expected a count"):
        _decoded(pack_update(update, Costs()), max_bytes=10**6)
