"""Whether a model takes one example as it takes many: a device classifies each window as it comes.

``.squeeze()`` is the usual fault: with one example it takes away the batch's axis, too. Where the
batch is larger nothing shows it, so a model is run on two examples and on one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from protofleet.errors import InputError
from protofleet.export.capture.functions import TensorsOnly
from protofleet.export.source_locations import (
    ModuleStack,
    first_line,
    line_here,
    line_of,
    runs_models,
)

_aten = torch.ops.aten

_NAME_AXES = "name the axes that are always one, as in .squeeze(-1), or use .flatten(1)"
_REMEDIES: dict[Any, str] = {
    _aten.squeeze.default: _NAME_AXES,
    _aten.squeeze.dim: "leave it out: the first axis is the batch's",
    _aten.squeeze.dims: _NAME_AXES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """An operator of a forward pass.

    Attributes:
        operator: which.
        axes: how many its result has; None: the result is no tensor.
        place: module and line that asked for it.
    """

    operator: torch._ops.OpOverload
    axes: int | None
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """A forward pass.

    Attributes:
        calls: its operators in order.
        shape: of its output; None where there is none.
        error, place: why there is none, and where.
    """

    calls: Sequence[_Call]
    shape: tuple[int, ...] | None = None
    error: Exception | None = None
    place: str = ""


def check_one_example(model: nn.Module, x: Tensor) -> None:
    """Raise InputError where one example has another output than it has among others.

    The message names the operator that keeps no axis for it, its line and the remedy.

    Args:
        model: takes ``x``; its values and its training mode stay as they are.
        x: two examples or more, (n, …).
    """
    one = _passed(model, x[:1])
    many = _passed(model, x[:2])
    if many.shape is None or one.shape == (1, *many.shape[1:]):
        return
    got = f"returns {one.shape}" if one.error is None else f"fails ({first_line(one.error)})"
    what = f"with one example the model {got}, expected (1, {', '.join(map(str, many.shape[1:]))})"
    call = _first_other(one.calls, many.calls)
    if call is None:
        raise InputError(
            f"{one.place}: {what}; devices classify one example at a time: let the model take it "
            "in evaluation, without statistics of the batch"
        )
    remedy = _REMEDIES.get(call.operator, "keep that axis for one example, too")
    name = call.operator.overloadpacket.__name__
    raise InputError(
        f"{call.place}: operator {name} does not keep the batch's axis where it is one: {what}; "
        f"{remedy}"
    )


def where_one_differs(model: nn.Module, x: Tensor) -> str:
    """The first operator by which one example is computed, and two are not; '' if there is none.

    Args:
        model: as in ``check_one_example``.
        x: two examples or more, (n, …).
    """
    one, many = _passed(model, x[:1]).calls, _passed(model, x[:2]).calls
    for call, other in zip_longest(one, many):
        if call is None or other is None or call.operator != other.operator:
            found = call or other
            return f"{found.place}: operator {found.operator.overloadpacket.__name__}"
    return ""


def _first_other(one: Sequence[_Call], many: Sequence[_Call]) -> _Call | None:
    """The first operator whose result has other axes with one example; None if none has."""
    for call, other in zip_longest(one, many):
        if call is None or other is None or call.operator != other.operator:
            return None
        if call.axes != other.axes:
            found: _Call = call
            return found
    return None


@runs_models
def _passed(model: nn.Module, x: Tensor) -> _Pass:
    """A forward pass in evaluation mode."""
    before = {module: module.training for module in model.modules()}
    calls = _Calls(model)
    model.eval()
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            calls.stack.following(),
            calls,
            TensorsOnly(),
        ):
            shape = tuple(model(x).shape)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is told
        place = calls.stack.place(line_of(error.__traceback__))
        return _Pass(calls=calls.found, error=error, place=place)
    finally:
        for module, mode in before.items():
            module.training = mode
    return _Pass(calls=calls.found, shape=shape, place=calls.stack.place(""))


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps which operators run, and who asked for them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[_Call] = []
        self.stack = ModuleStack(model, outside="model")

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        axes = result.dim() if isinstance(result, Tensor) else None
        self.found.append(_Call(operator=func, axes=axes, place=self.stack.place(line_here())))
        return result
