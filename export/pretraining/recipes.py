"""Central training of a model before any value is drawn, which a seed repeats to the bit.

One thread computes, so that sums have one order however many cores there are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protofleet.durable import move_whole
from protofleet.export.build import Recipe, build_recipe
from protofleet.export.pretraining.training import (
    TrainOptions,
    TrainTask,
    masked,
    supervised,
    train,
)

RecipeObjective = Literal["mae", "supervised"]

_TASKS: Mapping[RecipeObjective, Callable[[nn.Module, Tensor], TrainTask]] = {
    "mae": masked,
    "supervised": lambda model, _: supervised(model),
}


def pretrain_recipe(
    recipe: Recipe,
    objective: RecipeObjective,
    arrays: Mapping[str, NDArray[Any]],
    options: TrainOptions,
    path: Path,
) -> None:
    """Train a recipe's model from the values that a seed draws, and keep the best epoch's.

    An interrupted training goes on after its last epoch.

    Args:
        recipe: the model.
        objective: ``mae`` looks at ``x`` alone.
        arrays: ``x (n, …) float32`` and ``y (n,) int64``.
        options: how; its seed draws the initial values too.
        path: where the checkpoint goes, whole or not at all; a folder of its name less the ending
            holds what is unfinished.

    Raises:
        InputError: the model has no tokens to mask, or training is not possible.
    """
    model = build_recipe(recipe, options.seed)
    data = {name: torch.from_numpy(values) for name, values in arrays.items()}
    folder = path.with_suffix("")
    with _one_thread():
        result = train(
            _TASKS[objective](model, data["x"][:1]),
            data,
            options,
            folder=folder,
            provenance={"model": recipe.name, "settings": json.dumps(dict(recipe.settings))},
            resume=True,
        )
    move_whole(result.checkpoint, path)
    shutil.rmtree(folder)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
