"""Whether a model computes each example from its own values: devices classify each as it comes.

A softmax or a mean over the first axis, batch statistics in evaluation, or a batch that is taken
for time give an example another output among others than alone. Nothing shows it in training,
scores of whole batches look well, and the device then predicts otherwise. So a model is run on two
examples and on each of them singly. Training may mix them: it is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from protofleet.errors import InputError
from protofleet.export.capture.noise import Distribution, explicit_noise
from protofleet.export.classifier.calls import evaluation
from protofleet.export.functional import call_with
from protofleet.export.source_locations import ModuleStack, line_here, runs_models

_EXAMPLES = 2
_TOLERANCE = 1e-4
# Batches of other sizes are summed in another order; a model near a step makes more of it.
_NUDGE = 2e-6
_LEEWAY = 10
# Random numbers would differ by themselves. Of dropout, this one keeps what most rates drop.
_INSTEAD_OF_NOISE = 0.3

_FIRST_IS_BATCH = "the first axis is the batch's"
_NAME_AXES = (
    f"name the axes of one example, as in dim=1 or dim=-1: {_FIRST_IS_BATCH}, and without dim all "
    "are taken"
)
_REMEDIES: dict[str, str] = {
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_safe_softmax"),
        f"name an axis of one example, as in softmax(dim=-1): {_FIRST_IS_BATCH}, and PyTorch takes "
        "it of three axes where dim is left out",
    ),
    **dict.fromkeys(
        (
            *("mean", "sum", "prod", "std", "var", "var_mean", "std_mean", "max", "min", "amax"),
            *("amin", "aminmax", "median", "norm", "linalg_vector_norm", "logsumexp", "cumsum"),
            *("cumprod", "sort", "argmax", "argmin", "topk", "flip", "roll"),
        ),
        _NAME_AXES,
    ),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
        "leave track_running_stats at True, and the layer's training to the model's mode: in "
        "evaluation it takes the running statistics",
    ),
    **dict.fromkeys(
        ("view", "_unsafe_view", "_reshape_alias"),
        "move axes with transpose or permute: view and reshape leave the values in their order",
    ),
}
_MOVING = frozenset(
    (
        *(
            "clone",
            "copy_",
            "_to_copy",
            "view",
            "_unsafe_view",
            "_reshape_alias",
            "expand",
            "alias",
        ),
        *("permute", "transpose", "t", "squeeze", "unsqueeze", "slice", "select", "as_strided"),
        *("detach", "empty", "empty_like", "new_empty", "empty_strided"),
    )
)
_ELSE = "compute each example from its own values alone"
_BY_BATCH_FIRST: dict[bool | None, str] = {
    False: "set batch_first=True: without it the first axis is time, not the batch",
    True: "give it (batch, steps, features): what it got has the batch on another axis",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What an operator of a forward pass gave.

    Attributes:
        operator: its name.
        values: its tensors; none where no tensor went in, for then no example did.
        place: module and line that asked for it.
        remedy: of the module that runs, where it takes a batch of sequences; else ''.
        sized_by_data: how many values it gives may follow from values, as of ``x[x > 0]``.
    """

    operator: str
    values: Sequence[Tensor]
    place: str
    remedy: str
    sized_by_data: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """An example's output among others against its output alone.

    Attributes:
        x: the batch.
        example: whose output differs most.
        share: by how much, of the largest output of the batch.
    """

    x: Tensor
    example: int
    share: float


def check_independent(model: nn.Module, x: Tensor) -> None:
    """Raise InputError where an example's output in evaluation depends on the others of its batch.

    The message names the operator, its line and the remedy. A module with a true attribute
    ``mixes_samples`` says that it does so on purpose, as ALP layers: such a model is not compared.

    Args:
        model: its values and its training mode stay as they are.
        x: examples (n, …) for their shape and dtype; whole numbers are drawn up to their largest.
    """
    if any(getattr(module, "mixes_samples", False) for module in model.modules()):
        return
    found: list[_Difference] = []
    for index, drawn in enumerate(_draws(model, x)):
        try:
            difference = _difference(model, drawn)
        except Exception:  # noqa: BLE001 - capture and parity tell what fails on numbers like these
            return
        if difference is not None:
            found.append(difference)
        # One difference may be a step that rounding crosses: a third draw decides.
        if index == 1 and len(found) != 1:
            break
    if len(found) > 1 and (told := _told(model, found[0])):
        raise InputError(told)


def _draws(model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    """Three batches; not all numbers are negative ones, of which a logarithm shows nothing."""
    generator = torch.Generator().manual_seed(0)
    shape = (_EXAMPLES, *x.shape[1:])
    words = getattr(model, "vocabulary", None)
    for draw in (torch.randn, torch.rand, torch.rand):
        if not x.is_floating_point():
            below = int(x.max()) + 1 if x.numel() else 1
            yield torch.randint(0, below, shape, generator=generator, dtype=x.dtype)
        elif words is not None:
            yield (words * torch.rand(shape, generator=generator) ** 4).floor()
        else:
            yield draw(shape, generator=generator, dtype=x.dtype)


def _difference(model: nn.Module, x: Tensor) -> _Difference | None:
    """None where the outputs agree, or this batch says nothing."""
    together = _output(model, x)
    apart = torch.cat([_output(model, one) for one in x[:, None]])
    far = _distances(together, apart)
    scale = _largest(together)
    if float(far.max()) <= _TOLERANCE * scale:
        return None
    # What also moves at the same batch size, as by state or randomness of its own, says nothing.
    moved = float(_distances(_output(model, _nudged(model, x)), together).max())
    if float(far.max()) <= _TOLERANCE * scale + _LEEWAY * moved:
        return None
    share = float(far.max()) / scale if scale else math.inf
    # The least of those that differ as much: of the first, positions in the batch agree, too.
    example = int((far >= far.max() / 2).nonzero()[0])
    return _Difference(x=x, example=example, share=share)


def _nudged(model: nn.Module, x: Tensor) -> Tensor:
    """Moved by a few roundings; numbers that are looked up stay."""
    if not x.is_floating_point() or hasattr(model, "vocabulary"):
        return x
    signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return x * (1 + _NUDGE * signs)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """The largest difference of each example, (n,); infinite where one is no number and one is."""
    same = (a == b) | (a.isnan() & b.isnan())
    far = torch.where(same, torch.zeros_like(a), (a - b).abs()).nan_to_num(nan=math.inf)
    return far.flatten(1).amax(1)


def _largest(value: Tensor) -> float:
    finite = value[value.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _constant(shape: Sequence[Any], _distribution: Distribution) -> Tensor:
    return torch.full(tuple(shape), _INSTEAD_OF_NOISE)


@runs_models
def _output(model: nn.Module, x: Tensor, results: _Results | None = None) -> Tensor:
    """In evaluation mode, with constants for noise; what the call writes stays as it was."""
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with evaluation(model), explicit_noise(_constant), ExitStack() as kept:
        if results is not None:
            kept.enter_context(results.stack.following())
            kept.enter_context(results)
        output: Tensor = call_with(model, buffers, x.clone())
    return output


def _told(model: nn.Module, found: _Difference) -> str:
    """What the message says; '' where capture tells the cause, a size that follows from values."""
    among, alone = _Results(model), _Results(model)
    _output(model, found.x, among)
    _output(model, found.x[found.example : found.example + 1], alone)
    what = (
        f"one example has another output beside a second than alone, by {found.share:.2g} of "
        "the largest output, and devices classify one example at a time"
    )
    for whole, one in _paired(among.found, alone.found):
        if whole is None or one is None:
            result, how = whole or one, "is not computed alike for one example and for several"
            remedy = "let nothing depend on how many there are"
        elif whole.sized_by_data and not all(map(_fits, whole.values, one.values)):
            return ""
        elif all(map(partial(_agrees, example=found.example), whole.values, one.values)):
            continue
        else:
            result, how = whole, "mixes the examples of a batch in evaluation"
            remedy = _REMEDIES.get(whole.operator, _ELSE)
        if result is not None:
            remedy = result.remedy or remedy
            return f"{result.place}: operator {result.operator} {how}: {what}; {remedy}"
    return f"model: examples of a batch are mixed in evaluation: {what}; {_ELSE}"


_Pair = tuple[_Result | None, _Result | None]


def _paired(among: Sequence[_Result], alone: Sequence[_Result]) -> Iterator[_Pair]:
    """Results of the same operator; at the end the first that one of the passes has alone, if any.

    PyTorch itself copies where a batch of one needs no copy, and takes other views.
    """
    left, right = list(reversed(among)), list(reversed(alone))
    while left and right:
        if left[-1].operator == right[-1].operator:
            yield left.pop(), right.pop()
        elif {left[-1].operator, right[-1].operator} == {"mm", "addmm"}:
            yield _linear(left), _linear(right)
        elif left[-1].operator in _MOVING:
            left.pop()
        elif right[-1].operator in _MOVING:
            right.pop()
        else:
            extra = any(one.operator == left[-1].operator for one in right)
            yield (None, right[-1]) if extra else (left[-1], None)
            return
    extra_of = [[one for one in rest if one.operator not in _MOVING][-1:] for rest in (left, right)]
    yield from zip_longest(*extra_of)


def _linear(rest: list[_Result]) -> _Result:
    """Take a linear layer off: PyTorch adds the bias by itself to rows that lie in steps."""
    result = rest.pop()
    while result.operator != "addmm" and rest and rest[-1].operator in {*_MOVING, "add"}:
        result = rest.pop()
        if result.operator == "add":
            break
    return result


def _agrees(whole: Tensor, one: Tensor, *, example: int) -> bool:
    """Whether a tensor of a batch holds that of one of its examples, as far as shapes tell.

    An axis that is joined of the batch's and another has an example's numbers behind one another,
    or, where the batch's is the inner one, in steps.
    """
    if not _fits(whole, one):
        return True
    blocks = steps = whole
    for axis, (many, few) in enumerate(zip(whole.shape, one.shape, strict=True)):
        if many != few:
            blocks = blocks.narrow(axis, example * few, few)
            steps = steps.index_select(axis, torch.arange(example, many, _EXAMPLES))
    scale = _largest(whole) if whole.is_floating_point() else 0.0
    return any(_close(part, one, scale) for part in (blocks, steps))


def _fits(whole: Tensor, one: Tensor) -> bool:
    """Whether each axis is as long for a batch as for one example, or as many times as long."""
    return whole.dim() == one.dim() and all(
        many in {few, _EXAMPLES * few} for many, few in zip(whole.shape, one.shape, strict=True)
    )


def _close(a: Tensor, b: Tensor, scale: float) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=0, atol=_TOLERANCE * scale, equal_nan=True)


class _Results(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what each operator gave, and who asked for it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[_Result] = []
        self.stack = ModuleStack(model, outside="model")

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = any(isinstance(value, Tensor) for value in tree_leaves((args, kwargs)))
        name = func.overloadpacket.__name__
        # Memory that nothing has been written to holds anything.
        kept = given and "empty" not in name
        values = [v.clone() for v in tree_leaves(result) if kept and isinstance(v, Tensor)]
        running = self.stack.innermost
        self.found.append(
            _Result(
                operator=name,
                values=values,
                place=self.stack.place(line_here()),
                remedy=_BY_BATCH_FIRST.get(getattr(running, "batch_first", None), ""),
                sized_by_data=torch.Tag.dynamic_output_shape in func.tags,
            )
        )
        return result
