"""Who asked for an operator: the user's module and source line, for errors and graph nodes."""

from __future__ import annotations

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import onnxscript
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import traceback as fx_traceback
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from protofleet.errors import ExportError

_NOT_THE_USERS = (
    str(Path(torch.__file__).parent),
    str(Path(onnxscript.__file__).parent),
    sysconfig.get_path("stdlib"),
    f"{Path(__file__).resolve().parent}{os.sep}",
    "<",
)

_KEY = "protofleet_source"
_INDICES = (torch.int64, torch.int32)


class SourceTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows which module of ``root`` runs and writes it onto the nodes that are traced.

    Backward operators carry the place of the forward operator that caused them: autograd gives
    both the same sequence number.

    Args:
        root: whose modules are named.
        table: decompositions by operator, applied on the way.
    """

    def __init__(self, root: nn.Module, table: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._table = table
        self._names = {id(module): name for name, module in root.named_modules()}
        self._stack: list[tuple[str, nn.Module]] = []
        self._by_sequence: dict[int, str] = {}

    @contextlib.contextmanager
    def tracking(self) -> Iterator[None]:
        """Follow modules and annotate nodes; a failure inside becomes an ExportError."""
        before = module_hooks.register_module_forward_pre_hook(self._enter)
        after = module_hooks.register_module_forward_hook(self._leave)
        try:
            self._stack.clear()
            with fx_traceback.preserve_node_meta(), self:
                yield
        except Exception as error:
            raise self.explain(error) from error
        finally:
            before.remove()
            after.remove()

    def explain(self, error: Exception) -> ExportError:
        """The error as one line that begins with the place in the user's code."""
        place = self._place(_line_of(error.__traceback__))
        return ExportError(f"{place}: {_first_line(error)}")

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` with its place as the current annotation.

        Raises:
            ExportError: the operator's result or its shape depends on the data.
        """
        _refuse_data_dependence(func, args)
        # Some operators are written in C++ for fixed sizes only; PyTorch's Python forms are not.
        with fx_traceback.annotate({_KEY: self._current_place()}), enable_python_dispatcher():
            result = self._table.get(func, _nothing)(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {})) if result is NotImplemented else result

    def _current_place(self) -> str:
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001 - no public way to ask
        if node is not None:
            sequence = node._sequence_nr()  # noqa: SLF001 - as above
            return self._by_sequence.get(sequence, "backward pass")
        place = self._place(_line_here())
        # The running operator's autograd node, if it has one, took the last number; what runs after
        # it without one must not take its place.
        last = torch._C._autograd._get_sequence_nr() - 1  # noqa: SLF001 - as above
        self._by_sequence.setdefault(last, place)
        return place

    def _place(self, line: str) -> str:
        if not self._stack:
            return f"objective, {line}"
        name, module = self._stack[-1]
        kind = type(module)
        label = f"module '{name}'" if name else "model"
        return f"{label} ({kind.__module__}.{kind.__qualname__}), {line}"

    def _enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002 - hook signature
        name = self._names.get(id(module))
        if name:
            self._stack.append((name.removeprefix("model.") if name != "model" else "", module))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002 - as above
        if self._stack and self._stack[-1][1] is module:
            self._stack.pop()


def _nothing(*_args: Any, **_kwargs: Any) -> Any:
    return NotImplemented


def place_of(node: torch.fx.Node) -> str:
    """Where the user's code asked for a traced node."""
    place: str = node.meta.get("custom", {}).get(_KEY, "unknown place")
    return place


def _refuse_data_dependence(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> None:
    if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 - an operator's name
        raise ExportError(
            "a tensor's value is used as a Python number (if, while, .item()), but a program is "
            "one fixed graph: use torch.where or arithmetic"
        )
    if torch.Tag.dynamic_output_shape in func.tags and not _indexes_by_numbers(func, args):
        raise ExportError(
            f"the size of {func}'s result depends on the data (boolean index, nonzero, unique), "
            "but a program has fixed sizes apart from the batch: use torch.where or a weight"
        )


def _indexes_by_numbers(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> bool:
    if func is not torch.ops.aten.index.Tensor:
        return False
    return all(index is None or index.dtype in _INDICES for index in args[1])


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def is_users(filename: str) -> bool:
    """Whether a file is the user's: not PyTorch's, Python's or this capture's own."""
    return not filename.startswith(_NOT_THE_USERS)


def _line_of(trace: TracebackType | None) -> str:
    lines = [
        f"{frame.f_code.co_filename}:{number}"
        for frame, number in traceback.walk_tb(trace)
        if is_users(frame.f_code.co_filename)
    ]
    return lines[-1] if lines else "no line of the user's code"


def _line_here() -> str:
    frames: Iterator[tuple[FrameType, int]] = traceback.walk_stack(None)
    for frame, number in frames:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{number}"
    return "no line of the user's code"
