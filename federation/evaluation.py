"""Scores the server's own model on the union of all test parts, if the federation file asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle import Bundle
from protofleet.datasets import load_pooled
from protofleet.errors import InputError
from protofleet.federation.settings import EvaluationSettings
from protofleet.strategies.scores import confusion
from protofleet.strategies.types import ServerState, Strategy

Scorer = Callable[[ServerState], NDArray[np.int64] | None]
"""Confusion counts ``(C, C) int64`` of a server state's model; None where it has none."""


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
    num_classes = len(bundle.manifest.classes)

    def score(state: ServerState) -> NDArray[np.int64] | None:
        model = strategy.server_model(state)
        if model is None:
            return None
        logits = programs.predict(model, x, batch_size=settings.batch_size)
        return confusion(y, logits.argmax(axis=1), num_classes)

    return score


def _load_fitting(path: Path, bundle: Bundle) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    x, y = load_pooled(path)
    shape = tuple(bundle.manifest.preprocessing.input_shape)
    if x.shape[1:] != shape:
        raise InputError(
            f"evaluation.pooled {path}: expected x_test (n, {', '.join(map(str, shape))}), "
            f"got {x.shape}"
        )
    return x, y
