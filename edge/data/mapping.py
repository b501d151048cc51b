"""What a table's columns and labels mean, where their names do not say: a file that a person edits.

``[columns]`` gives columns the names of the bundle's channels or targets, ``label`` or ``time``;
``[labels]`` gives labels, and words of files' and folders' names, those of the bundle's classes.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from protofleet.bundle.manifest import Manifest
from protofleet.edge.data.columns import (
    LABEL,
    is_label,
    meanings,
    seconds_in,
    time_named,
    unit_part,
)
from protofleet.edge.data.csv_rows import Row
from protofleet.errors import InputError, MissingDataError

TIME = "time"
_TIMES = {1.0: "time_s", 1e-3: "time_ms"}
_MOST_LABELS = 50
_HEADER = """\
# What the columns of '{name}' are. A name on the right is one of
#   {known}
# or "" for a column that is none of them. A unit in brackets behind a column's name counts.
[columns]
"""
_LABELS = """
# Which class of the bundle a label is, or a word in a file's or a folder's name: one of
#   {known}
# or "" for none of them.
[labels]
"""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    columns: dict[str, str] = {}
    labels: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapping:
    """What a person has said of tables.

    Attributes:
        columns: by a column's name, what it is; '': nothing that is used.
        labels: by a label, which class it is.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def rows(self, blocks: Iterable[list[Row]]) -> Iterator[list[Row]]:
        """A table's rows, the first ones' names and labels as the bundle has them."""
        first = True
        for rows in blocks:
            if first and self.columns and rows:
                names = [self._named(cell, k) for k, cell in enumerate(rows[0].cells, 1)]
                yield [replace(rows[0], cells=names), *self._labelled(rows[1:])]
            else:
                yield self._labelled(rows)
            first = first and not rows

    def classes(self, classes: Sequence[str]) -> dict[str, str]:
        """By words that may stand in a name, the class that is meant."""
        return {**{name: name for name in classes}, **self.labels}

    def _named(self, cell: str, number: int) -> str:
        meant = self.columns.get(cell.strip())
        if meant is None:
            return cell
        if meant == TIME:  # by a name that goes before all others that sound like times
            return _TIMES.get(seconds_in(cell) or 0.0, TIME)
        return f"{meant}{unit_part(cell)}" if meant else f"unused {number}"

    def _labelled(self, rows: list[Row]) -> list[Row]:
        if not self.labels:
            return rows
        return [
            replace(row, cells=[self.labels.get(cell.strip(), cell) for cell in row.cells])
            for row in rows
        ]


NO_MAPPING = TableMapping()


def read_mapping(path: Path, manifest: Manifest) -> TableMapping:
    """The mapping in a file.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no TOML of two tables of texts, or means what the bundle does not have.
    """
    where = f"mapping '{path}'"
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File)
    except FileNotFoundError as error:
        raise MissingDataError(f"{where}: no such file") from error
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise InputError(f"{where}: {error}") from error
    known = {"columns": _meant(manifest), "labels": manifest.classes}
    for kind, said in (("columns", found.columns), ("labels", found.labels)):
        for name, meant in said.items():
            if meant and meant not in known[kind]:
                raise InputError(
                    f"{where}: [{kind}] '{name}': expected one of {', '.join(known[kind])}, or "
                    f"\"\", got '{meant}'"
                )
    return TableMapping(
        columns={name.strip(): meant for name, meant in found.columns.items()},
        labels={name.strip(): meant for name, meant in found.labels.items() if meant},
    )


def proposal(name: str, tables: Iterable[tuple[str, list[Row]]], manifest: Manifest) -> str:
    """A mapping file with what columns seem to be.

    Args:
        name: of the recording.
        tables: the name of each, which may be that of a sensor, and its rows.
        manifest: the bundle's.
    """
    columns: dict[str, str] = {}
    labels: dict[str, None] = {}
    for named, rows in tables:
        header = [cell.strip() for cell in rows[0].cells] if rows else []
        for one, what in _guessed(header, manifest, named):
            columns[one] = columns.get(one) or what
        for place in (k for k, one in enumerate(header) if columns[one] == LABEL):
            said = (row.cells[place].strip() for row in rows[1:] if place < len(row.cells))
            labels |= dict.fromkeys(one for one in said if one and one not in manifest.classes)
    text = _HEADER.format(name=name, known=", ".join(_meant(manifest)))
    text += _lines(columns)
    if manifest.classes:
        text += _LABELS.format(known=", ".join(manifest.classes))
        text += _lines(dict.fromkeys(list(labels)[:_MOST_LABELS], ""))
    return text


def _meant(manifest: Manifest) -> tuple[str, ...]:
    labels = (LABEL,) if manifest.classes else manifest.targets
    return (*manifest.preprocessing.channels, TIME, *labels)


def _guessed(header: Sequence[str], manifest: Manifest, named: str) -> Iterator[tuple[str, str]]:
    known = _meant(manifest)
    meant = meanings(header, manifest.preprocessing.channels, named)
    times = time_named(header, manifest.preprocessing.channels)
    timed = [name for name in header if unit_part(name) and seconds_in(name)]
    if times is None and len(timed) == 1:
        times = timed[0]  # seconds or the like, in whatever language
    for name in header:
        if name in known:
            yield name, name
        elif name in meant:
            yield name, meant[name]
        elif is_label(name) and LABEL in known:
            yield name, LABEL
        else:
            yield name, TIME if name == times else ""


def _lines(values: Mapping[str, str]) -> str:
    return "".join(f"{_quoted(name)} = {_quoted(value)}\n" for name, value in values.items())


def _quoted(text: str) -> str:
    """As TOML and JSON write it alike, but for what TOML has no letters for."""
    return re.sub("\x7f", r"\\u007F", json.dumps(text, ensure_ascii=False))
