"""Messages that keep or break one rule of a record, as Python takes them.

They are made from the records' own types, so that a bound which changes in one language alone is a
case on which the two differ: ``golden_messages.py FOLDER`` writes ``messages.json``
and ``offers.json``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect
from web.golden_shared import RECORDS
from wire.channel import DEVICE, blob_of, offer_of

from protofleet.errors import RefusedError
from protofleet.wire import messages
from protofleet.wire.transfers.receiver import Receiver
from protofleet.wire.transfers.transfer import Limits

_LIKE = {
    r"^[0-9a-f]{32}\Z": "0a" * 16,
    r"^[0-9a-f]{12}\Z": "0a" * 6,
    r"^[a-z0-9-]{1,32}\Z": "on-battery",
}
"""A text for each pattern of the records."""
_OTHERS = (None, True, 3, 0.5, "text", [], {})
"""A value of every form of JSON."""
LIMIT = 100_000
"""The largest blob of the offers."""
_MOST = 2**53 - 1
"""A browser's whole numbers end here; only the bounds that a record declares are tried."""


def cases() -> list[dict[str, Any]]:
    """Of each record one whole message, and others with one field changed.

    ``field``: whose rule is tried, with those around it; ``taken``: whether Python takes it.
    """
    found = []
    for record in RECORDS:
        tag, about = record.__struct_config__.tag, inspect.type_info(record)
        whole = {"type": tag, **_whole(about)}
        for field, text in [("", whole), *_changed(whole, about)]:
            said = json.dumps(text, separators=(",", ":"))
            if len(said) <= messages.MAX_MESSAGE_BYTES:
                case = {"kind": tag, "field": field, "text": said, "taken": _taken(said, record)}
                found.append(case)
    return found


def _taken(text: str, record: type[messages.Message]) -> bool:
    try:
        messages.decode(text.encode(), record)
    except RefusedError:
        return False
    return True


def _whole(about: Any) -> dict[str, Any]:
    """A value for every field."""
    return {one.encode_name: _value(one.type) for one in about.fields}


def _value(kind: Any) -> Any:
    """One that the type takes."""
    match _chosen(kind):
        case inspect.VarTupleType(item_type=item, min_length=least):
            return [_value(item)] * max(least or 0, 1)
        case inspect.TupleType(item_types=items):
            return [_value(one) for one in items]
        case inspect.StructType(tag=tag) as struct:
            return {**({"type": tag} if tag else {}), **_whole(struct)}
        case plain:
            return _plain(plain)


def _plain(kind: Any) -> Any:
    match kind:
        case inspect.StrType(pattern=pattern):
            return "text" if pattern is None else _LIKE[pattern]
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.IntType() | inspect.FloatType():
            least = kind.ge if kind.ge is not None else kind.gt
            return (least or 0) + (1 if isinstance(kind, inspect.IntType) else 0.5)
    return {inspect.BoolType: True, inspect.DictType: {}}[type(kind)]


def _chosen(kind: Any) -> Any:
    """Of a union with nothing its other type."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    return next(one for one in kind.types if not isinstance(one, inspect.NoneType))


def _changed(whole: dict[str, Any], about: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """With the path of the field whose rule is tried."""
    for one in about.fields:
        name = one.encode_name
        yield name, {key: value for key, value in whole.items() if key != name}
        for value in _tried(one.type):
            yield name, {**whole, name: value}
        inner = _chosen(one.type)
        if isinstance(inner, inspect.StructType):
            for path, value in _changed(_value(inner), inner):
                yield f"{name}.{path}", {**whole, name: value}


def _tried(kind: Any) -> Iterator[Any]:
    """Values at the bounds of a type, just outside of them, and of other forms."""
    yield from _OTHERS
    match kind:
        case inspect.StrType(pattern=str() as pattern):
            yield from (_LIKE[pattern] + "\n", _LIKE[pattern].upper(), "")
        case inspect.StrType(max_length=int() as most):
            yield from ("x" * most, "x" * (most + 1), "\U0001f600" * most)
        case inspect.IntType() | inspect.FloatType():
            yield from _numbers(kind)
        case inspect.LiteralType():
            yield from (*kind.values, "none of these")
        case inspect.VarTupleType():
            yield from _lists(kind)
        case inspect.TupleType():
            yield from ([_value(one) for one in kind.item_types] + [0], [0])
        case inspect.UnionType():
            yield from _tried(_chosen(kind))
        case inspect.StructType() if kind.tag:
            yield {**_value(kind), "type": "another"}


def _numbers(kind: Any) -> Iterator[float]:
    step = 1 if isinstance(kind, inspect.IntType) else 0.25
    least = kind.ge if kind.ge is not None else kind.gt
    if least is not None:
        yield from (least, least - step)
    if kind.le is not None and kind.le <= _MOST:
        yield from (kind.le, kind.le + step)


def _lists(kind: Any) -> Iterator[list[Any]]:
    item = _value(kind.item_type)
    most = kind.max_length
    if most is not None:
        yield from ([item] * most, [item] * (most + 1))
    if kind.min_length:
        yield [item] * (kind.min_length - 1)
    yield from ([one] for one in _tried(kind.item_type))


def offers() -> list[dict[str, Any]]:
    """Offers that break one limit each, with Python's rule and words; the first breaks none."""
    whole = offer_of(blob_of(500))
    digest = "ab" * 32
    changes: list[dict[str, Any]] = [
        {},
        *({"total_bytes": size} for size in (LIMIT + 1, 0, -1)),
        *({"chunk_bytes": size} for size in (255, 65_000, -1)),
        *({"codec": name} for name in ("zip", "raw+zlib", "int8" * 16, "x" * 64)),
        *({"codec": "int8+zlib", "raw_bytes": size} for size in (0, LIMIT + 1)),
        *({"reference": name} for name in ("AB", digest[:-1], digest.upper(), "x" * 64)),
        *({"key": key} for key in (digest, "ab", digest.upper())),
        *({"transfer_id": "0" * 32}, {"round_id": 2}, {"sha256": digest}),
    ]
    return [
        {"sealed": sealed, **_refusal(msgspec.structs.replace(whole, **change), sealed=sealed)}
        for sealed in (False, True)
        for change in changes
    ]


def _refusal(offer: messages.TransferOffer, *, sealed: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        receiver = Receiver(Path(folder), Limits(max_blob_bytes=LIMIT), sealed=sealed)
        broken = receiver.refusal(DEVICE, offer)
    said = messages.encode(offer).decode()
    return {
        "offer": said,
        "rule": "" if broken is None else broken.rule,
        "reason": "" if broken is None else str(broken),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir()
    (folder / "messages.json").write_text(json.dumps(cases()))
    (folder / "offers.json").write_text(json.dumps(offers()))
