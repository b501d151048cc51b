"""How close a model's prototype assignments are to a tie, which another float order would break."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from protofleet.export.alp import transport_plan

_SAME = 1e-5


@contextmanager
def alp_margins() -> Iterator[list[float]]:
    """Collect, per ALP call inside, the smallest margin of its decisions.

    That is the relative gap between a chosen plan value and the best that was not chosen, in
    double precision.
    """
    found: list[float] = []
    with _MarginMode(found):
        yield found


class _MarginMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: list[float]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.protofleet.alp_train.default:
            self._found.append(_train_margin(*args))
        elif func is torch.ops.protofleet.alp_infer.default:
            self._found.append(_infer_margin(*args))
        return func(*args, **(kwargs or {}))


def _train_margin(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor,
    local: Tensor,
    global_: Tensor,
    variant: str,
    _gamma: float,
    epsilon: float,
    iterations: int,
) -> float:
    rows, count = x.flatten(0, 1).double(), len(local)
    plan = transport_plan(rows, torch.cat((local, global_)).double(), epsilon, iterations)
    choice = _gap(plan[:, count:].T, global_, k=1)
    if variant == "single_code":
        return min(choice, _gap(plan[:, :count].T, local, k=1))
    k = max(1, len(x) // count) if variant == "bulk_code" else -(-len(rows) // count)
    return min(choice, _gap(plan[:, :count], rows, k=k))


def _infer_margin(x: Tensor, local: Tensor, epsilon: float, iterations: int) -> float:
    plan = transport_plan(x.flatten(0, 1).double(), local.double(), epsilon, iterations)
    return _gap(plan.T, local, k=1)


def _gap(plan: Tensor, candidates: Tensor, *, k: int) -> float:
    """Smallest relative difference, over columns, between the k-th and the next largest value.

    Args:
        plan: (n, m); the n candidates compete in every column.
        candidates: (n, d), what is chosen. Two that are equal may change places unseen: class
            tokens of different samples are, in the first block.
        k: number of candidates chosen per column.
    """
    if len(plan) <= k:
        return 1.0
    top = plan.topk(k + 1, dim=0)
    last, following = top.values[k - 1], top.values[k]
    difference = (candidates[top.indices[k - 1]] - candidates[top.indices[k]]).abs().amax(-1)
    same = difference <= _SAME * candidates.abs().max()
    gaps = torch.where(same, torch.ones_like(last), (last - following) / last)
    return float(gaps.min())
