"""What a kernel benchmark times, declared: our call, its peers, and how much faster it must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What a user would pick instead, or a bound that no program can beat.

    Attributes:
        name: in the table, ``PyTorch``, ``matrix product alone``.
        run: one call on the same numbers; None if ``fixed_ms`` says what it takes.
        fixed_ms: time that a required rate allows, in milliseconds.
        target: least peer time ÷ our time; None where the row only informs.
    """

    name: str
    run: Callable[[], object] | None = None
    fixed_ms: float | None = None
    target: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The two sides of a comparison on arrays that lie in memory."""

    ours: Callable[[], object]
    peers: tuple[Peer, ...]


@dataclass(frozen=True, kw_only=True)
class KernelCase:
    """One kernel at one size.

    Attributes:
        kernel: name of the kernel; cases of one kernel form a growth curve.
        case: the size in words, ``N=512 2G=4096 d=192``.
        size: what grows along the curve.
        unit: of ``size``, ``prototypes``.
        prepare: makes the arrays; called just before timing, released after.
        quick: part of ``--quick`` runs.
        threads: numbers of threads to measure with.
    """

    kernel: str
    case: str
    size: float
    unit: str
    prepare: Callable[[], Sides]
    quick: bool = False
    threads: tuple[int, ...] = (1, 2)
