"""An update as it travels: one safetensors blob, its tensors beside one JSON record.

The record stands in the blob's metadata under ``update``; ``docs/protocol.md`` specifies it.
Both halves of the system use this module, so they cannot disagree.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import RefusedError
from protofleet.strategies.common import PARAMS, network_tensors, prefixed
from protofleet.strategies.types import Evaluation, Update
from protofleet.tensors import Model, Tensors, blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import Codec, Encoded

_log = logging.getLogger(__name__)

_KEY = "update"
_MAX_CHARS = blobs.MAX_HEADER_BYTES // 2
"""Of the record; the tensors' entries share the header, and its quotes are escaped there."""


_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What a round cost its device.

    Attributes:
        train_step_ms: samples of the time of one training step.
        infer_ms: samples of the latency of one inference.
        phases_s: wall time by phase, e.g. ``receive``, ``train``, ``evaluate``, ``encode``.
        cpu_s: CPU time by phase.
        peak_rss_bytes: largest resident memory of the process so far.
    """

    train_step_ms: tuple[_Amount, ...] = ()
    infer_ms: tuple[_Amount, ...] = ()
    phases_s: dict[str, _Amount] = {}
    cpu_s: dict[str, _Amount] = {}
    peak_rss_bytes: int = 0


_Rows = tuple[tuple[int, ...], ...]


class EvaluationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Confusion counts, rows true and columns predicted class; fields as in ``Evaluation``."""

    own: _Rows | None = None
    pooled: _Rows | None = None
    own_loss: float | None = None
    more: dict[str, _Rows] = {}


class UpdateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of an update but its tensors; ``loss`` is None where nothing was trained."""

    client_id: str
    round_id: int
    num_examples: int
    loss: float | None = None
    evaluation: EvaluationRecord = EvaluationRecord()
    costs: Costs = Costs()


def percentiles(samples: Collection[float], *which: int) -> dict[str, float]:
    """``{"p50": …, "p95": …}`` with linear interpolation; empty without samples."""
    if not samples:
        return {}
    values = np.percentile(np.asarray(samples), which)
    return {f"p{q}": round(float(value), 4) for q, value in zip(which, values, strict=True)}


def encode_update(
    update: Update, costs: Costs, references: Tensors, codec: Codec, residual: Tensors
) -> Encoded:
    """The blob of an update, and what its client has to add to the next one.

    Args:
        update: what the strategy made.
        costs: of the round.
        references: from ``references_of``.
        codec: how to encode.
        residual: what this function returned after the last round that counted.
    """
    record = UpdateRecord(
        client_id=update.client_id,
        round_id=update.round_id,
        num_examples=update.num_examples,
        loss=update.loss if math.isfinite(update.loss) else None,
        evaluation=_to_record(update.evaluation),
        costs=costs,
    )
    about = {_KEY: _fitting(record)}
    return codecs.encode(update.tensors, references, codec, residual=residual, metadata=about)


def initial_tensors(model: Model) -> dict[str, NDArray[Any]]:
    """A bundle's values by the names that they have in payloads: what every device has."""
    return network_tensors(model.network)


def references_of(model: Model, payload: Tensors) -> dict[str, NDArray[Any]]:
    """What an update's tensors are compared with: the payload, for other parameters the bundle.

    Buffers that no payload holds have no reference: what they were at first says nothing of them.
    """
    return {**prefixed(PARAMS, model.params), **payload}


def _fitting(record: UpdateRecord) -> str:
    """The record as JSON, without counts that a blob's header cannot hold (some 1000 classes)."""
    full = record.evaluation
    fewer: tuple[dict[str, Any], ...] = ({}, {"more": {}}, {"pooled": None}, {"own": None})
    left_out: dict[str, Any] = {}
    for one in fewer:
        left_out |= one
        counts = msgspec.structs.replace(full, **left_out)
        text = msgspec.json.encode(msgspec.structs.replace(record, evaluation=counts)).decode()
        if len(text) <= _MAX_CHARS:
            break
        _log.warning("update: confusion counts of so many classes do not fit and are left out")
    return text


def unpack_update(data: bytes, *, max_bytes: int) -> tuple[Update, UpdateRecord]:
    """The update in a blob, its tensors views into ``data``, and its record as it came.

    Raises:
        RefusedError: not a blob, no record, or a field of it is missing or of a wrong type.
    """
    tensors, metadata = blobs.decode(data, max_bytes=max_bytes)
    if _KEY not in metadata:
        raise RefusedError("update-schema", f"update: its blob has no metadata '{_KEY}'")
    try:
        record = msgspec.json.decode(metadata[_KEY], type=UpdateRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedError("update-schema", f"update: {error}") from error
    _check_count("num_examples", record.num_examples)
    _check_count("round_id", record.round_id)
    _check_count("peak_rss_bytes", record.costs.peak_rss_bytes)
    update = Update(
        client_id=record.client_id,
        round_id=record.round_id,
        num_examples=record.num_examples,
        tensors=tensors,
        evaluation=to_evaluation(record.evaluation),
        loss=float("nan") if record.loss is None else record.loss,
    )
    return update, record


def to_evaluation(record: EvaluationRecord) -> Evaluation:
    """The counts as arrays.

    Raises:
        RefusedError: not a square, or no counts.
    """
    return Evaluation(
        own=None if record.own is None else _to_counts("own", record.own),
        pooled=None if record.pooled is None else _to_counts("pooled", record.pooled),
        own_loss=math.nan if record.own_loss is None else record.own_loss,
        more={name: _to_counts(name, rows) for name, rows in record.more.items()},
    )


def _to_record(evaluation: Evaluation) -> EvaluationRecord:
    loss = evaluation.own_loss
    return EvaluationRecord(
        own=None if evaluation.own is None else _to_rows(evaluation.own),
        pooled=None if evaluation.pooled is None else _to_rows(evaluation.pooled),
        own_loss=loss if math.isfinite(loss) else None,
        more={name: _to_rows(counts) for name, counts in evaluation.more.items()},
    )


def _to_rows(counts: NDArray[np.int64]) -> _Rows:
    return tuple(tuple(row) for row in counts.tolist())


def _to_counts(name: str, rows: _Rows) -> NDArray[np.int64]:
    if any(len(row) != len(rows) for row in rows):
        raise RefusedError("update-schema", f"evaluation '{name}': expected a square of counts")
    for count in (value for row in rows for value in row):
        _check_count(f"evaluation '{name}'", count)
    # Each fits a float; so must all together, or sums in int64 wrap around.
    _check_count(f"evaluation '{name}', in all", sum(map(sum, rows)))
    return np.array(rows, np.int64).reshape(len(rows), len(rows))


def _check_count(name: str, value: Any) -> None:
    if not 0 <= value < 2**53:
        raise RefusedError("update-schema", f"{name}: expected a count, got {value}")
