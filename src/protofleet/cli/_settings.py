"""Settings of models and strategies on the command line, for ``pretrain`` and ``export``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from protofleet.errors import InputError
from protofleet.export.catalogue import model_names

MODEL_HELP = f"{model_names()}, or package.module:function."
SET_HELP = "A setting of the model, with a JSON value or text; may be repeated."


def parse_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """``key=value`` with a JSON value, or plain text where it is none.

    Raises:
        InputError: a pair without a key or an equals sign.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InputError(f"setting '{pair}': expected KEY=VALUE")
        settings[name] = text
        with contextlib.suppress(json.JSONDecodeError):
            settings[name] = json.loads(text)
    return settings
