"""Who asked for an operator: the user's module and source line, for errors and graph nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import traceback as fx_traceback
from torch.utils._python_dispatch import TorchDispatchMode

from protofleet.errors import ExportError
from protofleet.export.source_locations import ModuleStack, first_line, line_here, line_of

_KEY = "protofleet_source"
_INDICES = (torch.int64, torch.int32)


class SourceTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows which module of ``model`` runs and writes it onto the nodes that are traced.

    Backward operators carry the place of the forward operator that caused them: autograd gives
    both the same sequence number.

    Args:
        model: whose modules are named.
        table: decompositions by operator, applied on the way.
    """

    def __init__(self, model: nn.Module, table: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._table = table
        self._stack = ModuleStack(model, outside="objective")
        self._by_sequence: dict[int, str] = {}

    @contextlib.contextmanager
    def tracking(self) -> Iterator[None]:
        """Follow modules and annotate nodes; a failure inside becomes an ExportError."""
        try:
            with self._stack.following(), fx_traceback.preserve_node_meta(), self:
                yield
        except Exception as error:
            raise self.explain(error) from error

    def explain(self, error: Exception) -> ExportError:
        """The error as one line that begins with the place in the user's code."""
        place = self._stack.place(line_of(error.__traceback__))
        return ExportError(f"{place}: {first_line(error)}")

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
        place = self._stack.place(line_here())
        # The running operator's autograd node, if it has one, took the last number; what runs after
        # it without one must not take its place.
        last = torch._C._autograd._get_sequence_nr() - 1  # noqa: SLF001 - as above
        self._by_sequence.setdefault(last, place)
        return place


def _nothing(*_args: Any, **_kwargs: Any) -> Any:
    return NotImplemented


def place_of(node: torch.fx.Node) -> str:
    """Where the user's code asked for a traced node."""
    place: str = node.meta.get("custom", {}).get(_KEY, "unknown place")
    return place


def _refuse_data_dependence(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> None:
    if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 - an operator's name
        raise ExportError(
            "a tensor's value is used as a Python number (if, while, float(), .item()), but "
            "a program is one fixed graph: use torch.where or arithmetic on tensors"
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
