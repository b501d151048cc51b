"""Examples from recordings: one table, or all of a folder or a zip, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest
from protofleet.edge.data.csv_examples import Examples, read_csv
from protofleet.edge.data.mapping import NO_MAPPING, TableMapping
from protofleet.edge.data.recording_files import RecordingFile, recording_files
from protofleet.edge.data.sensor_tables import SensorTables, sensor_tables, with_marks
from protofleet.edge.predictions import known_rows
from protofleet.errors import InputError


@dataclass(slots=True, kw_only=True)
class Found:
    """What was found in a table.

    Attributes:
        name: of the table.
        examples: how many.
        by_class: of each of the bundle's classes, of a segmentation their steps; empty where it has
            none.
        unlabelled: examples of no class.
        lasts_s: from its first window to its last one's beginning; 0 where there are no times.
        refused: why nothing of it is used; empty: it is.
    """

    name: str
    examples: int = 0
    by_class: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    unlabelled: int = 0
    lasts_s: float = 0.0
    refused: str = ""
    _last_s: float = np.inf

    def text(self, classes: Sequence[str]) -> str:
        """For people: how many examples, how long, of which classes."""
        parts = [f"{self.examples} examples"]
        if self.lasts_s:
            parts.append(f"over {self.lasts_s:.0f} s")
        each = [f"{name} {n}" for name, n in zip(classes, self.by_class, strict=True) if n]
        if len(self.by_class) and self.unlabelled:
            each.append(f"{self.unlabelled} without a label")
        return " ".join(parts) + (f": {', '.join(each)}" if each else "")

    def add(self, block: Examples) -> None:
        """Count what has arrived."""
        self.examples += len(block.y)
        if len(self.by_class):
            known = known_rows(block.y)
            self.unlabelled += int((~known).sum())
            labels = block.y[known].reshape(-1)
            self.by_class += np.bincount(labels, minlength=len(self.by_class))
        if block.start_s is not None and len(block.start_s):
            steps = np.diff(block.start_s, prepend=self._last_s)
            self.lasts_s += float(np.maximum(steps, 0).sum())
            self._last_s = float(block.start_s[-1])


Told = Callable[[Found], None]
"""Told of each table when it is read."""


def nobody(_: Found) -> None:
    """Tells nobody."""


def read_recordings(
    sources: Sequence[str],
    manifest: Manifest,
    told: Told = nobody,
    *,
    labels: str | None = None,
    mapping: TableMapping = NO_MAPPING,
    **options: Any,
) -> Iterator[Examples]:
    """Examples of every table of the sources, in their order, in blocks.

    A table without a column of labels has the class that its name, or its folder's, says. Tables of
    a folder or a zip that are named after sensors are one recording (``sensor_tables``). Of several
    those that hold something else, or too little, are left out, and told of.

    Args:
        sources: files, folders, zips.
        manifest: the bundle's.
        told: what is found in each table, at its end.
        labels: a table of what the person has marked (``annotations``), for all of them.
        mapping: what a person has said of their columns and labels.
        options: as of ``read_csv``.

    Raises:
        MissingDataError: as ``recording_files``.
        InputError: a table that cannot be read; or none is a recording.
    """
    files = recording_files(sources, mapping)
    found = _recordings(files, manifest)
    if labels is not None:
        found = _marked(files, manifest, labels)
    return _read(found, len(files), manifest, told, options)


def _read(
    recordings: Iterable[_Recording],
    count: int,
    manifest: Manifest,
    told: Told,
    options: Mapping[str, Any],
) -> Iterator[Examples]:
    used, why = 0, None
    for recording in recordings:
        found = Found(name=recording.name, by_class=np.zeros(len(manifest.classes), np.int64))
        try:
            for block in recording.blocks(manifest, options):
                found.add(block)
                yield block
            used += 1
        except InputError as error:
            # Of half a recording nobody would know which.
            if count == 1 or found.examples:
                raise
            found.refused, why = str(error), why or error
        told(found)
    if why is not None and not used:
        raise why


class _Recording(Protocol):
    """What gives examples of its own."""

    @property
    def name(self) -> str:
        """What to call it."""
        ...

    def blocks(self, manifest: Manifest, options: Mapping[str, Any]) -> Iterator[Examples]:
        """Its examples."""
        ...


def _marked(
    files: Sequence[RecordingFile], manifest: Manifest, labels: str
) -> Iterator[_Recording]:
    """Each recording with what the person has marked."""
    marks, *more = recording_files([labels], files[0].mapping)
    if more:
        raise InputError(f"labels '{labels}': expected one table, got {1 + len(more)}")
    for one in _recordings(files, manifest):
        if isinstance(one, SensorTables):
            yield one.marked(marks)
        elif isinstance(one, _Table):
            yield replace(one, marks=marks)


def _recordings(files: Sequence[RecordingFile], manifest: Manifest) -> Iterator[_Recording]:
    """Each table by itself, but for those that sensors of one recording have."""
    folders: dict[str, list[RecordingFile]] = {}
    for file in files:  # those of a folder may have another folder's between them
        folders.setdefault(file.folder, []).append(file)
    for folder, tables in folders.items():
        joined = sensor_tables(folder, tables, manifest) if folder and len(tables) > 1 else None
        if joined is None:
            yield from (_Table(file, marks=file.marks) for file in tables)
        else:
            yield joined


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that is a recording by itself; ``marks``: what the person has marked."""

    file: RecordingFile
    marks: RecordingFile | None = None

    @property
    def name(self) -> str:
        return self.file.name

    def blocks(self, manifest: Manifest, options: Mapping[str, Any]) -> Iterator[Examples]:
        file, label = self.file, self.file.label(manifest.classes)
        if self.marks is not None:
            marked = with_marks(file, self.marks, manifest, options.get("columns"))
            yield from marked.blocks(manifest, options)
            return
        with file.open() as stream:
            yield from read_csv(
                stream,
                file.where,
                manifest,
                label=label,
                file_name=file.parts[-1],
                mapping=file.mapping,
                **options,
            )
