"""Functions of PyTorch that are computed in another way while a model is captured.

Where a function asks for fixed sizes, has a backward pass without a form in programs, or gives
complex numbers, what stands here replaces it before autograd sees it. The parity check compares
the result with the function itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from protofleet.errors import ExportError
from protofleet.export.capture import (
    override_fourier,
    override_layers,
    override_numbers,
    override_order,
    override_python,
    override_recurrent,
    override_sampling,
)
from protofleet.export.capture.complex_pairs import apply, made, makes_complex
from protofleet.export.source_locations import is_users

_REPLACED: dict[Any, Callable[..., Any]] = {
    **override_fourier.FUNCTIONS,
    **override_layers.FUNCTIONS,
    **override_numbers.FUNCTIONS,
    **override_order.FUNCTIONS,
    **override_python.FUNCTIONS,
    **override_recurrent.FUNCTIONS,
    **override_sampling.FUNCTIONS,
}


_LEAVING: frozenset[Any] = frozenset((Tensor.numpy, Tensor.__array__, Tensor.tolist))


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Tensor) and value.dim() else len(value)


@contextmanager
def symbolic_lengths(model: nn.Module) -> Iterator[None]:
    """Inside, ``len(x)`` in the files of the model's own classes is ``x.shape[0]``.

    Python makes a number of what ``__len__`` gives, and a program's batch size is none.
    """
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    modules = {sys.modules[kind.__module__] for kind in kinds if kind.__module__ in sys.modules}
    names = [vars(one) for one in modules if is_users(getattr(one, "__file__", None) or "")]
    changed = [one for one in names if "len" not in one]
    try:
        for one in changed:
            one["len"] = _length
        yield
    finally:
        for one in changed:
            one.pop("len", None)


class TensorsOnly(TorchFunctionMode):
    """Inside, no tensor becomes an array of NumPy's or a list."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``.

        Raises:
            ExportError: it makes one.
        """
        if func in _LEAVING:
            raise ExportError(
                "a tensor's values leave PyTorch (.numpy(), np.asarray, .tolist()), but a program "
                "is one graph of its operators: use torch's functions in forward, and compute in "
                "__init__ what does not depend on x"
            )
        return func(*args, **(kwargs or {}))


class ProgramFunctions(TensorsOnly):
    """Inside, functions that a program needs in another form take that form."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or what replaces it unless that answers ``NotImplemented``.

        Raises:
            ExportError: the function, or its result, is complex and has no real form.
        """
        kwargs = kwargs or {}
        form = _REPLACED.get(func)
        if form is not None:
            with self:
                result = form(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if makes_complex(types, args):
            with self:
                return apply(func, args, kwargs)
        with self:
            pair = made(func, args, kwargs)
        if pair is not NotImplemented:
            return pair
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, Tensor) and result.is_complex():
            raise ExportError(
                f"{getattr(func, '__name__', func)}: gives complex numbers, which programs have "
                "only as pairs of real ones: use torch.complex(real, imaginary), torch.polar or "
                "torch.fft.rfft"
            )
        return result
