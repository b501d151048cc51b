"""JSON from outside, read so that every reader in any language sees the same document."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from protofleet.errors import RefusedError

_SHOWN = 40
"""Characters of a document in a message."""


def loads(data: bytes, *, rule: str, what: str) -> Any:
    """Parse UTF-8 JSON; repeated keys, NaN, infinities, lone surrogates, deep nesting are refused.

    Args:
        data: the document.
        rule: rule that a refusal names.
        what: thing that a refusal's message names.

    Raises:
        RefusedError: the document is not such JSON.
    """
    try:
        text = data.decode("utf-8")
        document = _decoder.decode(text)
        if "\\u" in text:  # an escaped half of a surrogate pair is no text in any other language
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise RefusedError(rule, f"{what}: not strict JSON: {error}") from error
    return document


def head(text: str, start: int) -> tuple[Any, int]:
    """The value of a document that begins at ``start``, and where it ends.

    Raises:
        ValueError: no value of such JSON begins there.
        RecursionError: it is nested too deep.
    """
    if "\\u" in text:  # may be half of a surrogate pair
        raise ValueError("escaped characters")
    return _decoder.raw_decode(text, start)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"key {name[:_SHOWN]!r} occurs twice")
        members[name] = value
    return members


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:_SHOWN]} is not a float64 number")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_decoder = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
)
