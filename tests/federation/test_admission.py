from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from packed import pack_update

from protofleet.errors import RefusedError
from protofleet.federation.admission import admit, expect_updates
from protofleet.federation.coding import decode_update, to_evaluation
from protofleet.federation.records import Costs
from protofleet.federation.settings import LimitSettings
from protofleet.strategies.tasks import TASKS
from protofleet.strategies.types import Evaluation, TensorSchema, TensorSchemas, Update
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding


def _blob(tensors, **changes):
    fields = {"client_id": "a", "round_id": 3, "num_examples": 5, "tensors": tensors, **changes}
    return pack_update(Update(**fields), Costs(train_step_ms=(1.0,)))


def _admitted(data, expected, class_counts=None):
    """Decoded and checked, as the server does it."""
    decoded = decode_update(
        data,
        Coding(),
        {},
        max_bytes=expected.max_bytes,
        forms=expected.uplink,
        class_counts=class_counts,
    )
    admit(decoded, expected, client_id="a", round_id=3, baseline={})
    return decoded.record


def _rule(data, expected):
    with pytest.raises(RefusedError) as caught:
        _admitted(data, expected)
    return caught.value.rule


def test_expected_is_what_the_strategy_declares(tiny):
    """FedAvg sends the model's parameters up."""
    assert tiny.expected.uplink == TensorSchemas(
        required={"params/w": TensorSchema((4, 3)), "params/b": TensorSchema((3,))}
    )


def test_the_largest_update_follows_from_the_layout_unless_the_file_sets_it(tiny):
    """15 numbers, a tenth more, and the largest header."""
    assert tiny.expected.max_bytes == 10_000
    config = msgspec.structs.replace(tiny.plan.config, limits=LimitSettings())
    expected = expect_updates(replace(tiny.plan, config=config))
    assert expected.max_bytes == 66 + 2 * 1024 * 1024


def test_a_right_update_is_let_in(tiny):
    record = _admitted(_blob(tiny.tensors()), tiny.expected)
    assert (record.num_examples, record.costs.train_step_ms) == (5, (1.0,))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("params/w", np.ones((3, 4), np.float32)),
        ("params/w", np.ones((4, 3), np.float64)),
        ("params/x", np.ones(1, np.float32)),
    ],
)
def test_other_names_shapes_and_dtypes_are_refused(tiny, name, value):
    assert _rule(_blob({**tiny.tensors(), name: value}), tiny.expected) == "layout"


def test_a_missing_tensor_is_refused(tiny):
    tensors = tiny.tensors()
    del tensors["params/b"]
    assert _rule(_blob(tensors), tiny.expected) == "layout"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(tiny, bad):
    tensors = tiny.tensors()
    tensors["params/b"][1] = bad
    assert _rule(_blob(tensors), tiny.expected) == "finite"


@pytest.mark.parametrize("changes", [{"client_id": "b"}, {"round_id": 2}])
def test_an_update_of_another_device_or_round_is_refused(tiny, changes):
    assert _rule(_blob(tiny.tensors(), **changes), tiny.expected) == "identity"


@pytest.mark.parametrize("huge", [1e7, 3e38])
def test_finite_numbers_that_overflow_in_the_aggregation_are_refused(tiny, huge):
    tensors = tiny.tensors()
    tensors["params/b"][0] = huge
    assert _rule(_blob(tensors), tiny.expected) == "norm"


@pytest.mark.parametrize(
    "costs", [{"peak_rss_bytes": 2**70}, {"train_step_ms": [1e300]}, {"cpu_s": {"train": -1.0}}]
)
def test_costs_that_cannot_be_are_refused(tiny, costs):
    """Results are computed from them for the rest of the run."""
    record = {"client_id": "a", "round_id": 3, "num_examples": 5, "costs": costs}
    blob = blobs.encode(tiny.tensors(), {"update": json.dumps(record)})
    assert _rule(blob, tiny.expected) == "update-schema"


@pytest.mark.parametrize("counts", [None, (1, 2, 1), (5, 5, 5)])
def test_where_class_counts_are_needed_they_are_registered_and_sum_to_the_examples(tiny, counts):
    """Else what the aggregation weighs by would not be what was trained on."""
    expected = replace(tiny.expected, class_counts=True)
    with pytest.raises(RefusedError, match="registered class counts") as caught:
        _admitted(_blob(tiny.tensors()), expected, counts)
    assert caught.value.rule == "class-counts"


def test_the_strategy_s_own_check_sees_the_registered_counts(tiny):
    seen = []
    expected = replace(tiny.expected, class_counts=True, check=seen.append)
    _admitted(_blob(tiny.tensors()), expected, (1, 0, 4))
    assert seen[0].class_counts.tolist() == [1, 0, 4]


def test_an_update_without_tensors_is_let_in_where_all_are_optional(tiny):
    assert _rule(_blob({}), tiny.expected) == "layout"
    expected = replace(tiny.expected, uplink=TensorSchemas(optional=tiny.expected.uplink.required))
    assert _admitted(_blob({}), expected).num_examples == 5


@pytest.mark.parametrize(
    "evaluation",
    [
        {"own_loss": -0.5},
        {"own_loss": 1e300},
        {"more": {"x" * 65: [[1]]}},
        {"more": {"<b>": [[1]]}},
        {"more": {"": [[1]]}},
        {"more": {str(i): [[0] * 3] * 3 for i in range(9)}},
        {"more": {"before fit": [[1]]}},
        {"more": {"global": [[0] * 3] * 3}},
    ],
)
def test_scores_that_cannot_be_are_refused(tiny, evaluation):
    record = {"client_id": "a", "round_id": 3, "num_examples": 5, "evaluation": evaluation}
    blob = blobs.encode(tiny.tensors(), {"update": json.dumps(record)})
    assert _rule(blob, tiny.expected) == "evaluation"


def test_confusion_counts_of_another_number_of_classes_are_refused(tiny):
    counts = Evaluation(own=np.eye(5, dtype=np.int64))
    assert _rule(_blob(tiny.tensors(), evaluation=counts), tiny.expected) == "evaluation"


@pytest.mark.parametrize(
    "change",
    [
        {"num_examples": -1},
        {"num_examples": 2**60},
        {"num_examples": "5"},
        {"evaluation": {"own": [[1, 2, 3], [1, 2]]}},
        {"evaluation": {"own": [[-1]]}},
        {"client_id": None},
    ],
)
def test_records_that_break_the_schema_are_refused(tiny, change):
    record = {"client_id": "a", "round_id": 3, "num_examples": 5, **change}
    data = blobs.encode(tiny.tensors(), {"update": json.dumps(record)})
    assert _rule(data, tiny.expected) == "update-schema"


def test_bytes_that_are_no_update_are_refused(tiny):
    assert _rule(b"nonsense" * 10, tiny.expected) == "blob-header"
    assert _rule(blobs.encode(tiny.tensors()), tiny.expected) == "update-schema"
    assert _rule(bytes(20_000), tiny.expected) == "blob-size"


_TRUTH = np.array([[1, 0, 2], [4, 1, 0]], np.float32)


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_honest_claims_of_a_bundle_of_targets_are_let_in_and_others_refused(tiny, task):
    """What arrives is what was sent; claims of another task, or with a number changed, are not."""
    expected = replace(tiny.expected, task=TASKS[task])
    y = _TRUTH if task == "regression" else (_TRUTH > 1).astype(np.float32)
    own = TASKS[task].statistics(_TRUTH - 1, y, 3)
    record = _admitted(_blob(tiny.tensors(), evaluation=Evaluation(own=own)), expected)
    np.testing.assert_array_equal(to_evaluation(record.evaluation).own, own)
    counts = Evaluation(own=np.eye(3, dtype=np.int64))
    assert _rule(_blob(tiny.tensors(), evaluation=counts), expected) == "evaluation"
    more = own.copy()
    more[0, 0] += 1
    for further in ({"pooled": more}, {"start": more}, {"more": {"early": own[:2]}}):
        claim = Evaluation(own=own, **further)
        assert _rule(_blob(tiny.tensors(), evaluation=claim), expected) == "evaluation"
    for name in ("own", "start", "pooled"):
        claim = Evaluation(**{"own": own, name: more, "more": {name: own}})
        assert _rule(_blob(tiny.tensors(), evaluation=claim), expected) == "evaluation"


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1e60", "true", "null", '"1"', "9" * 400])
def test_claims_that_are_no_numbers_are_refused(tiny, number):
    expected = replace(tiny.expected, task=TASKS["regression"])
    rows = json.dumps([[2.0, 1.0, 1.0, 1.0, 1.0]] * 3).replace("1.0", number, 1)
    record = f'{{"client_id":"a","round_id":3,"num_examples":5,"evaluation":{{"own":{rows}}}}}'
    assert _rule(blobs.encode(tiny.tensors(), {"update": record}), expected) in {
        "evaluation",
        "update-schema",
    }
