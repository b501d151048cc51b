"""Settings files: how they are written, what is wrong with a value, what may be in its place."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

_ERROR = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>\$[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|(\[[^\]]*\])")
_MISSING = re.compile(r"Object missing required field `(.+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`")
_INVALID = re.compile(r"Invalid (?:enum )?value (.+)", re.DOTALL)
_KIND = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "a table",
    "str": "text",
}
"""Of JSON's and msgspec's types; ``array | int`` and the like are put together from them."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NUMBERS = (inspect.IntType, inspect.FloatType)


def read_toml(path: Path) -> dict[str, Any]:
    """A file's tables; it may begin with a byte order mark, as some editors of Windows write it.

    Raises:
        OSError: it cannot be read.
        msgspec.DecodeError: it is no TOML.
        ValueError: it is no text.
    """
    data = path.read_bytes()
    text = data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
    return msgspec.toml.decode(text, type=dict[str, Any])


def explain(error: msgspec.ValidationError, kind: Any, value: Any) -> str:
    """The error that ``msgspec.convert`` raised for ``value`` and the type ``kind``, for a person.

    It names the key, what was got, and what is allowed: the values of a choice, the ``kind``s of a
    table, the known keys.
    """
    matched = _ERROR.fullmatch(str(error))
    what, path = (matched["what"], matched["path"] or "$") if matched else (str(error), "$")
    steps = [name or index for name, index in _STEP.findall(path)]
    text = _reworded(what, steps, kind, _at(value, steps))
    where = "".join(step if step[0] == "[" else f".{step}" for step in steps).removeprefix(".")
    return f"`{where}`: {text}" if where else text


def _reworded(what: str, steps: list[str], kind: Any, value: Any) -> str:
    here = list(_types_at(kind, steps))
    if found := _MISSING.fullmatch(what):
        known = _listed(_tags(here, found[1]))
        return f"expected a key `{found[1]}`{f', one of {known}' if known else ''}, got none"
    if found := _UNKNOWN.fullmatch(what):
        return f"unknown key `{found[1]}`; known are {', '.join(_keys(here, value)) or 'none'}"
    if found := _INVALID.fullmatch(what):
        values = {str(one) for node in here for one in getattr(node, "values", ())}
        values |= set(_tags(_types_at(kind, steps[:-1]), steps[-1])) if steps else set()
        numbers = " or a number" if any(isinstance(node, _NUMBERS) for node in here) else ""
        return f"expected one of {_listed(values)}{numbers}, got {found[1]}" if values else what
    if found := _KIND.fullmatch(what):
        keys = _listed(_keys(here, None)) if "object" in found[1].split(" | ") else ""
        with_keys = f" with the keys {keys}" if keys else ""
        return f"expected {_in_words(found[1])}{with_keys}, got {_in_words(found[2])}"
    return what


def _at(value: Any, steps: Iterable[str]) -> Any:
    """What stands at this place; None where the path names no single one."""
    for step in steps:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif step[1:-1].isdecimal() and isinstance(value, Sequence):
            value = value[int(step[1:-1])]
        else:
            return None
    return value


def _types_at(kind: Any, steps: Iterable[str]) -> Iterator[Any]:
    """Every type that a value at this place may have, of unions each member."""
    nodes = [inspect.type_info(kind)]
    for step in steps:
        nodes = [inner for node in _flat(nodes) for inner in _inside(node, step)]
    yield from _flat(nodes)


def _flat(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        yield from _flat(getattr(node, "types", None) or ()) if hasattr(node, "types") else [node]


def _inside(node: Any, step: str) -> Iterator[Any]:
    """Types of what lies one step below ``node``."""
    for field in getattr(node, "fields", ()):
        if field.encode_name == step:
            yield field.type
    if step.startswith("["):
        yield from getattr(node, "item_types", ())
    for name in ("item_type", "value_type"):
        if hasattr(node, name):
            yield getattr(node, name)


def _tags(nodes: Iterable[Any], field: str) -> set[str]:
    """Values that tell tables of several kinds apart by the key ``field``."""
    return {str(node.tag) for node in nodes if getattr(node, "tag_field", None) == field}


def _keys(nodes: Iterable[Any], value: Any) -> list[str]:
    """Keys of a table, in their records' order; of several kinds, those of the kind it names."""
    tables = [node for node in nodes if hasattr(node, "fields")]
    tagged = [node for node in tables if node.tag_field]
    if isinstance(value, Mapping):
        tables = [n for n in tagged if value.get(n.tag_field) == n.tag] or tables
    names = [node.tag_field for node in tagged]
    names += [field.encode_name for node in tables for field in node.fields]
    return list(dict.fromkeys(names))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _in_words(types: str) -> str:
    return " or ".join(_WORDS.get(name, name) for name in types.split(" | "))


def to_toml(values: Mapping[str, Any]) -> bytes:
    """The bytes of a settings file.

    Args:
        values: what TOML can hold; it knows no empty values.

    Raises:
        ModuleNotFoundError: the package that writes it is not installed.
    """
    import tomli_w  # noqa: PLC0415 - an extra; msgspec would hide its name

    return tomli_w.dumps(msgspec.to_builtins(values)).encode()
