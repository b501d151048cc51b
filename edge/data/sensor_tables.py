"""A recording whose sensors have a table each: which of a folder's tables belong to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from protofleet.bundle.manifest import Manifest
from protofleet.edge.data.annotations import AnnotationTable, Marks
from protofleet.edge.data.columns import channels_in, columns_of, sensors_in
from protofleet.edge.data.csv_examples import Examples, given_names, to_blocks
from protofleet.edge.data.csv_table import Table
from protofleet.edge.data.joined_sensors import (
    SensorSamples,
    joined_windows,
    part_of,
    read_sensor,
)
from protofleet.edge.data.recording_files import RecordingFile
from protofleet.edge.data.spooled_readings import SpooledReadings
from protofleet.edge.predictions import NO_LABEL
from protofleet.errors import InputError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A table's first row, and which of the bundle's channels its columns are."""

    file: RecordingFile
    header: list[str]
    channels: tuple[str, ...]
    is_named: bool = True
    """Whether that row names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorTables:
    """A recording of several sensors.

    Attributes:
        name: of the folder.
        tables: one for each sensor, in the order of the bundle's channels, with its channels.
        marks: tables of what the person has marked.
    """

    name: str
    tables: tuple[_Look, ...]
    marks: tuple[tuple[RecordingFile, AnnotationTable], ...]

    def blocks(self, manifest: Manifest, options: Mapping[str, Any]) -> Iterator[Examples]:
        """Its windows.

        Args:
            manifest: the bundle's.
            options: of ``read_csv``, those that say something of times.

        Raises:
            InputError: a table cannot be read, or the sensors never overlap.
        """
        with ExitStack() as stack:
            readings = [
                stack.enter_context(closing(SpooledReadings(len(one.channels))))
                for one in self.tables
            ]
            sensors = [
                _read(one, manifest, options, waiting)
                for one, waiting in zip(self.tables, readings, strict=True)
            ]
            marks = self._marked(sensors, manifest)
            where = f"data '{self.name}'"
            for windows in joined_windows(where, sensors, marks, manifest.preprocessing):
                yield from to_blocks(windows, manifest)

    def marked(self, marks: RecordingFile) -> SensorTables:
        """The same with another table of marks.

        Raises:
            InputError: it has no column of times or of labels.
        """
        return replace(self, marks=((marks, _annotations(marks)),))

    def _marked(self, sensors: Sequence[SensorSamples], manifest: Manifest) -> Marks:
        """By the tables of marks, else by a sensor's own labels, else by the folder's name."""
        if not manifest.classes:
            return []
        found: Marks = []
        for file, table in self.marks:
            with file.open() as stream:
                _, *rows = chain.from_iterable(file.rows(stream))
                found += table.marks(rows, manifest, file.where, sensors) if rows else []
        # Notes of a device, such as "recording starts", say nothing of classes.
        if all(label == NO_LABEL for _, label in found):
            found = next((list(one.marks) for one in sensors if one.marks), [])
        label = self.tables[0].file.label(manifest.classes, of_folder=True)
        if not found and label is not None:
            _log.warning("data '%s': all of it is '%s', by its name", self.name, label)
            found = [(-np.inf, manifest.classes.index(label))]
        return found


def sensor_tables(
    folder: str, files: Sequence[RecordingFile], manifest: Manifest
) -> SensorTables | None:
    """The recording that tables of one folder make together; None: they do not.

    They do if some are named after sensors, and have all channels of the bundle's windows between
    them. Of two that have the same, that with the shorter name is taken.

    Args:
        folder: its name.
        files: its tables.
        manifest: the bundle's.
    """
    inputs = manifest.preprocessing
    if not (inputs.window and inputs.channels):
        return None
    looks = [_peek(file, inputs.channels) for file in files]
    named = sorted(
        (one for one in looks if one.channels and sensors_in(one.file.parts[-1])),
        key=lambda one: (len(one.file.parts[-1]), one.file.parts[-1]),
    )
    of = {channel: one for one in reversed(named) for channel in one.channels}
    if not set(inputs.channels) <= of.keys():
        return None
    chosen: list[_Look] = []
    for channel in inputs.channels:
        one = of[channel]
        if chosen and chosen[-1].file is one.file:
            continue
        if any(one.file is other.file for other in chosen):
            raise InputError(
                f"data '{folder}': expected channels of one sensor side by side in the bundle, got "
                f"{', '.join(inputs.channels)}, of which '{one.file.name}' has some"
            )
        chosen.append(one)
    tables = tuple(
        _Look(
            file=one.file,
            header=one.header,
            channels=tuple(name for name in one.channels if of[name] is one),
        )
        for one in chosen
    )
    used = {one.file.name for one in tables}
    _log.info("data '%s': sensors in %s", folder, ", ".join(sorted(used)))
    marks = (*_marks(looks), *_own_marks(tables))
    return SensorTables(name=folder, tables=tables, marks=marks)


def _own_marks(tables: Sequence[_Look]) -> list[tuple[RecordingFile, AnnotationTable]]:
    """Those in the tables' own file, which all of them have."""
    found = tables[0].file.marks
    return [] if found is None else [(found, _annotations(found))]


def with_marks(
    file: RecordingFile,
    marks: RecordingFile,
    manifest: Manifest,
    columns: Sequence[str] | None,
) -> SensorTables:
    """A table that is a recording by itself, and one of what the person has marked.

    Args:
        file: the recording.
        marks: the other.
        manifest: the bundle's.
        columns: names of the recording's columns, where no row has them.

    Raises:
        InputError: the bundle has no windows of sensors, the recording lacks a channel, or the
            marks have no column of times or of labels.
    """
    inputs = manifest.preprocessing
    if not (inputs.window and inputs.channels):
        raise InputError(f"{marks.where}: marks are for sensor samples, whose windows they label")
    look = _look(file, inputs.channels, columns)
    if lacking := [name for name in inputs.channels if name not in look.channels]:
        raise InputError(
            f"{file.where}: expected the channels {', '.join(inputs.channels)}; it lacks "
            f"{', '.join(lacking)}, and has the columns {', '.join(look.header)[:200]}"
        )
    return SensorTables(name=file.name, tables=(look,), marks=((marks, _annotations(marks)),))


def _annotations(file: RecordingFile) -> AnnotationTable:
    look = _look(file, ())
    try:
        return AnnotationTable(look.header)
    except InputError as error:
        raise InputError(
            f"{file.where}: {error}, got the columns {', '.join(look.header)[:200]}"
        ) from error


def _marks(looks: Sequence[_Look]) -> Iterator[tuple[RecordingFile, AnnotationTable]]:
    for one in looks:
        if one.channels or sensors_in(one.file.parts[-1]):
            continue
        try:
            yield one.file, AnnotationTable(one.header)
        except InputError:
            _log.info("%s: neither a sensor's nor marks, passed over", one.file.where)


def _look(
    file: RecordingFile, channels: Sequence[str], columns: Sequence[str] | None = None
) -> _Look:
    with file.open() as stream:
        first = next(file.rows(stream), None)
    header = [] if first is None else [cell.strip() for cell in first[0].cells]
    if columns is not None:
        header = given_names(columns, header, file.where)
    return _Look(
        file=file,
        header=header,
        channels=channels_in(header, channels, file.parts[-1]),
        is_named=columns is None,
    )


def _peek(file: RecordingFile, channels: Sequence[str]) -> _Look:
    """As ``_look``; what is no table has no columns, as others of a folder may do."""
    try:
        return _look(file, channels)
    except InputError as error:
        _log.info("%s", error)
        return _Look(file=file, header=[], channels=())


def _read(
    look: _Look, manifest: Manifest, options: Mapping[str, Any], readings: SpooledReadings
) -> SensorSamples:
    """All that a sensor's table holds."""
    file, part = look.file, part_of(manifest, look.channels)
    rate_hz, time = options.get("rate_hz"), options.get("time")
    with file.open() as stream:
        rows = file.rows(stream)
        first = next(rows)
        columns = columns_of(
            look.header,
            part,
            file.where,
            time=time,
            is_timed=rate_hz is None,
            named=file.parts[-1],
        )
        table = Table(file.where, columns, part)
        begin = first[1:] if look.is_named else first
        return read_sensor(file.parts[-1], table, chain([begin], rows), rate_hz, readings)
