"""Codecs of updates against a required rate, NumPy and PyTorch.

A model of n parameters is four square layers with biases. Sizes: 1.45 M parameters are HART with
ALP; the others bracket it. Encoding and decoding are timed together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.benchmarks.kernels.comparison import KernelCase, Peer, Sides
from protofleet.kernels import (
    fp16_decode,
    fp16_encode,
    int8_decode,
    int8_encode,
    shuffle_decode,
    shuffle_encode,
    topk_encode,
)

_MEGABYTES = (0.1, 1.0, 5.8, 23.0)
_MODEL = 5.8  # HART
_RATE = 1e9  # bytes of float32 per second and core, there and back
_KEPT = 0.01
Array = NDArray[Any]


def _shapes(megabytes: float) -> list[tuple[int, ...]]:
    side = math.isqrt(int(megabytes * 1e6 / 16))
    return [(side, side), (side,)] * 4


def _update(megabytes: float, seed: int = 0) -> Array:
    size = sum(math.prod(shape) for shape in _shapes(megabytes))
    return np.random.default_rng(seed).normal(0, 1e-3, size).astype(np.float32)


def _rows(
    x: Array, shapes: Sequence[tuple[int, ...]], *, per_channel: bool
) -> tuple[Array, list[Array]]:
    """Where each scale's numbers start in ``x``, and its tensors with a row for each scale."""
    rows = [shape[0] if per_channel and len(shape) > 1 else 1 for shape in shapes]
    lengths = [
        math.prod(shape) // n for shape, n in zip(shapes, rows, strict=True) for _ in range(n)
    ]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    parts = zip(np.split(x, ends), rows, strict=True)
    return np.cumsum([0, *lengths]), [part.reshape(n, -1) for part, n in parts]


def _int8(megabytes: float, *, per_channel: bool, threads: int) -> Sides:
    import torch  # noqa: PLC0415 - only a benchmark that runs needs it

    x = _update(megabytes)
    starts, tensors = _rows(x, _shapes(megabytes), per_channel=per_channel)
    torch_tensors = [torch.from_numpy(tensor) for tensor in tensors]

    def ours() -> Array:
        return int8_decode(*int8_encode(x, starts, seed=1), starts)

    def numpy() -> Iterator[Array]:
        for tensor in tensors:
            scale = np.abs(tensor).max(axis=1, keepdims=True) / np.float32(127)
            codes = np.rint(tensor / scale).astype(np.int8)
            yield codes * scale

    def pytorch() -> Iterator[Any]:
        for tensor in torch_tensors:
            scale = tensor.abs().amax(dim=1, keepdim=True) / 127
            codes = torch.round(tensor / scale).to(torch.int8)
            yield codes * scale

    mine = int8_decode(*int8_encode(x, starts, rounding="nearest"), starts)
    for decoded in (numpy(), pytorch()):
        flat = [np.asarray(part).reshape(-1) for part in decoded]
        np.testing.assert_array_equal(np.concatenate(flat), mine)
    # A call of a tenth of a millisecond ends before a second thread is awake.
    target = 1.0 if threads == 1 or megabytes >= 1 else None
    allowed = Peer(name=f"{threads} GB/s", fixed_ms=x.nbytes / _RATE / threads * 1e3, target=target)
    return Sides(
        ours=ours,
        peers=(
            allowed,
            Peer(name="NumPy, to nearest", run=lambda: list(numpy())),
            Peer(name="PyTorch, to nearest", run=lambda: list(pytorch())),
        ),
    )


def _fp16(megabytes: float) -> Sides:
    import torch  # noqa: PLC0415 - only a benchmark that runs needs it

    x = _update(megabytes)
    tensor = torch.from_numpy(x)
    np.testing.assert_array_equal(fp16_encode(x), x.astype(np.float16))
    np.testing.assert_array_equal(fp16_decode(fp16_encode(x)), tensor.half().float().numpy())
    return Sides(
        ours=lambda: fp16_decode(fp16_encode(x)),
        peers=(
            Peer(name="NumPy", run=lambda: x.astype(np.float16).astype(np.float32)),
            Peer(name="PyTorch", run=lambda: tensor.half().float()),
        ),
    )


def _topk(megabytes: float) -> Sides:
    import torch  # noqa: PLC0415 - only a benchmark that runs needs it

    delta, residual = _update(megabytes), _update(megabytes, seed=1)
    k = round(delta.size * _KEPT)
    kept, torch_kept = residual.copy(), torch.from_numpy(residual.copy())
    torch_delta = torch.from_numpy(delta)

    def numpy() -> tuple[Array, Array]:
        np.add(kept, delta, out=kept)
        indices = np.sort(np.argpartition(np.abs(kept), -k)[-k:])
        values = kept[indices]
        kept[indices] = 0
        return indices, values

    def pytorch() -> tuple[Any, Any]:
        torch_kept.add_(torch_delta)
        indices = torch_kept.abs().topk(k, sorted=False).indices.sort().values
        values = torch_kept[indices]
        torch_kept[indices] = 0
        return indices, values

    mine = topk_encode(delta, residual, k)
    for theirs in (numpy(), pytorch()):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, np.asarray(b))
    np.testing.assert_array_equal(residual, kept)
    return Sides(
        ours=lambda: topk_encode(delta, residual, k),
        peers=(Peer(name="NumPy argpartition", run=numpy), Peer(name="PyTorch topk", run=pytorch)),
    )


def _shuffle(megabytes: float) -> Sides:
    x = _update(megabytes)

    def numpy() -> Array:
        planes = np.ascontiguousarray(x.view(np.uint8).reshape(-1, 4).T)
        return np.ascontiguousarray(planes.T).view(np.float32)

    np.testing.assert_array_equal(
        shuffle_encode(x).reshape(4, -1), x.view(np.uint8).reshape(-1, 4).T
    )
    np.testing.assert_array_equal(numpy()[:, 0], x)
    return Sides(
        ours=lambda: shuffle_decode(shuffle_encode(x), np.float32),
        peers=(Peer(name="NumPy transposition", run=numpy),),
    )


def _curve(kernel: str, prepare: Callable[[float], Sides]) -> tuple[KernelCase, ...]:
    return tuple(
        KernelCase(
            kernel=kernel,
            case=f"{size:g} MB",
            size=size,
            unit="MB",
            prepare=functools.partial(prepare, size),
        )
        for size in _MEGABYTES
    )


def _int8_curve(per: str, threads: int) -> tuple[KernelCase, ...]:
    return tuple(
        KernelCase(
            kernel=f"int8 encode + decode, per {per}",
            case=f"{size:g} MB",
            size=size,
            unit="MB",
            prepare=functools.partial(_int8, size, per_channel=per == "channel", threads=threads),
            quick=size == _MODEL,
            threads=(threads,),
        )
        for size in _MEGABYTES
    )


CASES: tuple[KernelCase, ...] = (
    *_int8_curve("tensor", 1),
    *_int8_curve("tensor", 2),
    *_int8_curve("channel", 1),
    *_int8_curve("channel", 2),
    *_curve("fp16 encode + decode", _fp16),
    *_curve("top-k 1 %", _topk),
    *_curve("byte-shuffle", _shuffle),
)
