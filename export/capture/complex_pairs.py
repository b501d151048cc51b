"""Complex tensors while a model is captured: pairs of real ones, which programs are made of.

``torch.fft.rfft`` and its kin give a ``Complex``, and PyTorch's functions and methods work on it as
on a complex tensor: arithmetic, ``abs``, ``angle``, slices, products of matrices. What has no real
form is refused by name. Gradients are those of the real parts, which is what PyTorch's are.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from protofleet.errors import ExportError

_TINY = 1e-37  # the smallest square of a length that has a direction
_COMPLEX = (torch.complex64, torch.complex128)


class Complex:
    """A complex tensor.

    Attributes:
        real, imag: float32 tensors of one shape; ``imag`` None: all zeros.
    """

    def __init__(self, real: Tensor, imag: Tensor | None) -> None:
        self.real = real
        self._imag = imag

    @property
    def imag(self) -> Tensor:
        """The imaginary part."""
        return torch.zeros_like(self.real) if self._imag is None else self._imag

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What ``func`` is of pairs."""
        return apply(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name in _SHAPE:
            return getattr(self.real, name)
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(name)
        found = getattr(Tensor, name)
        if not callable(found):
            return apply(found, (self,), {}, name=name)
        return functools.partial(_call, found, self)

    def __getitem__(self, index: Any) -> Any:
        return _each(operator.getitem, self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        real, imag = parts(value)
        # Views share what is written: a part that was left out is there from now on.
        self._imag = self.imag
        self.real[index], self._imag[index] = real, 0.0 if imag is None else imag

    def __len__(self) -> int:
        return len(self.real)

    def __neg__(self) -> Any:
        return _each(operator.neg, self)


def _call(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return apply(func, args, kwargs)


def _operator(name: str, *, turned: bool = False) -> Callable[[Any, Any], Any]:
    def compute(self: Any, other: Any) -> Any:
        pair = (other, self) if turned else (self, other)
        return _FORMS[name](*pair)

    return compute


def makes_complex(types: Sequence[type], args: Sequence[Any]) -> bool:
    """Whether a call is one on complex numbers: Python's own are, too."""
    return Complex in types or any(isinstance(value, complex) for value in args)


def apply(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, name: str = ""
) -> Any:
    """``func`` of arguments of which one is complex.

    Raises:
        ExportError: it has no real form.
    """
    name = name or getattr(func, "__name__", str(func))
    if name in _LINEAR:
        return _each(func, *args, **kwargs)
    plain = name.strip("_") if name.startswith("__") else name
    turned = plain.removeprefix("r")
    if name.startswith("__") and plain != turned and turned in _FORMS:
        return _FORMS[turned](args[1], args[0])
    if plain not in _FORMS:
        raise ExportError(
            f"{plain} of complex numbers: has no form in programs, which are real: take .real, "
            ".imag or .abs() before"
        )
    return _FORMS[plain](*args, **kwargs)


def made(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a function without complex arguments gives of a complex dtype; else NotImplemented."""
    name = getattr(func, "__name__", "")
    asked = (*args[1:], *kwargs.values())
    if name == "cfloat" or (name in _CASTS and any(dtype in _COMPLEX for dtype in asked)):
        return Complex(args[0].to(torch.float32), torch.zeros_like(args[0], dtype=torch.float32))
    if name not in _CREATES or kwargs.get("dtype") not in _COMPLEX:
        return NotImplemented
    real: Tensor = func(*args, **kwargs | {"dtype": torch.float32})
    return Complex(real, torch.zeros_like(real))


def parts(value: Any) -> tuple[Any, Any]:
    """Real and imaginary part; the latter None where it is zero.

    Raises:
        ExportError: a tensor that was complex before it came into the model.
    """
    if isinstance(value, Complex):
        return value.real, value._imag  # noqa: SLF001 - this module's
    if isinstance(value, complex):
        return value.real, value.imag or None
    if isinstance(value, Tensor) and value.is_complex():
        raise ExportError(
            "a complex tensor that the model keeps: programs carry real ones: keep its real and "
            "its imaginary part, and join them in forward by torch.complex(real, imaginary)"
        )
    return value, None


def _each(func: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that moves or adds entries, of both parts."""

    def side(index: int) -> Any:
        def pick(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(pick(item) for item in value)
            if not isinstance(value, Complex):
                return value
            return value.imag if index else value.real

        return func(*map(pick, args), **{key: pick(value) for key, value in kwargs.items()})

    real, imag = side(0), side(1)
    if isinstance(real, tuple | list):
        return type(real)(Complex(a, b) for a, b in zip(real, imag, strict=True))
    return Complex(real, imag)


def _add(x: Any, y: Any, *, alpha: float = 1) -> Complex:
    (a, b), (c, d) = parts(x), parts(y if alpha == 1 else _multiply(y, alpha))
    imag = d if b is None else b if d is None else b + d
    return _whole(a + c, imag)


def _whole(real: Any, imag: Any) -> Complex:
    """Of one shape: a number beside a tensor is repeated."""
    if imag is None or (isinstance(imag, Tensor) and imag.shape == real.shape):
        return Complex(real, imag)
    imag = torch.zeros_like(real) + imag
    return Complex(real.expand(imag.shape), imag)


def _subtract(x: Any, y: Any, *, alpha: float = 1) -> Complex:
    return _add(x, _multiply(y, -alpha))


def _multiply(x: Any, y: Any) -> Any:
    return _product(operator.mul, x, y)


def _product(multiply: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    (a, b), (c, d) = parts(x), parts(y)
    if b is None and d is None:
        return multiply(a, c)
    if b is None:
        return Complex(multiply(a, c), multiply(a, d))
    if d is None:
        return Complex(multiply(a, c), multiply(b, c))
    return Complex(multiply(a, c) - multiply(b, d), multiply(a, d) + multiply(b, c))


def _matmul(x: Any, y: Any) -> Any:
    return _product(operator.matmul, x, y)


def _divide(x: Any, y: Any, *, rounding_mode: None = None) -> Any:  # noqa: ARG001 - PyTorch's
    c, d = parts(y)
    if d is None:
        return _each(operator.truediv, x, c)
    return _multiply(_multiply(x, Complex(c, -d)), 1 / (c * c + d * d))


def _einsum(equation: str, *operands: Any) -> Any:
    given = (
        operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    )
    if len(given) == 1:
        return _each(torch.einsum, equation, *given)
    if len(given) != 2:
        raise ExportError("einsum of complex numbers: expected two factors")
    return _product(lambda a, b: torch.einsum(equation, a, b), *given)


def _squares(x: Complex) -> Tensor:
    a, b = parts(x)
    squares: Tensor = a * a if b is None else a * a + b * b
    return squares


def _abs(x: Complex) -> Tensor:
    """The lengths; one of zero passes no gradient on, as in PyTorch."""
    return torch.sqrt(_squares(x).clamp(min=_TINY))


def _angle(x: Complex) -> Tensor:
    return torch.atan2(x.imag, x.real)


def _power(x: Complex, exponent: float) -> Any:
    if exponent == 2:
        return _multiply(x, x)
    if not isinstance(exponent, int) or exponent < 1:
        raise ExportError(f"complex numbers to the power of {exponent}: expected 1, 2, 3, …")
    return functools.reduce(_multiply, [x] * exponent)


def _exp(x: Complex) -> Complex:
    size = torch.exp(x.real)
    return Complex(size * torch.cos(x.imag), size * torch.sin(x.imag))


def _conjugate(x: Complex) -> Complex:
    return Complex(x.real, -x.imag)


def _as_real(x: Complex) -> Tensor:
    return torch.stack((x.real, x.imag), -1)


def _swapped(x: Tensor) -> Tensor:
    return x.transpose(-1, -2)


def _sign(x: Complex) -> Complex:
    length = _abs(x)
    return Complex(x.real / length, x.imag / length)


def _same(x: Complex, *_: Any, **__: Any) -> Complex:
    return x


def _cast(x: Complex, *args: Any, **kwargs: Any) -> Complex:
    """To another device or to complex64, which both change nothing."""
    asked = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype)), None)
    if asked is not None and asked not in _COMPLEX:
        raise ExportError(f"complex numbers to {asked}: take .real, .imag or .abs()")
    return x


def _zeros_like(x: Complex, *, dtype: torch.dtype | None = None) -> Any:
    zeros = torch.zeros_like(x.real)
    return Complex(zeros, zeros.clone()) if dtype in {None, *_COMPLEX} else zeros.to(dtype)


_CASTS = frozenset({"to", "type"})
_CREATES = frozenset(
    {"empty", "zeros", "ones", "new_empty", "new_zeros", "new_ones", "zeros_like", "ones_like"}
)
_SHAPE = frozenset({"shape", "ndim", "size", "dim", "numel", "device", "stride"})
_LINEAR = frozenset(
    {
        "__getitem__",
        "cat",
        "chunk",
        "clone",
        "concat",
        "concatenate",
        "contiguous",
        "detach",
        "diagonal",
        "diff",
        "expand",
        "expand_as",
        "flatten",
        "flip",
        "hstack",
        "index_select",
        "mean",
        "movedim",
        "narrow",
        "neg",
        "permute",
        "positive",
        "repeat",
        "reshape",
        "roll",
        "select",
        "split",
        "squeeze",
        "stack",
        "sum",
        "swapaxes",
        "t",
        "tile",
        "transpose",
        "tril",
        "triu",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
        "view_as",
        "vstack",
    }
)

_FORMS: dict[str, Callable[..., Any]] = {
    "H": lambda x: _conjugate(_each(_swapped, x)),
    "T": lambda x: _each(_swapped, x),
    "abs": _abs,
    "absolute": _abs,
    "add": _add,
    "angle": _angle,
    "bmm": _matmul,
    "conj": _conjugate,
    "conj_physical": _conjugate,
    "div": _divide,
    "einsum": _einsum,
    "exp": _exp,
    "imag": lambda x: x.imag,
    "is_complex": lambda _: True,
    "is_floating_point": lambda _: False,
    "mH": lambda x: _conjugate(_each(_swapped, x)),
    "mT": lambda x: _each(_swapped, x),
    "matmul": _matmul,
    "mm": _matmul,
    "mul": _multiply,
    "multiply": _multiply,
    "pow": _power,
    "real": lambda x: x.real,
    "resolve_conj": _same,
    "sgn": _sign,
    "square": lambda x: _multiply(x, x),
    "sub": _subtract,
    "subtract": _subtract,
    "to": _cast,
    "true_divide": _divide,
    "truediv": _divide,
    "view_as_real": _as_real,
    "zeros_like": _zeros_like,
}

for _name in ("add", "sub", "mul", "truediv", "matmul", "pow"):
    setattr(Complex, f"__{_name}__", _operator(_name))
    setattr(Complex, f"__r{_name}__", _operator(_name, turned=True))
