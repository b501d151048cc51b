"""ALP's plan and training call at the paper's sizes: 64 examples of 8 embeddings, six layers.

"Plan + assignment" is ``alp_infer`` with as many prototypes as a training call has local and
global ones: the plan over all of them, and the best of every embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.benchmarks.kernels.comparison import KernelCase, Peer, Sides
from protofleet.kernels import AlpVariant, alp_infer, alp_train

_BATCH, _TOKENS, _WIDTH = 64, 8, 192
_SIZES = (128, 256, 512, 1024, 2048, 4096)  # local and global prototypes
_EPSILON, _ITERATIONS, _GAMMA = 0.05, 3, 0.999
_PLAN_TARGET = 2.0  # PyTorch ÷ ours
_PRODUCT_TARGET = 1 / 1.5  # product ÷ ours
_TRAIN_TARGET = 3.0
_AGREED = 0.999  # share of embeddings with the same prototype; rounding may decide near ties

Floats = NDArray[np.float32]


def _arrays(count: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((_BATCH, _TOKENS, _WIDTH)).astype(np.float32)
    return x, rng.standard_normal((count, _WIDTH)).astype(np.float32)


def _torch_listing(x: Any, prototypes: Any) -> Any:
    """The paper's listing, with its divisions by constants."""
    from torch.nn.functional import normalize  # noqa: PLC0415 - a peer is loaded by its cases alone

    plan = normalize(x.flatten(0, 1), dim=1) @ normalize(prototypes, dim=1).T
    plan = (plan / _EPSILON).exp()
    rows, columns = plan.shape
    plan /= plan.sum()
    for _ in range(_ITERATIONS):
        plan /= plan.sum(1, keepdim=True)
        plan /= rows
        plan /= plan.sum(0, keepdim=True)
        plan /= columns
    plan *= columns
    return plan


def _torch_tuned(x: Any, prototypes: Any) -> Any:
    """The same plan without the divisions by constants, which cancel; everything in place."""
    from torch.nn.functional import normalize  # noqa: PLC0415 - a peer is loaded by its cases alone

    plan = normalize(x.flatten(0, 1), dim=1) @ normalize(prototypes, dim=1).T
    plan.div_(_EPSILON).exp_()
    for _ in range(_ITERATIONS):
        plan.div_(plan.sum(1, keepdim=True))
        plan.div_(plan.sum(0, keepdim=True))
    return plan


def _numpy_plan(x: Floats, prototypes: Floats) -> Floats:
    rows = x.reshape(-1, x.shape[2])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    columns = prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)
    plan: Floats = rows @ columns.T
    plan /= np.float32(_EPSILON)
    np.exp(plan, out=plan)
    for _ in range(_ITERATIONS):
        plan /= plan.sum(axis=1, keepdims=True)
        plan /= plan.sum(axis=0)
    return plan


def _prepare_plan(count: int, target: float | None, product_target: float | None) -> Sides:
    import torch  # noqa: PLC0415 - a peer is loaded by its cases alone

    x, prototypes = _arrays(count)
    rows, product = x.reshape(-1, _WIDTH), np.empty((_BATCH * _TOKENS, count), np.float32)
    torch_x, torch_prototypes = torch.from_numpy(x), torch.from_numpy(prototypes)

    def pytorch(plan: Callable[[Any, Any], Any]) -> Any:
        best = plan(torch_x, torch_prototypes).argmax(1)
        return torch_prototypes[best].reshape(x.shape)

    def numpy() -> Floats:
        chosen: Floats = prototypes[_numpy_plan(x, prototypes).argmax(axis=1)]
        return chosen.reshape(x.shape)

    chosen = alp_infer(x, prototypes)
    for plan in (_torch_listing, _torch_tuned):
        _check_chosen("PyTorch", chosen, pytorch(plan).numpy())
    _check_chosen("NumPy", chosen, numpy())
    peers = (
        Peer(name="PyTorch, listing", run=partial(pytorch, _torch_listing), target=target),
        Peer(name="PyTorch, tuned", run=partial(pytorch, _torch_tuned)),
        Peer(name="NumPy", run=numpy),
        Peer(
            name="matrix product alone",
            run=lambda: np.matmul(rows, prototypes.T, out=product),
            target=product_target,
        ),
    )
    return Sides(ours=lambda: alp_infer(x, prototypes), peers=peers)


def _check_chosen(name: str, ours: Floats, other: Floats) -> None:
    same = float((ours == other).all(axis=2).mean())
    if same < _AGREED:
        raise ArithmeticError(f"ALP: {name} chooses as we do for {same:.4f} of the embeddings")


def _torch_train(
    plan_of: Callable[[Any, Any], Any], variant: AlpVariant, x: Any, local: Any, global_: Any
) -> tuple[Any, Any]:
    import torch  # noqa: PLC0415 - a peer is loaded by its cases alone

    count, rows = len(local), x.flatten(0, 1)
    plan = plan_of(x, torch.cat((local, global_)))
    chosen = global_[plan[:, count:].argmax(1)].reshape(x.shape)
    k = max(1, _BATCH // count) if variant == "bulk_code" else -(-len(rows) // count)
    own = plan[:, :count]
    weights, picked = own.topk(k, dim=0) if k > 1 else own.max(0, keepdim=True)
    weights = weights / weights.sum(0)
    pulled = (weights.unsqueeze(2) * rows[picked]).sum(0)
    return chosen, _GAMMA * local + (1 - _GAMMA) * pulled


def _prepare_train(count: int, variant: AlpVariant, target: float | None) -> Sides:
    import torch  # noqa: PLC0415 - a peer is loaded by its cases alone

    x, prototypes = _arrays(count)
    local, global_ = prototypes[: count // 2], prototypes[count // 2 :]
    tensors = [torch.from_numpy(array) for array in (x, local, global_)]

    def ours() -> tuple[Floats, Floats]:
        return alp_train(x, local, global_, variant=variant)

    pytorch, tuned = (
        partial(_torch_train, plan, variant, *tensors) for plan in (_torch_listing, _torch_tuned)
    )
    chosen, moved = ours()
    for peer in (pytorch, tuned):
        others, others_moved = peer()
        _check_chosen("PyTorch", chosen, others.numpy())
        same = np.isclose(moved, others_moved.numpy(), rtol=1e-4, atol=1e-5).all(axis=1).mean()
        if same < _AGREED:
            raise ArithmeticError(f"ALP: PyTorch moves {same:.4f} of the prototypes as we do")
    peers = (
        Peer(name="PyTorch, listing", run=pytorch, target=target),
        Peer(name="PyTorch, tuned", run=tuned),
    )
    return Sides(ours=ours, peers=peers)


def _case(kernel: str, count: int, prepare: Callable[[], Sides], *, quick: bool) -> KernelCase:
    return KernelCase(
        kernel=kernel,
        case=f"N={_BATCH * _TOKENS} 2G={count} d={_WIDTH}",
        size=count,
        unit="prototypes",
        prepare=prepare,
        quick=quick,
    )


def _cases(count: int) -> tuple[KernelCase, ...]:
    largest = count == _SIZES[-1]
    aimed = largest or count <= _SIZES[2]
    target, product = _PLAN_TARGET if aimed else None, _PRODUCT_TARGET if largest else None
    bulk = partial(_prepare_train, count, "bulk_code", _TRAIN_TARGET)
    text = partial(_prepare_train, count, "paper_text", _TRAIN_TARGET)
    return (
        _case(
            "ALP plan + assignment",
            count,
            partial(_prepare_plan, count, target, product),
            quick=aimed,
        ),
        _case("ALP training call", count, bulk, quick=largest or count == _SIZES[0]),
        _case("ALP training call, paper's top-k", count, text, quick=False),
    )


CASES: tuple[KernelCase, ...] = tuple(case for count in _SIZES for case in _cases(count))
