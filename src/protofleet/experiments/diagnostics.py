"""Figures of alignment layers after every round, on request (``export/diagnostics.py``)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from protofleet.errors import InputError
from protofleet.experiments.run import Job
from protofleet.federation.plan import Plan
from protofleet.tensors import Network

Diagnosis = Callable[[Network], dict[str, float]]
"""From the values of a model, ``<layer>.<figure>``."""

_PROTOTYPES = ".local_prototypes"


def diagnosis(job: Job, plan: Plan) -> Diagnosis | None:
    """Of the run's model on everybody's test parts; None: not asked for, or no alignment layers.

    Raises:
        InputError: the experiment scores on no pooled test part.
    """
    aligned = any(name.endswith(_PROTOTYPES) for name in plan.model.buffers)
    if not job.experiment.diagnostics or not aligned:
        return None
    if job.data.pooled is None:
        raise InputError(
            "`diagnostics`: expected test examples of everybody to compute them on, got none; "
            "leave out score.pooled_limit = 0"
        )
    from protofleet.export.build import Recipe, build_recipe  # noqa: PLC0415 - torch
    from protofleet.export.diagnostics import AlignmentDiagnosis  # noqa: PLC0415 - torch

    model = job.experiment.model_of(job.method)
    recipe = Recipe(
        name=model.name,
        settings=model.settings,
        classes=job.data.classes,
        input_shape=job.data.input_shape,
    )
    with np.load(job.data.pooled) as pooled:
        return AlignmentDiagnosis(build_recipe(recipe, job.seed), pooled["x_test"])
