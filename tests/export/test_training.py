"""Central training: it learns, and it resumes to the same bits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from protofleet.errors import InputError
from protofleet.export.models import build_model
from protofleet.export.pretraining.checkpoints import load_checkpoint
from protofleet.export.pretraining.training import TrainOptions, masked, supervised, train
from tests.export.central_data import HART, blobs, waves

pytestmark = pytest.mark.slow(seconds=1)

ALP = {**HART, "prototypes": (8, 4)}


class StoppedError(Exception):
    """Stands for a killed process."""


def _stop_in(epoch):
    def tell(told):
        if told.epoch == epoch and told.step == 2:
            raise StoppedError

    return tell


def _supervised(seed=0):
    torch.manual_seed(seed)
    return supervised(build_model("mlp", inputs=4, classes=3, hidden=(16,)))


def test_supervised_training_learns_and_keeps_the_best_epoch(tmp_path):
    told = []
    options = TrainOptions(epochs=15, lr=0.02, batch_size=32, validation=0.25)
    result = train(_supervised(), blobs(), options, folder=tmp_path, on_progress=told.append)
    validated = [t for t in told if t.validation_loss is not None]
    assert len(validated) == 15
    assert result.best_loss == min(t.validation_loss for t in validated)
    assert result.best_epoch == 1 + int(np.argmin([t.validation_loss for t in validated]))
    assert result.accuracy > 0.8
    assert validated[-1].loss < 0.5 * validated[0].loss


def _task_of(kind):
    torch.manual_seed(0)
    if kind == "supervised":
        return supervised(build_model("hart_alp", **ALP, classes=3))
    return masked(build_model("hart_alp", **ALP), waves()["x"][:1])


@pytest.mark.parametrize("kind", ["supervised", "mae"])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, kind):
    """Killed in epoch 3 and resumed, every tensor equals the undisturbed run's."""
    data = waves(24)
    if kind == "supervised":
        data["y"] = torch.arange(24) % 3
    options = TrainOptions(epochs=4, lr=0.01, batch_size=8, seed=3)
    train(_task_of(kind), data, options, folder=tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(_task_of(kind), data, options, folder=tmp_path / "cut", on_progress=_stop_in(3))
    torch.manual_seed(99)
    train(_task_of(kind), data, options, folder=tmp_path / "cut", resume=True)
    for file in ("training.safetensors", "model.safetensors"):
        whole, about = load_checkpoint(tmp_path / "whole" / file)
        cut, _ = load_checkpoint(tmp_path / "cut" / file)
        assert whole.keys() == cut.keys()
        assert all(torch.equal(whole[name], cut[name]) for name in whole)
        assert about == load_checkpoint(tmp_path / "cut" / file)[1]


def test_resuming_with_other_options_is_refused(tmp_path):
    data = blobs()
    train(_supervised(), data, TrainOptions(epochs=1), folder=tmp_path)
    with pytest.raises(InputError, match=r"expected lr 0\.002 as before, got 0\.1"):
        train(_supervised(), data, TrainOptions(epochs=2, lr=0.1), folder=tmp_path, resume=True)


def test_patience_ends_a_training_that_gets_no_better_and_resuming_does_not_begin_again(tmp_path):
    """A high rate: the best epoch is an early one, and so many after it are the last."""
    options = TrainOptions(epochs=50, patience=3, lr=0.5, batch_size=8, validation=0.25)
    result = train(_supervised(), blobs(), options, folder=tmp_path)
    assert result.epochs == result.best_epoch + 3 < 50
    assert not result.improving
    again = train(_supervised(), blobs(), options, folder=tmp_path, resume=True)
    assert again == result
    longer = dataclasses.replace(options, patience=5)
    further = train(_supervised(), blobs(), longer, folder=tmp_path, resume=True)
    assert further.epochs == further.best_epoch + 5 > result.epochs


def test_a_training_that_was_cut_short_says_so(tmp_path):
    options = TrainOptions(epochs=3, lr=0.01, batch_size=32, validation=0.25)
    result = train(_supervised(), blobs(), options, folder=tmp_path)
    assert (result.epochs, result.best_epoch, result.improving) == (3, 3, True)


def test_without_a_validation_part_all_epochs_are_made(tmp_path):
    options = TrainOptions(epochs=8, patience=1, lr=0.5, batch_size=8, validation=0.0)
    result = train(_supervised(), blobs(), options, folder=tmp_path)
    assert (result.epochs, result.improving) == (8, False)


def test_training_leaves_the_callers_generator_alone(tmp_path):
    task = _supervised()
    before = torch.get_rng_state()
    train(task, blobs(), TrainOptions(epochs=1), folder=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_alp_is_trained_as_a_federation_of_one(tmp_path):
    """After an epoch the global prototypes are the local ones; beta is 0 in the first only."""
    model = build_model("hart_alp", **ALP, classes=3)
    data = {**waves(16), "y": torch.arange(16) % 3}
    betas = []
    train(
        supervised(model),
        data,
        TrainOptions(epochs=2, batch_size=8, validation=0),
        folder=tmp_path,
        on_progress=lambda told: (
            betas.append((told.epoch, round(model.beta.item(), 3)))
            if told.validation_loss is None
            else None
        ),
    )
    assert set(betas) == {(1, 0.0), (2, 0.2)}
    layer = model.blocks[0].align
    assert torch.equal(layer.global_prototypes, layer.local_prototypes)
    assert model.beta.item() == pytest.approx(0.2)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    data = blobs()
    data["x"][5] = float("nan")
    with pytest.raises(InputError, match="loss is nan in epoch 1"):
        train(_supervised(), data, TrainOptions(), folder=tmp_path)


def test_arrays_of_unequal_length_are_refused(tmp_path):
    data = blobs() | {"y": torch.zeros(3, dtype=torch.int64)}
    with pytest.raises(InputError, match="arrays of one length"):
        train(_supervised(), data, TrainOptions(), folder=tmp_path)


def _normalising(seed=0):
    torch.manual_seed(seed)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    return supervised(nn.Sequential(*layers))


def _rows(count):
    return {name: values[:count] for name, values in blobs().items()}


def test_a_last_batch_of_one_is_joined_where_the_model_normalises_over_it(tmp_path, caplog):
    told = []
    options = TrainOptions(epochs=2, batch_size=8, validation=0.0)
    train(_normalising(), _rows(17), options, folder=tmp_path, on_progress=told.append)
    assert {(one.step, one.steps) for one in told} == {(1, 2), (2, 2)}
    tensors, _ = load_checkpoint(tmp_path / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in tensors.values())
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("a last batch of 1 example is joined to the batch before it: ")


@pytest.mark.parametrize(("count", "size"), [(1, 8), (17, 1)])
def test_a_model_that_normalises_over_the_batch_needs_two_examples(tmp_path, count, size):
    options = TrainOptions(epochs=1, batch_size=size, validation=0.0)
    if count == 1:
        data = {name: torch.cat([values, values]) for name, values in _rows(1).items()}
        options = TrainOptions(epochs=1, batch_size=size, validation=0.5)
    else:
        data = _rows(count)
    with pytest.raises(InputError, match=f"at least 2 examples .* got {count} and {size}"):
        train(_normalising(), data, options, folder=tmp_path)
