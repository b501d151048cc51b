"""How much work a slow device is asked for, and what a part of the training is."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.errors import RefusedError
from protofleet.federation.client import RoundConfig
from protofleet.federation.coding import decode_update
from protofleet.federation.records import Costs, UpdateRecord
from protofleet.federation.schedules.stragglers import PastRound, share_of_work
from protofleet.federation.settings import StragglerSettings
from protofleet.strategies import DESCRIPTIONS
from protofleet.strategies.training import Training, passes
from protofleet.strategies.types import TensorSchemas, TrainTools
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding

_SETTINGS = StragglerSettings(budget_s=10.0, least_work=0.1)
_MISSED = PastRound(delivered=False)


def _took(seconds, work=1.0):
    return PastRound(delivered=True, train_s=seconds, work=work)


@pytest.mark.parametrize(
    ("past", "share"),
    [
        ([], 1.0),
        ([_took(9.0)], 1.0),
        ([_took(20.0)], 0.5),
        ([_took(10.0, work=0.5)], 0.5),
        ([_took(2.5, work=0.25)], 1.0),
        ([_took(30.0)], 21 / 64),
        ([_took(1e9)], 0.1),
        ([_MISSED], 0.5),
        ([_MISSED, _MISSED], 0.25),
        ([_MISSED, _took(20.0), _MISSED], 0.25),
        ([_MISSED] * 16, 0.1),
        ([_took(0.0), _took(20.0)], 0.5),
    ],
)
def test_a_share_is_what_fits_the_budget_and_half_of_it_for_each_round_missed(past, share):
    assert share_of_work(_SETTINGS, past) == pytest.approx(share)


def test_without_a_budget_nobody_is_shortened():
    assert share_of_work(StragglerSettings(), [_MISSED, _took(1e9)]) == 1.0


@given(
    st.lists(
        st.builds(
            PastRound,
            delivered=st.booleans(),
            train_s=st.floats(0, 1e12),
            work=st.floats(1e-9, 1.0),
        ),
        max_size=16,
    ),
    st.floats(0.01, 1.0),
)
def test_whatever_devices_say_a_share_is_one_that_a_task_may_ask_for(past, least):
    settings = StragglerSettings(budget_s=10.0, least_work=least)
    assert least <= share_of_work(settings, past) <= 1.0


def test_a_past_round_is_read_from_the_updates_record():
    costs = Costs(phases_s={"train": 4.0, "evaluate": 1.0})
    record = UpdateRecord(client_id="a", round_id=1, num_examples=5, costs=costs, work=0.5)
    assert PastRound.of(record) == _took(4.0, work=0.5)
    assert PastRound.of(None) == _MISSED


def _steps(work, *, count=10, **training):
    """The rows of each step, the loss, and the generator's next number."""
    rng, seen = np.random.default_rng(3), []
    tools = TrainTools(
        name="a",
        x=np.zeros((count, 1), np.float32),
        y=np.zeros(count),
        grad_fns={},
        rng=rng,
        work=work,
    )

    def step(rows):
        seen.append(rows.tolist())
        return float(len(seen))

    loss = passes(step, tools, Training(**training))
    return seen, loss, rng.integers(1 << 30)


def test_less_work_is_the_first_steps_of_all_of_them():
    whole, _, _ = _steps(1.0, epochs=3, batch_size=4)
    half, loss, _ = _steps(0.5, epochs=3, batch_size=4)
    assert len(whole) == 9
    assert half == whole[:5]
    assert loss == pytest.approx((4.0 * 4 + 5.0 * 4) / 8)  # of the second epoch, as far as it went
    assert _steps(1e-9, epochs=3, batch_size=4)[0] == whole[:1]
    assert _steps(1 / 3, epochs=3, batch_size=4)[0] == whole[:3]


def test_without_examples_less_work_is_none():
    assert _steps(0.5, count=0, epochs=2, batch_size=4)[0] == []


def test_only_strategies_that_allow_it_do_less():
    order = RoundConfig(round_id=1, seed=0, work=0.5)
    allows = {
        name
        for name, description in DESCRIPTIONS.items()
        if order.work_with(SimpleNamespace(description=description)) == 0.5
    }
    assert {"fedavg", "fedprox", "fedali", "scaffold"} <= allows
    assert not {"fedsub", "feddyn", "pfedme", "cdfl"} & allows


@pytest.mark.parametrize("work", ["0", "-0.5", "1.5", "null", '"all"', "1e999", "NaN", "true"])
def test_a_share_of_work_that_cannot_be_is_refused(work):
    record = UpdateRecord(client_id="a", round_id=1, num_examples=5, work=0.5)
    text = msgspec.json.encode(record).decode().replace('"work":0.5', f'"work":{work}')
    blob = blobs.encode({}, {"update": text})
    with pytest.raises(RefusedError) as caught:
        decode_update(blob, Coding(), {}, max_bytes=1 << 20, forms=TensorSchemas())
    assert caught.value.rule == "update-schema"


def test_an_update_of_all_the_work_says_nothing_of_it():
    record = UpdateRecord(client_id="a", round_id=1, num_examples=5)
    assert b"work" not in msgspec.json.encode(record)
    assert record.share_of_work == 1.0
