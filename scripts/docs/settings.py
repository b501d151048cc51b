"""The reference of the files that people write, made of the records that read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import griffe
import msgspec

from protofleet.edge.owner.policy import Policy
from protofleet.experiments.config import Experiment
from protofleet.federation.settings import FederationConfig
from protofleet.firmware_sim.profile import FleetFile
from protofleet.strategies import STRATEGIES

_FILES = {
    "A federation": (FederationConfig, "`protofleet coordinator run FILE`", "coordinator.md"),
    "A device's policy": (Policy, "`policy.toml` in a device's store", "device.md"),
    "A fleet": (FleetFile, "`protofleet fleet run FILE`", "fleet.md"),
    "An experiment": (Experiment, "`protofleet experiment run FILE`", "experiments.md"),
}
_WORDS = {
    bool: "true or false",
    float: "number",
    int: "whole number",
    str: "text",
    object: "anything",
    PurePath: "path",
    Path: "path",
}
_STRATEGIES = """## A strategy

`[strategy.settings]` of a federation, `settings` of an experiment's method;
[explained](strategies.md).
"""
_INTRODUCTION = """# Settings

Every key of every file that people write, its type and its default, as the program knows them.
A key that is not here is an error that names it. A type that is a link is a table of its own.
"""


def settings_page() -> str:
    """Markdown: for each file its record, then the records in it, each with a table of its keys."""
    parts = [_INTRODUCTION]
    seen: set[type] = set()
    for title, (record, where, page) in _FILES.items():
        parts.append(f"## {title}\n\n{where}; [explained]({page}).\n")
        parts += [_section(inner) for inner in _records(record, seen)]
    parts.append(_STRATEGIES)
    for record in _of_strategies():
        parts += [_section(inner) for inner in _records(record, seen)]
    return "\n".join(parts)


def _of_strategies() -> Iterator[type]:
    """The records that strategies read ``[strategy.settings]`` with."""
    for _, one in sorted(STRATEGIES.items()):
        yield one.settings_type()


def _records(record: type, seen: set[type]) -> Iterator[type]:
    """A record and those inside it, each once, in the order in which they are met."""
    if record in seen:
        return
    seen.add(record)
    yield record
    for hint in get_type_hints(record).values():
        for inner in _structs(hint):
            yield from _records(inner, seen)


def _structs(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for argument in get_args(hint):
        yield from _structs(argument)


def _section(record: type) -> str:
    hints, meanings = get_type_hints(record), _meanings(record)
    config = record.__struct_config__
    rows = [f"| `{config.tag_field}` | `{_toml(config.tag)}` | needed | tells which table it is |"]
    rows = rows if config.tag_field else []
    for field in msgspec.structs.fields(record):
        told = meanings.get(field.name) or " ".join(map(_summary, _structs(hints[field.name])))
        kind, default = _type(hints[field.name]), _default(field)
        rows.append(f"| `{field.encode_name}` | {kind} | {default} | {_cell(told)} |")
    table = ["| key | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join([f"### {record.__name__}", "", _cell(_summary(record)), "", *table, ""])


def _parsed(record: type) -> list[griffe.DocstringSection]:
    return griffe.Docstring(record.__doc__ or "", parser="google").parse(warnings=False)


def _summary(record: type) -> str:
    kind = griffe.DocstringSectionKind.text
    return " ".join(part.value for part in _parsed(record) if part.kind is kind)


def _meanings(record: type) -> dict[str, str]:
    """What docstrings say of each attribute, those of the records that it is made of included."""
    found: dict[str, str] = {}
    for one in reversed(record.__mro__):
        for part in _parsed(one):
            if part.kind is griffe.DocstringSectionKind.attributes:
                for told in part.value:
                    # Of "a, b: …" the parser takes "b" for a type, and for that of all that follow.
                    more = told.annotation or "" if told.name.endswith(",") else ""
                    names = re.findall(r"\w+", f"{told.name} {more}")
                    found |= dict.fromkeys(names, told.description)
    return found


def _type(hint: Any) -> str:
    """A type as a file's author would call it; a record as a link to its table."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(f"`{_toml(one)}`" for one in arguments)
    if origin in {Union, UnionType}:
        return " or ".join(_type(one) for one in arguments if one is not NoneType)
    if origin is tuple:
        return "list of " + " and ".join(_type(one) for one in arguments if one is not Ellipsis)
    if origin is dict:
        return f"table of {_type(arguments[1])}"
    if issubclass(hint, msgspec.Struct):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return _WORDS.get(hint, hint.__name__)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "needed"
    if field.default is msgspec.NODEFAULT:
        return f"`{_toml(field.default_factory())}`"
    return "" if field.default is None else f"`{_toml(field.default)}`"


def _toml(value: Any) -> str:
    """A default as a file would say it; of a table, that it is one."""
    if isinstance(value, msgspec.Struct):
        return "{}"
    if isinstance(value, PurePath):
        value = str(value)
    return _cell(msgspec.json.encode(value, enc_hook=str).decode())


def _cell(text: str) -> str:
    """One line of a table; code of docstrings (``x``) as Markdown has it."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")
