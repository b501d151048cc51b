"""What the laws need of a strategy: a model of its kind, settings, and tools of a client.

``case_<strategy>.py`` beside this file holds ``case(make_tools, toy)`` for a strategy that the toy
model of ``toy_model.py`` does not fit, where ``toy`` is the default case.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from protofleet.tensors import Model


@dataclass(frozen=True, kw_only=True)
class Case:
    """One strategy under the laws.

    Attributes:
        model: initial values.
        settings: of a full-batch round.
        make_tools: client_id and two-column examples → its tools and a record of what it did.
        server_tools: what the server gets in each aggregation.
        update: adds to an update what the coordinator adds (class counts); may return it as it is.
        exempt: law (test function's name without ``test_``) → why the strategy cannot keep it.
    """

    model: Model
    settings: Mapping[str, Any]
    make_tools: Callable[[str, Any], Any]
    server_tools: Callable[[], Any]
    update: Callable[[Any, Any], Any] = lambda update, _tools: update
    exempt: Mapping[str, str] = field(default_factory=dict)


def case_of(name: str, make_tools: Any, toy: Case) -> Case:
    """The case of a strategy; the toy's unless it brings its own."""
    if importlib.util.find_spec(f"laws.case_{name}") is None:
        return toy
    found: Case = importlib.import_module(f"laws.case_{name}").case(make_tools, toy)
    return found
