"""Aggregation and steps over whole models: bound by memory, so a plain copy is the measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.benchmarks.kernels.comparison import KernelCase, Peer, Sides
from protofleet.kernels import WeightedMean, adam_step, ala_step, sgd_step
from protofleet.kernels.native.pool import spread

_Floats = NDArray[np.float32]

_MODEL = 1_450_000
_COPY_SHARE = 0.70
_GRAIN = 1 << 14
_LR, _MOMENTUM, _DECAY, _MU = 1e-3, 0.9, 1e-4, 0.01


def _aggregate(updates: int, *, target: float | None) -> Sides:
    import torch  # noqa: PLC0415 - seconds and memory that other cases need not pay

    first = np.random.default_rng(0).random(_MODEL, dtype=np.float32)
    buffers = [first * np.float32(1 + k / updates) for k in range(updates)]
    weights = [float(10 + k) for k in range(updates)]
    terms = list(zip(buffers, weights, strict=True))
    tensors = [torch.from_numpy(buffer) for buffer in buffers]

    def ours() -> _Floats:
        mean = WeightedMean(_MODEL)
        mean.add_all(terms)
        return mean.result()

    def pytorch() -> Any:
        total = torch.zeros(_MODEL, dtype=torch.float64)
        for tensor, weight in zip(tensors, weights, strict=True):
            total.add_(tensor, alpha=weight)
        return total.div_(sum(weights)).float()

    def numpy() -> _Floats:
        total, product = np.zeros(_MODEL), np.empty(_MODEL)
        for buffer, weight in terms:
            total += np.multiply(buffer, weight, out=product, dtype=np.float64)
        total /= sum(weights)
        return total.astype(np.float32)

    np.testing.assert_array_equal(ours(), numpy())
    np.testing.assert_allclose(ours(), pytorch().numpy(), rtol=1e-6)
    half = updates // 2
    copy = partial(_copy, buffers[:half], buffers[half:])
    return Sides(
        ours=ours,
        peers=(
            Peer(name="copy that moves as many bytes", run=copy, target=target),
            Peer(name="PyTorch", run=pytorch),
            Peer(name="NumPy", run=numpy),
        ),
    )


def _adam(size: int) -> Sides:
    import torch  # noqa: PLC0415

    params, grads, first, second = _made(4, size)
    m, v = np.zeros_like(params), np.zeros_like(params)

    def optimiser(start: _Floats, **how: Any) -> Callable[[], object]:
        leaf = torch.nn.Parameter(torch.from_numpy(start))
        leaf.grad = torch.from_numpy(grads)
        return torch.optim.Adam([leaf], lr=_LR, weight_decay=_DECAY, **how).step

    first[:], second[:] = params, params
    ours = partial(adam_step, params, grads, m, v, step=1, lr=_LR, weight_decay=_DECAY)
    fused, foreach = optimiser(first, fused=True), optimiser(second, foreach=True)
    return _checked(
        ours, {"PyTorch fused": fused, "PyTorch foreach": foreach}, (params, first, second), moved=7
    )


def _momentum(size: int) -> Sides:
    import torch  # noqa: PLC0415

    params, grads, first, second = _made(4, size)
    velocity = np.zeros_like(params)
    numbers: dict[str, Any] = {"lr": _LR, "momentum": _MOMENTUM, "weight_decay": _DECAY}

    def optimiser(start: _Floats, **how: Any) -> Callable[[], object]:
        leaf = torch.nn.Parameter(torch.from_numpy(start))
        leaf.grad = torch.from_numpy(grads)
        return torch.optim.SGD([leaf], **numbers, **how).step

    first[:], second[:] = params, params
    ours = partial(sgd_step, params, grads, velocity, **numbers)
    fused, foreach = optimiser(first, fused=True), optimiser(second, foreach=True)
    return _checked(
        ours, {"PyTorch fused": fused, "PyTorch foreach": foreach}, (params, first, second), moved=5
    )


def _fedprox(size: int) -> Sides:
    import torch  # noqa: PLC0415

    params, grads, reference, theirs, ours_too = _made(5, size)
    theirs[:], ours_too[:] = params, params
    p, g, r = (torch.from_numpy(a) for a in (theirs, grads, reference))
    scratch, work = torch.empty_like(p), np.empty_like(params)

    def pytorch() -> object:
        torch.sub(p, r, out=scratch).mul_(_MU).add_(g)
        return p.sub_(scratch, alpha=_LR)

    def numpy() -> None:
        np.subtract(ours_too, reference, out=work)
        np.multiply(work, np.float32(_MU), out=work)
        np.add(work, grads, out=work)
        np.multiply(work, np.float32(_LR), out=work)
        np.subtract(ours_too, work, out=ours_too)

    ours = partial(sgd_step, params, grads, None, lr=_LR, proximal=(_MU, reference))
    peers = {"PyTorch": pytorch, "NumPy": numpy}
    return _checked(ours, peers, (params, theirs, ours_too), moved=4)


def _scaffold(size: int) -> Sides:
    import torch  # noqa: PLC0415

    params, grads, correction, theirs, ours_too = _made(5, size)
    theirs[:], ours_too[:] = params, params
    p, g, c = (torch.from_numpy(a) for a in (theirs, grads, correction))
    scratch, work = torch.empty_like(p), np.empty_like(params)

    def numpy() -> None:
        np.add(grads, correction, out=work)
        np.multiply(work, np.float32(_LR), out=work)
        np.subtract(ours_too, work, out=ours_too)

    ours = partial(sgd_step, params, grads, None, lr=_LR, correction=correction)
    peers = {
        "PyTorch": lambda: p.sub_(torch.add(g, c, out=scratch), alpha=_LR),
        "NumPy": numpy,
    }
    return _checked(ours, peers, (params, theirs, ours_too), moved=4)


def _ala(size: int) -> Sides:
    import torch  # noqa: PLC0415

    weights, local, global_, grads, theirs = _made(5, size)
    theirs[:] = weights
    w, lo, gl, g = (torch.from_numpy(a) for a in (theirs, local, global_, grads))
    way, scratch, mixed = (torch.empty_like(w) for _ in range(3))

    def pytorch() -> object:
        torch.sub(gl, lo, out=way)
        w.sub_(torch.mul(g, way, out=scratch), alpha=_LR).clamp_(0, 1)
        return torch.addcmul(lo, way, w, out=mixed)

    ours = partial(ala_step, weights, local, global_, grads, np.empty_like(weights), eta=_LR)
    return _checked(ours, {"PyTorch": pytorch}, (weights, theirs), moved=6)


def _made(count: int, size: int) -> list[_Floats]:
    first = np.random.default_rng(0).random(size, dtype=np.float32)
    return [np.roll(first, 7 * k) for k in range(count)]


def _checked(
    ours: Callable[[], object],
    peers: Mapping[str, Callable[[], object]],
    results: tuple[_Floats, ...],
    *,
    moved: int,
) -> Sides:
    """One call of each side gives the same; ``moved``: buffers read or written by a call."""
    for run in (ours, *peers.values()):
        run()
    for other in results[1:]:
        np.testing.assert_allclose(results[0], other, rtol=1e-5, atol=1e-6)
    half = np.ones(results[0].size * moved // 2, np.float32)
    bound = Peer(name="copy that moves as many bytes", run=partial(_copy, [half], [half.copy()]))
    return Sides(
        ours=ours, peers=(*(Peer(name=name, run=run) for name, run in peers.items()), bound)
    )


def _copy(sources: list[_Floats], targets: list[_Floats]) -> None:
    """As fast as memory allows, on as many threads as kernels use."""

    def part(start: int, stop: int) -> None:
        for source, target in zip(sources, targets, strict=True):
            np.copyto(target[start:stop], source[start:stop])

    spread(part, sources[0].size, _GRAIN)


CASES = (
    *(
        KernelCase(
            kernel="aggregate updates",
            case=f"{updates} updates of {_MODEL} floats",
            size=updates,
            unit="updates",
            prepare=partial(_aggregate, updates, target=_COPY_SHARE if updates == 100 else None),
            quick=updates == 100,
        )
        for updates in (10, 36, 100)
    ),
    *(
        KernelCase(
            kernel=kernel,
            case=f"P={size}",
            size=size,
            unit="floats",
            prepare=partial(prepare, size),
            quick=kernel == "Adam step" and size == _MODEL,
        )
        for kernel, prepare in (
            ("Adam step", _adam),
            ("SGD step with momentum", _momentum),
            ("FedProx step", _fedprox),
            ("SCAFFOLD step", _scaffold),
            ("ALA step", _ala),
        )
        for size in (100_000, _MODEL, 11_700_000)
    ),
)
