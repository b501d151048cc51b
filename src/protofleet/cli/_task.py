"""Options that say what a model's outputs are: task, loss, names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from protofleet.cli._groups import gathered
from protofleet.errors import InputError

if TYPE_CHECKING:
    from protofleet.tensors import TaskName

_TASKS = ("classification", "segmentation", "regression", "multilabel")
_LOSSES = ("cross_entropy", "step_cross_entropy", "mse", "huber", "bce")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What a command line says of a model's outputs; None where it says nothing."""

    task: TaskName | None
    loss: str | None
    classes: str | None = None
    targets: str | None = None


_TASK_OPTIONS = (
    click.option(
        "--task",
        type=click.Choice(_TASKS),
        help="What the outputs are: scores of classes (the default), the same for each step of an "
        "example (segmentation), numbers, or logits of labels of which any may hold.",
    ),
    click.option(
        "--loss",
        type=click.Choice(_LOSSES),
        help="The task's own loss; default: by the task.",
    ),
)
_NAME_OPTIONS = (
    click.option("--classes", help="Class names, comma-separated, in the order of the logits."),
    click.option("--targets", help="Names of targets or labels, comma-separated, as --classes."),
)

output_options = gathered(OutputOptions, "given", (*_TASK_OPTIONS, *_NAME_OPTIONS))
"""Task, loss and the outputs' names."""


def resolve_task(given: OutputOptions, metadata: Mapping[str, str]) -> tuple[TaskName, str]:
    """Task and loss: as given, else the checkpoint's, else classification and the task's default.

    Args:
        given: from the command line.
        metadata: of a checkpoint; empty without one.

    Raises:
        InputError: the task has no such loss.
    """
    from protofleet.strategies.tasks import TASKS

    found = [name for name in TASKS if name == (given.task or metadata.get("task"))]
    named = found[0] if found else "classification"
    task = TASKS[named]
    return named, task.chosen_loss(given.loss or task.loss_of([metadata.get("objective", "")]))


def output_names(
    given: OutputOptions, metadata: Mapping[str, str], task: TaskName
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Names of classes and those of targets: as given, else the checkpoint's, else None.

    Args:
        given: from the command line.
        metadata: of a checkpoint; empty without one.
        task: whose outputs they are.

    Raises:
        InputError: a name is empty or occurs twice.
    """
    from protofleet.tensors import kind_of

    classes = _split("classes", given.classes)
    targets = _split("targets", given.targets)
    if kind_of(task) == "classes":
        classes = classes or _listed(metadata.get("classes"))
    else:
        targets = targets or _listed(metadata.get("targets"))
    return classes or None, targets or None


def _split(kind: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if "" in names or len(set(names)) < len(names):
        raise InputError(f"--{kind}: expected different names as in sit,walk, got '{text}'")
    return names


def _listed(text: str | None) -> tuple[str, ...]:
    names: Sequence[object] = json.loads(text) if text else ()
    return tuple(str(name) for name in names)
