"""JSON from outside, read so that every reader in any language sees the same document."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from protofleet.errors import RefusedError


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
        document = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        if "\\u" in text:  # an escaped half of a surrogate pair is no text in any other language
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise RefusedError(rule, f"{what}: not strict JSON: {error}") from error
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {repeated!r} occurs twice")
    return members


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is not a float64 number")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
