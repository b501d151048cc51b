"""Models that give classes before the steps, ``(n, C, S)``, as PyTorch's loss takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.checks import expected_output, run_example
from protofleet.tensors import TaskName


@contextmanager
def classes_last(
    model: nn.Module,
    x: Tensor,
    task: TaskName,
    classes: Sequence[str] | None,
    tell: Callable[[str], None],
) -> Iterator[None]:
    """Within, a segmentation's model gives ``(n, steps, classes)``, also one with classes before.

    A model of another task, or another output, stays as it is, and so does the model afterwards.

    Args:
        model: of one input.
        x: two examples or more.
        task: what the outputs are.
        classes: their names; a segmentation's are needed, since shapes do not tell steps and
            classes apart.
        tell: told what is turned.

    Raises:
        InputError: a segmentation's classes have no names, or the model fails.
    """
    if task != "segmentation":
        yield
        return
    if not classes:
        raise InputError(
            "classes: name those of a segmentation, in the order of the outputs: which axis of "
            "(n, steps, classes) has them is not told by its shape"
        )
    output, _ = run_example(model, x, expected_output(task, classes))
    shape = tuple(output.shape)
    count = len(classes)
    if shape[1:] == (count, count):
        tell(f"the model gives (n, {count}, {count}): taken as (n, steps, classes)")
    if len(shape) != 3 or shape[2] == count or shape[1] != count:
        yield
        return
    tell(f"the model gives (n, classes, steps), {shape[1:]}: taken as (n, steps, classes)")
    hook = model.register_forward_hook(_turned)
    try:
        yield
    finally:
        hook.remove()


def _turned(_model: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return output.mT
