"""Payloads and updates as they travel: strategy's tensors ⇄ coded blobs, once each way.

A codec takes the difference to a *baseline*, the tensors that both ends have already. Where the
baseline is an earlier payload it is named by its *reference*, the SHA-256 of the raw blob that its
receiver decoded it to. What coding a payload loses is made up for by the next difference; what
coding an update loses is its *residual*, which the client keeps and hands in the next time.

An update's record stands in its blob's metadata under ``update``; ``docs/protocol.md`` specifies
both. The server's and the client's half use this module, so they cannot disagree.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, RefusedError
from protofleet.federation.records import (
    Costs,
    EvaluationRecord,
    HeldOutGain,
    Sends,
    StatisticRows,
    UpdateRecord,
)
from protofleet.strategies.common import PARAMS, network_tensors, prefixed
from protofleet.strategies.scores import Statistics
from protofleet.strategies.types import Evaluation, TensorSchemas, Update
from protofleet.tensors import Model, Tensors, blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import Codec, Coding, Encoded

_log = logging.getLogger(__name__)

_KEY = "update"
_ALL = Sends()
_MAX_CHARS = blobs.MAX_HEADER_BYTES // 2
"""Of the record; the tensors' entries share the header, and its quotes are escaped there."""
_NO_LIMIT = 2**62
_SHOWN = 64
"""Characters of a name in a message."""


def largest_blob(forms: TensorSchemas) -> int:
    """Bytes of the largest blob of such tensors, in any codec, with its header and record."""
    return math.ceil(1.1 * forms.max_bytes) + blobs.MAX_HEADER_BYTES


def initial_tensors(model: Model) -> dict[str, NDArray[Any]]:
    """A bundle's values by the names that they have in payloads: what every device has."""
    return network_tensors(model.network)


def payload_baseline(model: Model, earlier: Tensors) -> dict[str, NDArray[Any]]:
    """What a payload is compared with: an earlier one, for other tensors the bundle."""
    return {**initial_tensors(model), **earlier}


def update_baseline(model: Model, payload: Tensors) -> dict[str, NDArray[Any]]:
    """What an update is compared with: the payload, for other parameters the bundle.

    Buffers that no payload holds have no baseline: what they were at first says nothing of them.
    """
    return {**prefixed(PARAMS, model.params), **payload}


def reference_of(raw: bytes | memoryview) -> str:
    """How a payload is named that was decoded to the blob ``raw``."""
    return hashlib.sha256(raw).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedPayload:
    """A payload as it travels.

    Attributes:
        blob: its bytes.
        coding: for its offer.
        raw: the raw blob that its receiver decodes it to.
    """

    blob: bytes
    coding: Coding
    raw: bytes

    @property
    def reference(self) -> str:
        """How later payloads, and the update made from it, name this one."""
        return reference_of(self.raw)

    @property
    def held(self) -> str:
        """The reference that its receiver's next payload may have; a raw one leaves none."""
        return "" if self.coding.is_raw else self.reference


Stored = TypeVar("Stored")


class PayloadEncoder(Generic[Stored]):
    """Encodes payloads for what each device has, once per distinct content and reference.

    Args:
        model: the bundle's initial values, which every device has.
        earlier: the tensors of a payload that devices have, by its reference.
        store: makes of an encoded payload what ``encode`` returns, for example a file.
    """

    def __init__(
        self,
        model: Model,
        earlier: Callable[[str], Tensors],
        store: Callable[[CodedPayload], Stored],
    ) -> None:
        self._model, self._earlier, self._store = model, earlier, store
        self._latest: dict[tuple[Codec, str], tuple[Tensors, Stored]] = {}

    def encode(self, payload: Tensors, codec: Codec, reference: str) -> Stored:
        """The payload for a device that has ``reference``; empty: only the bundle."""
        latest = self._latest.get((codec, reference))
        if latest is not None and _same_arrays(payload, latest[0]):
            return latest[1]
        known = self._earlier(reference) if reference else {}
        stored = self._store(
            encode_payload(payload, codec, reference, payload_baseline(self._model, known))
        )
        self._latest[codec, reference] = payload, stored
        return stored

    def clear(self) -> None:
        """The round is over; nothing of it is handed out again."""
        self._latest.clear()


def _same_arrays(left: Tensors, right: Tensors) -> bool:
    """Whether both hold the very same arrays, as most strategies give to all clients."""
    return left.keys() == right.keys() and all(left[name] is right[name] for name in left)


def encode_payload(
    payload: Tensors, codec: Codec, reference: str, baseline: Tensors
) -> CodedPayload:
    """A payload for a device that has ``baseline``.

    Args:
        payload: from the strategy.
        codec: how.
        reference: name of the baseline; empty for the bundle's initial values.
        baseline: from ``payload_baseline``.
    """
    encoded = codecs.encode(payload, baseline, codec, reference=reference)
    coding = encoded.coding(reference)
    blob = encoded.blob
    raw = codecs.to_raw(blob, baseline, coding, max_bytes=_NO_LIMIT)
    return CodedPayload(blob=blob, coding=coding, raw=raw)


def decode_payload(
    blob: bytes | memoryview,
    coding: Coding,
    model: Model,
    earlier: Callable[[str], Tensors],
    *,
    forms: TensorSchemas,
) -> bytes | memoryview:
    """The raw blob of a payload that has arrived; a raw one is not looked at.

    Args:
        blob: its bytes.
        coding: what its offer says.
        model: the bundle's initial values.
        earlier: the tensors of an earlier payload, by its reference.
        forms: what it may hold.

    Raises:
        RefusedError: it is not what its codec writes, holds other tensors, or (from ``earlier``)
            refers to what is not here.
    """
    if coding.is_raw:
        return blob
    known = earlier(coding.reference) if coding.reference else {}
    return codecs.to_raw(
        blob,
        payload_baseline(model, known),
        coding,
        max_bytes=largest_blob(forms),
        check=forms.check,
    )


def encode_update(  # noqa: PLR0913 - what is sent and how, each named at the call
    update: Update,
    costs: Costs,
    baseline: Tensors,
    codec: Codec,
    residual: Tensors,
    *,
    sends: Sends = _ALL,
    work: float = 1.0,
    held_out: HeldOutGain | None = None,
) -> Encoded:
    """The blob of an update, and what its client has to add to the next one.

    Args:
        update: what the strategy made.
        costs: of the round.
        baseline: from ``update_baseline``.
        codec: how to encode.
        residual: what this function returned after the last round that counted.
        sends: what the client tells beside its tensors.
        work: the share of the local training that was done.
        held_out: what held-out examples have shown up to the round before; None: nothing.
    """
    record = UpdateRecord(
        client_id=update.client_id,
        round_id=update.round_id,
        num_examples=update.num_examples,
        loss=update.loss if math.isfinite(update.loss) else None,
        evaluation=_to_record(update.evaluation),
        costs=costs,
        work=work if work < 1 else msgspec.UNSET,
        held_out=held_out or msgspec.UNSET,
    )
    metadata = {_KEY: _fitting(sends.of_record(record))}
    return codecs.encode(update.tensors, baseline, codec, residual=residual, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedUpdate:
    """An update that has arrived, not yet admitted.

    Attributes:
        update: for the strategy.
        record: what its client says of it.
        metadata: of its blob.
        is_whole: its blob says nothing else.
        norms: of its differences to the payload (``claims.difference_norms``), once it is
            admitted.
    """

    update: Update
    record: UpdateRecord
    metadata: Mapping[str, str]
    is_whole: bool = True
    norms: Mapping[str, float] = field(default_factory=dict)

    def told(self, sends: Sends) -> DecodedUpdate:
        """The same without what its client was told not to send."""
        record = sends.of_record(self.record)
        if record == self.record:
            return self
        update = _update_of(record, self.update.tensors, None)
        update = replace(update, class_counts=self.update.class_counts)
        metadata = {_KEY: _fitting(record)}
        return replace(self, update=update, record=record, metadata=metadata, is_whole=False)

    def to_raw(self, *, max_bytes: int) -> bytes:
        """The raw blob, which needs no baseline to be read again.

        Raises:
            RefusedError: it would be larger than that, or holds what no blob can.
        """
        try:
            raw = blobs.encode(self.update.tensors, self.metadata)
        except InputError as error:
            raise RefusedError("codec", f"codec: {error}") from error
        if len(raw) > max_bytes:
            raise RefusedError("blob-size", f"blob: {len(raw)} bytes > {max_bytes} allowed")
        return raw


def decode_update(  # noqa: PLR0913 - what came and what it is read with, named at the call
    blob: bytes | memoryview,
    coding: Coding,
    baseline: Tensors,
    *,
    max_bytes: int,
    forms: TensorSchemas | None = None,
    class_counts: tuple[int, ...] | None = None,
) -> DecodedUpdate:
    """The update in a blob that came from outside.

    Args:
        blob: its bytes.
        coding: what its offer says.
        baseline: from ``update_baseline``; a raw blob needs none.
        max_bytes: largest blob that the caller is ready for, also decoded.
        forms: what it may hold; None: it was admitted before.
        class_counts: what its client has registered; None: nothing.

    Raises:
        RefusedError: not what its codec writes, other tensors, no record, or a field of it is
            missing or wrong.
    """
    check = None if forms is None else forms.check
    tensors, metadata = codecs.decode(blob, baseline, coding, max_bytes=max_bytes, check=check)
    record = _record_of(metadata)
    update = _update_of(record, tensors, class_counts)
    return DecodedUpdate(update=update, record=record, metadata=metadata)


def read_update(raw: bytes, class_counts: tuple[int, ...] | None = None) -> Update:
    """An admitted update, from its raw blob; its tensors are views into that."""
    return decode_update(raw, Coding(), {}, max_bytes=_NO_LIMIT, class_counts=class_counts).update


def _update_of(
    record: UpdateRecord, tensors: Tensors, class_counts: tuple[int, ...] | None
) -> Update:
    return Update(
        client_id=record.client_id,
        round_id=record.round_id,
        num_examples=record.num_examples,
        tensors=tensors,
        evaluation=to_evaluation(record.evaluation),
        loss=math.nan if record.loss is None else record.loss,
        class_counts=None if class_counts is None else np.array(class_counts, np.int64),
    )


def _record_of(metadata: Mapping[str, str]) -> UpdateRecord:
    if _KEY not in metadata:
        raise RefusedError("update-schema", f"update: its blob has no metadata '{_KEY}'")
    try:
        record = msgspec.json.decode(metadata[_KEY], type=UpdateRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedError("update-schema", f"update: {error}") from error
    _check_count("num_examples", record.num_examples)
    _check_count("round_id", record.round_id)
    _check_count("peak_rss_bytes", record.costs.peak_rss_bytes)
    return record


def _fitting(record: UpdateRecord) -> str:
    """The record as JSON, without statistics that no blob's header can hold (of 1000 classes)."""
    full = record.evaluation
    fewer: tuple[dict[str, Any], ...] = (
        {}, {"more": {}}, {"pooled": None}, {"start": None}, {"own": None},
    )  # fmt: skip
    left_out: dict[str, Any] = {}
    for one in fewer:
        left_out |= one
        counts = msgspec.structs.replace(full, **left_out)
        text = msgspec.json.encode(msgspec.structs.replace(record, evaluation=counts)).decode()
        if len(text) <= _MAX_CHARS:
            break
        _log.warning("update: statistics of so many classes do not fit and are left out")
    return text


def to_evaluation(record: EvaluationRecord) -> Evaluation:
    """The statistics as arrays: int64 where all of them are whole numbers, else float64.

    Raises:
        RefusedError: not a table, or what are no counts and no finite numbers.
    """
    return Evaluation(
        own=None if record.own is None else _to_array("own", record.own),
        pooled=None if record.pooled is None else _to_array("pooled", record.pooled),
        own_loss=math.nan if record.own_loss is None else record.own_loss,
        start=None if record.start is None else _to_array("start", record.start),
        more={name: _to_array(name[:_SHOWN], rows) for name, rows in record.more.items()},
    )


def _to_record(evaluation: Evaluation) -> EvaluationRecord:
    loss = evaluation.own_loss
    return EvaluationRecord(
        own=None if evaluation.own is None else _to_rows(evaluation.own),
        pooled=None if evaluation.pooled is None else _to_rows(evaluation.pooled),
        own_loss=loss if math.isfinite(loss) else None,
        start=None if evaluation.start is None else _to_rows(evaluation.start),
        more={name: _to_rows(counts) for name, counts in evaluation.more.items()},
    )


def _to_rows(statistics: Statistics) -> StatisticRows:
    return tuple(tuple(row) for row in statistics.tolist())


def _to_array(name: str, rows: StatisticRows) -> Statistics:
    width = len(rows[0]) if rows else 0
    if any(len(row) != width for row in rows):
        raise RefusedError("update-schema", f"evaluation '{name}': expected rows of one length")
    values = list(chain.from_iterable(rows))
    if float in map(type, values):
        return _to_sums(name, rows)
    # Each fits a float; so must all together, or sums in int64 wrap around.
    if min(values, default=0) < 0 or sum(values) >= 2**53:
        for count in values:
            _check_count(f"evaluation '{name}'", count)
        _check_count(f"evaluation '{name}', in all", sum(values))
    return np.array(rows, np.int64).reshape(len(rows), width)


def _to_sums(name: str, rows: StatisticRows) -> Statistics:
    try:
        sums = np.array(rows, np.float64)
    except OverflowError as error:
        raise RefusedError("update-schema", f"evaluation '{name}': {error}") from error
    if not np.isfinite(sums).all():
        raise RefusedError("update-schema", f"evaluation '{name}': expected finite numbers")
    return sums


def _check_count(name: str, value: Any) -> None:
    if not 0 <= value < 2**53:
        got = "another number" if abs(value) >= 2**64 else f"{value}"
        raise RefusedError("update-schema", f"{name}: expected a count, got {got}")
