"""Central training of a recipe: repeatable, on one thread, and resumed after an interruption."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protofleet.export.build import Recipe, build_recipe
from protofleet.export.pretraining import training
from protofleet.export.pretraining.checkpoints import load_checkpoint
from protofleet.export.pretraining.recipes import pretrain_recipe
from protofleet.export.pretraining.training import TrainOptions
from tests.export.central_data import HART, waves

_RECIPE = Recipe(
    name="hart",
    settings={**HART, "dropout": 0.1},
    classes=("a", "b"),
    input_shape=(128, 6),
)
_OPTIONS = TrainOptions(epochs=3, lr=5e-3, batch_size=32, seed=7)


@pytest.fixture
def arrays():
    x = waves()["x"].numpy()
    return {"x": x, "y": (x[:, 0, 0] > 0).astype(np.int64)}


@pytest.mark.parametrize("objective", ["mae", "supervised"])
def test_an_interrupted_training_ends_with_the_same_bits(arrays, tmp_path, monkeypatch, objective):
    whole = tmp_path / "whole.safetensors"
    pretrain_recipe(_RECIPE, objective, arrays, _OPTIONS, whole)
    threads, run_epoch, epochs = torch.get_num_threads(), training._run_epoch, []
    drawn = build_recipe(_RECIPE, 7).state_dict()
    used, set_threads = [], torch.set_num_threads

    def noted(count):
        used.append(count)
        set_threads(count)

    monkeypatch.setattr(torch, "set_num_threads", noted)

    def watched(run, *rest):
        assert used == [1]
        if not epochs:
            assert all(torch.equal(drawn[n], v) for n, v in run.task.model.state_dict().items())
        epochs.append(run.epoch)
        if epochs == [1, 2, 3]:
            raise KeyboardInterrupt
        run_epoch(run, *rest)

    monkeypatch.setattr(training, "_run_epoch", watched)
    again = tmp_path / "again.safetensors"
    with pytest.raises(KeyboardInterrupt):
        pretrain_recipe(_RECIPE, objective, arrays, _OPTIONS, again)
    assert not again.exists()
    assert used == [1, threads]
    used.clear()
    pretrain_recipe(_RECIPE, objective, arrays, _OPTIONS, again)
    assert epochs == [1, 2, 3, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [again.name, whole.name]
    (a, facts), (b, _) = load_checkpoint(whole), load_checkpoint(again)
    assert (facts["model"], facts["objective"]) == (
        "hart",
        {"supervised": "cross_entropy"}.get(objective, objective),
    )
    assert all(torch.equal(a[name], b[name]) for name in a)
