"""Which updates are let in: every rule that bytes from a device must keep, in order of cost.

Size and hash were checked by the transfer before; here come blob, record, identity, names, shapes,
dtypes, finite numbers and their norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from protofleet.coordinator.config import LimitSettings
from protofleet.errors import RefusedError
from protofleet.strategies.types import (
    Batch,
    ClientTools,
    Evaluation,
    Step,
    Strategy,
)
from protofleet.strategies.updates import UpdateRecord, unpack_update
from protofleet.wire.blobs import check_finite
from protofleet.wire.tensors import Model, TensorMap, Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What an update must look like.

    Attributes:
        tensors: name → shape and dtype.
        num_classes: C of the confusion counts.
        max_bytes: largest update.
        max_norm: largest Euclidean norm of a tensor.
    """

    tensors: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    num_classes: int
    max_bytes: int
    max_norm: float


def expect_updates(
    strategy: Strategy, model: Model, input_shape: tuple[int, ...], limits: LimitSettings
) -> Expected:
    """Find out what ``strategy`` sends up: run its client's half with no examples, once."""
    tools = ClientTools(
        client_id="",
        x=np.zeros((0, *input_shape), np.float32),
        y=np.zeros(0, np.int64),
        grad_fns=dict.fromkeys(strategy.programs, _never),
        evaluate=lambda _params, _state: Evaluation(),
        rng=np.random.default_rng(0),
    )
    payload = strategy.downlink(strategy.server_init(model), "")
    _, update = strategy.client_update(strategy.client_init(model), payload, tools)
    return Expected(
        tensors={name: (value.shape, value.dtype) for name, value in update.tensors.items()},
        num_classes=model.num_classes,
        max_bytes=limits.update_bytes,
        max_norm=limits.update_norm,
    )


def admit(data: bytes, expected: Expected, *, client_id: str, round_id: int) -> UpdateRecord:
    """Check a complete update.

    Args:
        data: the transferred blob.
        expected: from ``expect_updates``.
        client_id: whose topic it came on.
        round_id: the round its manifest names.

    Raises:
        RefusedError: a rule is broken; the update must not be used.
    """
    update, record = unpack_update(data, max_bytes=expected.max_bytes)
    if (record.client_id, record.round_id) != (client_id, round_id):
        raise RefusedError(
            "identity",
            f"update of '{client_id}' for round {round_id}: its record names "
            f"'{record.client_id}' and round {record.round_id}",
        )
    _check_tensors(update.tensors, expected)
    for name in ("own", "pooled"):
        counts = getattr(update.evaluation, name)
        if counts is not None and len(counts) != expected.num_classes:
            raise RefusedError(
                "evaluation",
                f"evaluation '{name}': expected {expected.num_classes} classes, got {len(counts)}",
            )
    check_finite(update.tensors)
    _check_norms(update.tensors, expected.max_norm)
    return record


def _check_tensors(tensors: Tensors, expected: Expected) -> None:
    surplus = tensors.keys() - expected.tensors.keys()
    if surplus:
        raise RefusedError("layout", f"tensor '{min(surplus)}': the strategy expects no such name")
    for name, (shape, dtype) in expected.tensors.items():
        if name not in tensors:
            raise RefusedError("layout", f"tensor '{name}': expected {shape} {dtype}, got nothing")
        got = tensors[name]
        if got.shape != shape or got.dtype != dtype:
            raise RefusedError(
                "layout",
                f"tensor '{name}': expected {shape} {dtype}, got {got.shape} {got.dtype}",
            )


def _check_norms(tensors: Tensors, limit: float) -> None:
    """Keep numbers out whose squares or sums overflow: they would make the next state infinite."""
    for name, value in tensors.items():
        if value.dtype.kind != "f":
            continue
        flat = value.reshape(-1).astype(np.result_type(value, np.float32), copy=False)
        with np.errstate(over="ignore"):
            norm = math.sqrt(float(np.dot(flat, flat)))
        if norm > limit:
            raise RefusedError(
                "norm", f"tensor '{name}': expected a norm of at most {limit:g}, got {norm:g}"
            )


def _never(params: TensorMap, state: TensorMap, batch: Batch, rng: np.random.Generator) -> Step:
    raise RuntimeError(
        f"a client without examples called a program: {len(params)} parameters, {len(state)} "
        f"states, a batch of {sorted(batch)}, {rng!r}"
    )
