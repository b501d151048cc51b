"""The rate of a central training: which is taken, and that the search leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import protofleet
from protofleet.errors import InputError
from protofleet.export.pretraining.checkpoints import load_checkpoint
from protofleet.export.pretraining.rates import find_rate
from protofleet.export.pretraining.training import MODEL_FILE, TrainOptions, supervised
from protofleet.strategies.optimisers import LADDERS


def _digits(scale=1.0):
    found = load_digits()
    return (scale * found.images / 16).astype(np.float32), found.target


def _model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
    )


def _find(model, x, y, **options):
    data = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
    return find_rate(supervised(model), data, TrainOptions(**options))


def test_the_smallest_rate_that_does_almost_as_well_as_the_best_is_taken():
    found = _find(_model(), *_digits())
    assert tuple(found.losses) == LADDERS["adam"][: len(found.losses)]
    best = found.start - min(found.losses.values())
    enough = [rate for rate, loss in found.losses.items() if found.start - loss >= 0.97 * best]
    assert found.lr == min(enough)
    assert 0.003 <= found.lr <= 0.1
    assert found.text.startswith(f"learning rate {found.lr:g}, by the loss after 100 steps")


@pytest.mark.parametrize("validation", [0.1, pytest.param(0.0, marks=pytest.mark.full_size)])
def test_model_and_generator_are_left_as_they_were(validation):
    model, (x, y) = _model(), _digits()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = [_find(model, x, y, validation=validation) for _ in range(2)]
    assert found[0] == found[1]
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_data_that_no_rate_learns_are_named():
    x, y = _digits()
    with pytest.raises(InputError, match=r"loss is not finite with any learning rate .* give --lr"):
        _find(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), x * np.float32(3e38), y)


def test_a_model_that_is_as_good_as_it_gets_is_trained_on(tmp_path):
    """With the rate that harms it least: no rate lowers its loss."""
    x, y = _digits()
    model = _model()
    protofleet.pretrain(model, x, y, lr=0.01, epochs=30, folder=tmp_path / "run")
    found = _find(model, x, y)
    assert found.lr in (1e-4, 3e-4, 1e-3)
    assert found.losses[found.lr] < 2 * found.start


def test_a_training_finds_its_rate_says_it_and_goes_on_with_it(tmp_path):
    x, y = _digits()
    told = []
    common = {"folder": tmp_path / "run", "tell": told.append}
    protofleet.pretrain(_model(), x, y, epochs=2, **common)
    assert [one for one in told if one.startswith("learning rate")] == told
    rate = float(told[0].split()[2].rstrip(","))
    protofleet.pretrain(_model(), x, y, epochs=4, resume=True, **common)
    assert len(told) == 1
    set_by_hand = tmp_path / "number"
    protofleet.pretrain(_model(), x, y, epochs=4, lr=rate, folder=set_by_hand, tell=told.append)
    assert len(told) == 1
    one, other = (load_checkpoint(f / MODEL_FILE)[0] for f in (tmp_path / "run", set_by_hand))
    assert all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())
