"""What a strategy's server half may use: programs, if it asks, randomness, aggregation rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle import Bundle
from protofleet.datasets import load_pooled
from protofleet.errors import InputError
from protofleet.federation.randomness import server_rng
from protofleet.federation.settings import EvaluationSettings
from protofleet.strategies.aggregation import MEAN, Aggregator
from protofleet.strategies.scores import Statistics
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.tasks import TASKS
from protofleet.strategies.types import ServerState, ServerTools
from protofleet.tensors import Network


def make_server_tools(
    bundle: Bundle,
    strategy: Strategy,
    *,
    seed: int,
    threads: int = 1,
    aggregator: Aggregator = MEAN,
) -> Callable[[int], ServerTools]:
    """A function from a round to its tools; programs are opened only for strategies that ask.

    Args:
        bundle: has what the strategy needs (``suitability``).
        strategy: whose server half it is.
        seed: of the federation.
        threads: of the programs.
        aggregator: of the federation.
    """
    description = strategy.description
    if not description.server_objectives:
        return lambda round_id: ServerTools(
            grad_fns={},
            predict=_no_programs,
            rng=server_rng(seed, round_id),
            aggregator=aggregator,
        )
    from protofleet.runtime import open_programs  # noqa: PLC0415 - only who trains pays for it

    programs = open_programs(bundle, threads=threads)
    return lambda round_id: ServerTools(
        grad_fns=programs.grad_fns,
        min_batch=programs.min_batch,
        predict=programs.predict,
        rng=server_rng(seed, round_id),
        aggregator=aggregator,
    )


def _no_programs(network: Network, x: NDArray[np.float32]) -> NDArray[np.float32]:
    raise InputError(
        f"server: the strategy asked for no programs, but predicts {len(x)} examples with "
        f"{len(network.params)} parameters"
    )


Scorer = Callable[[ServerState], Statistics | None]
"""Statistics of a server state's model, in the form of the task; None where it has none."""


def make_scorer(bundle: Bundle, strategy: Strategy, settings: EvaluationSettings) -> Scorer | None:
    """A scorer, or None if no pooled test data are configured.

    Raises:
        MissingDataError: the file is absent.
        InputError: it is no ``.npz`` with ``x_test`` and ``y_test`` that fit the bundle.
    """
    if settings.pooled is None:
        return None
    from protofleet.runtime import open_programs  # noqa: PLC0415 - only who scores pays for it

    x, y = _load_fitting(settings.pooled, bundle)
    programs = open_programs(bundle, threads=settings.threads)
    task, outputs = TASKS[bundle.manifest.task], len(bundle.manifest.outputs)

    def score(state: ServerState) -> Statistics | None:
        model = strategy.server_model(state)
        if model is None:
            return None
        predicted = programs.predict(model, x, batch_size=settings.batch_size)
        return task.statistics(predicted, y, outputs)

    return score


def _load_fitting(path: Path, bundle: Bundle) -> tuple[NDArray[np.float32], NDArray[Any]]:
    x, y = load_pooled(path, tokens=bundle.manifest.preprocessing.tokens is not None)
    shape = tuple(bundle.manifest.preprocessing.input_shape)
    if x.shape[1:] != shape:
        raise InputError(
            f"evaluation.pooled {path}: expected x_test (n, {', '.join(map(str, shape))}), "
            f"got {x.shape}"
        )
    manifest = bundle.manifest
    what = f"evaluation.pooled {path}: y_test"
    TASKS[manifest.task].check_labels(what, y, len(manifest.outputs))
    return x, y
