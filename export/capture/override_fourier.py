"""Fourier transforms as products with matrices of cosines and sines.

A transform of n numbers is one product while that is cheap, and else, after Cooley and Tukey, two
stages of short ones: n = a·b takes a + b products for each number instead of n, and constants of a²
and b² numbers instead of n². Where even one stage's constant would be as large as a weight, its
rows are made in the program from two small tables: cos(x + y) and sin(x + y).

Source: Cooley, Tukey, "An Algorithm for the Machine Calculation of Complex Fourier Series",
Mathematics of Computation 19, 1965.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from protofleet.errors import ExportError
from protofleet.export.capture.complex_pairs import Complex, parts
from protofleet.export.capture.limits import MAX_CONSTANT_BYTES

MAX_WINDOW = 1024
_MAX_CONSTANT = MAX_CONSTANT_BYTES // 4  # numbers of float32
_DIRECT = 256 * 129  # entries of a matrix up to which one product is the faster way

Pair = tuple[Tensor, Tensor | None]


def _constant(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _waves(rows: NDArray[np.int64], columns: NDArray[np.int64], n: int) -> tuple[Tensor, Tensor]:
    """Cos and sin of 2π·row·column/n."""
    angles = 2 * math.pi * (np.outer(rows, columns) % n) / n
    return _constant(np.cos(angles)), _constant(np.sin(angles))


def _matrix(n: int, columns: int) -> tuple[Tensor, Tensor]:
    """Cos and sin of 2π·j·k/n, (n, columns); larger than a constant may be, put together."""
    if n * columns <= _MAX_CONSTANT:
        return _waves(np.arange(n), np.arange(columns), n)
    half = n // 2 + 1
    if columns > half:
        cosines, sines = _matrix(n, half)
        mirrored = slice(n - columns + 1, n - half + 1)
        return (
            torch.cat((cosines, cosines[:, mirrored].flip(1)), 1),
            torch.cat((sines, -sines[:, mirrored].flip(1)), 1),
        )
    few = min(math.isqrt(n) + 1, _MAX_CONSTANT // columns)
    many = -(-n // few)
    (c, s), (d, t) = (
        _waves(np.arange(count) * step, np.arange(columns), n)
        for count, step in ((many, few), (few, 1))
    )
    c, s = c.unsqueeze(1), s.unsqueeze(1)
    whole = (c * d - s * t, s * d + c * t)
    cosines, sines = (table.reshape(many * few, columns)[:n] for table in whole)
    return cosines, sines


def _forward(x: Pair, bins: int) -> tuple[Tensor, Tensor]:
    """The first ``bins`` numbers of the transform over the last axis."""
    n = int(x[0].shape[-1])
    factor = _factor(n)
    if n * bins <= _DIRECT or factor == 1:
        return _direct(x, bins)
    return _two_stages(x, bins, factor)


def _factor(n: int) -> int:
    """The largest divisor up to the root."""
    return next(f for f in range(math.isqrt(n), 0, -1) if n % f == 0)


def _direct(x: Pair, bins: int) -> tuple[Tensor, Tensor]:
    real, imag = x
    cosines, sines = _matrix(int(real.shape[-1]), bins)
    if imag is None:
        return real @ cosines, -(real @ sines)
    return real @ cosines + imag @ sines, imag @ cosines - real @ sines


def _two_stages(x: Pair, bins: int, a: int) -> tuple[Tensor, Tensor]:
    """N = a·b: entry p·b + q goes to place k + a·l by way of (q, k)."""
    n = int(x[0].shape[-1])
    b = n // a
    later = -(-bins // a)
    real, imag = _forward(_pair(x, lambda v: torch.unflatten(v, -1, (a, b)).mT), a)
    cosines, sines = _waves(np.arange(b), np.arange(a), n)
    turned = (real * cosines + imag * sines, imag * cosines - real * sines)
    result = _forward(_pair(turned, lambda v: v.transpose(-1, -2)), later)
    real, imag = (v.transpose(-1, -2).flatten(-2)[..., :bins] for v in result)
    return real, imag


def _pair(x: Pair, move: Callable[[Tensor], Tensor]) -> Pair:
    return move(x[0]), None if x[1] is None else move(x[1])


def _inverse(x: Pair) -> tuple[Tensor, Tensor]:
    """All numbers of the inverse transform, not divided by their number."""
    real, imag = x
    back = _forward((real, None if imag is None else -imag), int(real.shape[-1]))
    return back[0], -back[1]


def _inverse_real(x: Pair, n: int) -> Tensor:
    """The real numbers, not divided by n, of which ``x`` is the first half of the transform."""
    real, imag = x
    bins = int(real.shape[-1])
    if n * bins <= _DIRECT or _factor(n) == 1:
        twice = _constant(np.where(np.isin(np.arange(bins), (0, n / 2)), 1.0, 2.0))
        cosines, sines = (table[:, :n] for table in _inverse_matrix(n, bins))
        result = (real * twice) @ cosines
        return result if imag is None else result - (imag * twice) @ sines
    last = bins - 1 if n % 2 else bins - 2
    whole = torch.cat((real, real[..., 1 : last + 1].flip(-1)), -1)
    if imag is not None:
        imag = torch.cat((imag, -imag[..., 1 : last + 1].flip(-1)), -1)
    return _inverse((whole, imag))[0]


def _inverse_matrix(n: int, bins: int) -> tuple[Tensor, Tensor]:
    cosines, sines = _matrix(n, bins)
    return cosines.T, sines.T


def _scale(n: int, norm: str | None, *, inverse: bool) -> float:
    """The factor of a transform of n numbers."""
    if norm == "ortho":
        return 1 / math.sqrt(n)
    return 1 / n if (norm == "forward") != inverse else 1.0


def _along(x: Any, dim: int, size: int | None, name: str) -> tuple[Pair, int]:
    """The parts with axis ``dim`` last and ``size`` entries long, and where the axis was.

    Raises:
        ExportError: the axis is the batch, or longer than ``MAX_WINDOW``.
    """
    pair = parts(x)
    dim %= pair[0].dim()
    length = pair[0].shape[dim]
    if not isinstance(length, int):
        raise ExportError(f"{name}: over the batch, but examples must not depend on each other")
    size = length if size is None else int(size)

    def fitted(value: Tensor) -> Tensor:
        value = value.movedim(dim, -1)
        return value[..., :size] if size <= length else functional.pad(value, (0, size - length))

    return _pair(pair, fitted), dim


def _check_window(n: int, name: str) -> None:
    if n > MAX_WINDOW:
        raise ExportError(
            f"{name} of {n} numbers: expected windows of at most {MAX_WINDOW}: cut the signal into "
            "shorter ones (torch.stft, or x.unfold(-1, size, step)), or pass a smaller n"
        )


def _back(pair: tuple[Tensor, Tensor], dim: int, scale: float) -> Complex:
    real, imag = (v if scale == 1 else v * scale for v in pair)
    return Complex(real.movedim(-1, dim), imag.movedim(-1, dim))


def _fft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Complex:  # noqa: A002 - PyTorch's
    pair, dim = _along(input, dim, n, "torch.fft.fft")
    size = int(pair[0].shape[-1])
    _check_window(size, "torch.fft.fft")
    return _back(_forward(pair, size), dim, _scale(size, norm, inverse=False))


def _ifft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Complex:  # noqa: A002 - PyTorch's
    pair, dim = _along(input, dim, n, "torch.fft.ifft")
    size = int(pair[0].shape[-1])
    _check_window(size, "torch.fft.ifft")
    return _back(_inverse(pair), dim, _scale(size, norm, inverse=True))


def _rfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Complex:  # noqa: A002 - PyTorch's
    pair, dim = _along(input, dim, n, "torch.fft.rfft")
    size = int(pair[0].shape[-1])
    _check_window(size, "torch.fft.rfft")
    return _back(_forward(pair, size // 2 + 1), dim, _scale(size, norm, inverse=False))


def _irfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:  # noqa: A002 - PyTorch's
    size = 2 * (int(parts(input)[0].shape[dim]) - 1) if n is None else int(n)
    _check_window(size, "torch.fft.irfft")
    pair, dim = _along(input, dim, size // 2 + 1, "torch.fft.irfft")
    scale = _scale(size, norm, inverse=True)
    return (_inverse_real(pair, size) * scale).movedim(-1, dim)


def _several(
    first: Callable[..., Any], others: Callable[..., Any], *, last: bool, two: bool
) -> Callable[..., Any]:
    """Transforms over several axes, one after the other.

    Args:
        first: over the last axis.
        others: over the axes before it.
        last: the one over the last axis comes at the end.
        two: the last two axes unless others are named.
    """

    def transform(
        input: Any,  # noqa: A002 - PyTorch's
        s: Sequence[int] | None = None,
        dim: Sequence[int] | None = None,
        norm: str | None = None,
    ) -> Any:
        count = 2 if two else len(s) if s is not None else input.ndim
        axes = list(range(-count, 0)) if dim is None else list(dim)
        sizes = [None] * len(axes) if s is None else list(s)
        *rest, end = zip([others] * (len(axes) - 1) + [first], axes, sizes, strict=True)
        for function, axis, size in [*rest, end] if last else [end, *rest]:
            input = function(input, size, axis, norm)  # noqa: A001 - PyTorch's
        return input

    return transform


def _shift(sign: int) -> Callable[..., Any]:
    """Half of the axes' length to the right, or to the left (fftshift, ifftshift)."""

    def shift(input: Any, dim: int | Sequence[int] | None = None) -> Any:  # noqa: A002 - PyTorch's
        axes = range(input.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
        for axis in axes:
            size = int(input.shape[axis])
            input = torch.roll(input, sign * (size // 2), axis)  # noqa: A001 - PyTorch's
        return input

    return shift


def _stft(  # noqa: PLR0913, PLR0917 - the function's signature
    input: Tensor,  # noqa: A002 - as above
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,  # noqa: FBT001, FBT002 - as above
    pad_mode: str = "reflect",
    normalized: bool = False,  # noqa: FBT001, FBT002 - as above
    onesided: bool | None = None,  # noqa: FBT001 - as above
    return_complex: bool | None = None,  # noqa: FBT001 - as above
    align_to_window: bool | None = None,  # noqa: ARG001, FBT001 - as above
) -> Any:
    """Frames side by side, times the window, transformed: (B, T) → (B, bins, frames)."""
    if input.dim() != 2:
        raise ExportError(f"torch.stft: expected examples by time (B, T), got {input.dim()} axes")
    _check_window(n_fft, "torch.stft")
    if center:
        padded = functional.pad(input.unsqueeze(1), (n_fft // 2, n_fft // 2), pad_mode)
        input = padded.squeeze(1)  # noqa: A001 - as above
    framed = _frames(input, n_fft, n_fft // 4 if hop_length is None else hop_length)
    if window is not None:
        missing = n_fft - int(window.shape[0])
        left = missing // 2
        framed = framed * functional.pad(window, (left, missing - left))
    elif win_length is not None and win_length < n_fft:
        left = (n_fft - win_length) // 2
        framed = framed * _constant(np.pad(np.ones(win_length), (left, n_fft - win_length - left)))
    bins = n_fft if onesided is False else n_fft // 2 + 1
    pair = _forward((framed, None), bins)
    result = _back(pair, -2, 1 / math.sqrt(n_fft) if normalized else 1.0)
    return result if return_complex else torch.stack((result.real, result.imag), -1)


def _frames(x: Tensor, size: int, step: int) -> Tensor:
    """(B, T) → (B, frames, size): blocks that divide frame and step, side by side.

    A slice for every block of a frame copies long runs; picking entries does not.
    """
    count = (int(x.shape[-1]) - size) // step + 1
    block = math.gcd(size, step)
    apart, wide = step // block, size // block
    needed = (count - 1) * apart + wide
    blocks = torch.unflatten(x[:, : needed * block], 1, (needed, block))
    places = [blocks[:, i : i + (count - 1) * apart + 1 : apart] for i in range(wide)]
    return torch.cat(places, -1) if len(places) > 1 else places[0]


def _join(real: Tensor, imag: Tensor) -> Complex:
    return Complex(real, imag)


def _polar(abs: Tensor, angle: Tensor) -> Complex:  # noqa: A002 - PyTorch's
    return Complex(abs * torch.cos(angle), abs * torch.sin(angle))


def _of_last_axis(input: Tensor) -> Complex:  # noqa: A002 - PyTorch's
    return Complex(input[..., 0], input[..., 1])


def _refused(name: str, instead: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ExportError(f"{name}: has no form in programs: use {instead}")

    return refuse


_fourier: Any = torch.fft

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _fourier.fft: _fft,
    _fourier.ifft: _ifft,
    _fourier.rfft: _rfft,
    _fourier.irfft: _irfft,
    _fourier.fft2: _several(_fft, _fft, last=True, two=True),
    _fourier.ifft2: _several(_ifft, _ifft, last=True, two=True),
    _fourier.rfft2: _several(_rfft, _fft, last=False, two=True),
    _fourier.irfft2: _several(_irfft, _ifft, last=True, two=True),
    _fourier.fftn: _several(_fft, _fft, last=True, two=False),
    _fourier.ifftn: _several(_ifft, _ifft, last=True, two=False),
    _fourier.rfftn: _several(_rfft, _fft, last=False, two=False),
    _fourier.irfftn: _several(_irfft, _ifft, last=True, two=False),
    _fourier.fftshift: _shift(1),
    _fourier.ifftshift: _shift(-1),
    **{
        getattr(_fourier, name): _refused(f"torch.fft.{name}", "torch.fft.rfft or torch.fft.irfft")
        for name in ("hfft", "hfft2", "hfftn", "ihfft", "ihfft2", "ihfftn")
    },
    torch.istft: _refused("torch.istft", "torch.fft.irfft of each frame"),
    Tensor.istft: _refused("torch.istft", "torch.fft.irfft of each frame"),
    torch.stft: _stft,
    Tensor.stft: _stft,
    torch.complex: _join,
    torch.polar: _polar,
    torch.view_as_complex: _of_last_axis,
}
"""What replaces a function, by the function."""
