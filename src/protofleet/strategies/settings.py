"""Settings records of strategies and of aggregation rules, from what files and messages say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from protofleet.errors import InputError
from protofleet.settings import explain

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def parse_record(owner: str, settings: Mapping[str, Any], kind: type[_Settings]) -> _Settings:
    """The settings record ``kind``; ``owner`` begins the message of what is refused.

    Raises:
        InputError: unknown key, wrong type or a value outside its range.
    """
    try:
        return msgspec.convert(dict(settings), kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{owner}: {explain(error, kind, settings)}") from error
    except InputError as error:
        raise InputError(f"{owner}: {error}") from error
