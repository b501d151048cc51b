"""Which programs a bundle has to hold for the strategies that it is exported for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from protofleet import strategies
from protofleet.errors import InputError
from protofleet.export.build import BundleSpec, example_of, initial_values, objective_named
from protofleet.export.capture.override_python import plain_python
from protofleet.export.catalogue import Labels
from protofleet.export.classifier.parts import LATENT
from protofleet.export.classifier.prepare import ALL, Prepared, Wishes, prepare
from protofleet.export.objectives import OBJECTIVES
from protofleet.strategies import DESCRIPTIONS
from protofleet.strategies.tasks import TASKS, objectives_of
from protofleet.strategies.types import Description
from protofleet.tensors import Model, ModelLayer, TaskName, TensorMap

_EXAMPLES = 2
_FIRST_OF_ALL = "fedavg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """What was decided.

    Attributes:
        spec: of a bundle that serves the strategies.
        notes: what was found in the model and done to it, for people.
        left_out: why a strategy cannot run, by name, where all were asked for.
    """

    spec: BundleSpec
    notes: tuple[str, ...]
    left_out: Mapping[str, str]


@plain_python()
def choose_methods(
    model: nn.Module, spec: BundleSpec, wishes: Wishes, *, loss: str | None = None
) -> Methods:
    """Make the model ready, and complete the bundle's description.

    Every strategy is built once, so that one that does not fit is refused before the export.

    Args:
        model: changed in place, see ``prepare``.
        spec: strategy, objectives, head and layers are filled in; settings are the first one's.
        wishes: which strategies, and what becomes of the model for them.
        loss: the objective that is the task's own loss; None: the task's default.

    Raises:
        InputError: a strategy that was named, one of its settings, an objective or a wish does not
            fit.
        ExportError: the model fails on an example, or an objective is unknown.
    """
    for objective in spec.objectives:
        _check_objective(objective, spec.task)
    loss = TASKS[spec.task].loss_of(filter(None, [loss]))
    ready = prepare(model, example_of(spec.preprocessing, _EXAMPLES), wishes)
    initial = _initial(model, spec, ready)
    named = wishes.descriptions or (DESCRIPTIONS[_FIRST_OF_ALL],)
    fitting = [
        _fitted(one, spec.settings if one is named[0] else {}, initial, ready, loss)
        for one in named
    ]
    left_out: dict[str, str] = {}
    others = DESCRIPTIONS.keys() - {one.name for one in named} if ALL in wishes.strategies else ()
    for name in sorted(others):
        try:
            fitting.append(_fitted(DESCRIPTIONS[name], {}, initial, ready, loss))
        except InputError as error:
            left_out[name] = str(error)
    needed = (name for one in fitting for name in objectives_of(one, loss))
    chosen = dataclasses.replace(
        spec,
        strategy=named[0].name,
        objectives=tuple(dict.fromkeys((*needed, *spec.objectives))),
        head=wishes.head,
        layers=any(one.reads_layers for one in fitting),
    )
    return Methods(spec=chosen, notes=ready.notes, left_out=left_out)


_LABELS: Mapping[TaskName, Labels] = {
    "classification": "classes",
    "segmentation": "classes of steps",
}


def _check_objective(name: str, task: TaskName) -> None:
    labels = objective_named(name).labels
    if labels != _LABELS.get(task, "numbers"):
        fitting = " or ".join(TASKS[task].losses)
        raise InputError(
            f"objective '{name}': expected one for task {task}, got one whose labels are {labels}; "
            f"leave it out: the task's own loss is {fitting}"
        )


def _initial(model: nn.Module, spec: BundleSpec, ready: Prepared) -> Model:
    params, buffers = initial_values(model)
    return Model(
        params=TensorMap.pack(params),
        buffers=TensorMap.pack(buffers),
        num_classes=len(spec.classes),
        input_shape=spec.preprocessing.input_shape,
        task=spec.task,
        head=ready.parts.head_params,
        features=ready.features,
        layers=tuple(
            ModelLayer(name=one.name, before=one.before, hidden=one.hidden)
            for one in ready.parts.layers
        ),
        no_layers=ready.parts.no_layers,
    )


def _fitted(
    description: Description,
    settings: Mapping[str, Any],
    model: Model,
    ready: Prepared,
    loss: str,
) -> Description:
    """The strategy's description if it can run on the model.

    Raises:
        InputError: it cannot.
    """
    strategies.check_task(description, model.task)
    objectives = objectives_of(description, loss)
    needs = {need for one in objectives for need in OBJECTIVES[one].needs}
    if "features" in needs and not ready.features:
        raise InputError(f"strategy '{description.name}': needs features: {ready.parts.missing}")
    if "classify" in needs and ready.unfit_head:
        raise InputError(f"strategy '{description.name}': {ready.unfit_head}")
    if "decode" in needs and not ready.parts.decodes:
        raise InputError(f"strategy '{description.name}': {LATENT}")
    return strategies.build(description.name, settings, model).description
