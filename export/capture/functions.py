"""Functions of PyTorch that are computed in another way while a model is captured.

Where a function asks for fixed sizes, has a backward pass without a form in programs, or gives
complex numbers, what stands here replaces it before autograd sees it. The parity check compares
the result with the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from protofleet.errors import ExportError
from protofleet.export.capture import (
    override_fourier,
    override_layers,
    override_numbers,
    override_order,
    override_python,
    override_recurrent,
)
from protofleet.export.capture.complex_pairs import apply, makes_complex

_REPLACED: dict[Any, Callable[..., Any]] = {
    **override_fourier.FUNCTIONS,
    **override_layers.FUNCTIONS,
    **override_numbers.FUNCTIONS,
    **override_order.FUNCTIONS,
    **override_python.FUNCTIONS,
    **override_recurrent.FUNCTIONS,
}


class ProgramFunctions(TorchFunctionMode):
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
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.is_complex():
            raise ExportError(
                f"{getattr(func, '__name__', func)}: gives complex numbers, which programs have "
                "only as pairs of real ones: use torch.complex(real, imaginary), torch.polar or "
                "torch.fft.rfft"
            )
        return result
