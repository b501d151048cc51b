"""Sinkhorn's algorithm with 100 iterations, to the plan, on squares of growing size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from protofleet.benchmarks.kernels.comparison import KernelCase, Peer, Sides
from protofleet.kernels import sinkhorn

_ITERATIONS = 100
_EPSILON = 0.05  # of the largest cost
_TARGET = 3.0  # POT ÷ ours
_AGREED = 1e-5  # share of the mass, float32 on both sides

Floats = NDArray[np.float32]


def _problem(n: int) -> tuple[Floats, Floats]:
    """Squared distances of two clouds of points, the largest one 1, and equal masses."""
    rng = np.random.default_rng(0)
    points, others = rng.standard_normal((n, 3)), rng.standard_normal((n, 3)) + 0.5
    squares = np.square(points).sum(axis=1)[:, None] + np.square(others).sum(axis=1)
    cost = np.maximum(squares - 2.0 * (points @ others.T), 0.0)
    return (cost / cost.max()).astype(np.float32), np.full(n, 1.0 / n, np.float32)


def _check_agreement(n: int, plan: Floats, others: Mapping[str, Floats]) -> None:
    for name, other in others.items():
        apart = float(np.abs(plan - other).sum())
        if not apart <= _AGREED:
            raise ArithmeticError(f"Sinkhorn n={n}: {name} puts {apart} of the mass elsewhere")


def _prepare(n: int, target: float | None) -> Sides:
    for library in ("PYTORCH", "JAX", "TENSORFLOW", "CUPY"):
        os.environ.setdefault(f"POT_BACKEND_DISABLE_{library}", "1")
    import ot  # noqa: PLC0415 - a peer is loaded by its cases alone
    import torch  # noqa: PLC0415

    cost, mass = _problem(n)
    torch_cost, torch_mass = torch.from_numpy(cost), torch.from_numpy(mass)

    def ours() -> Floats:
        result = sinkhorn(cost, mass, mass, epsilon=_EPSILON, max_iter=_ITERATIONS, tol=0.0)
        return result.plan()

    def pot() -> Floats:
        settings = {"numItermax": _ITERATIONS, "stopThr": 0, "warn": False}
        plan: Floats = ot.sinkhorn(mass, mass, cost, _EPSILON, **settings)
        return plan

    def pytorch() -> torch.Tensor:
        kernel = torch.exp(torch_cost / -_EPSILON)
        v = torch.ones_like(torch_mass)
        for _ in range(_ITERATIONS):
            u = torch_mass / (kernel @ v)
            v = torch_mass / (u @ kernel)
        return u[:, None] * kernel * v

    def product() -> None:
        for _ in range(_ITERATIONS):
            cost @ mass

    _check_agreement(n, ours(), {"POT": pot(), "PyTorch": pytorch().numpy()})
    peers = (
        Peer(name="POT (NumPy)", run=pot, target=target),
        Peer(name="PyTorch", run=pytorch),
        Peer(name="one matrix-vector product per iteration (NumPy)", run=product),
    )
    return Sides(ours=ours, peers=peers)


def _case(n: int) -> KernelCase:
    largest = n == 2048
    return KernelCase(
        kernel=f"Sinkhorn, {_ITERATIONS} iterations",
        case=f"{n}x{n}",
        size=n,
        unit="rows and columns",
        prepare=partial(_prepare, n, _TARGET if largest else None),
        quick=largest,
    )


CASES: tuple[KernelCase, ...] = tuple(_case(n) for n in (256, 512, 1024, 2048))
