"""Tables of recordings in files, folders and zips, and what their names say of them."""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar, cast

from protofleet.datasets.arrays import UNREADABLE
from protofleet.edge.data.binary_files import BINARY, binary_tables, is_binary
from protofleet.edge.data.binary_table import BinaryTable
from protofleet.edge.data.csv_rows import ByteStream, Row, row_blocks
from protofleet.edge.data.empatica import with_times
from protofleet.edge.data.mapping import NO_MAPPING, TableMapping
from protofleet.edge.data.sensor_logger import LoggedTable, is_logged, logged_tables
from protofleet.errors import InputError, MissingDataError

_T = TypeVar("_T")
_Opened = Callable[[], AbstractContextManager[ByteStream]]
TABLES = frozenset({".csv", ".tsv", ".txt"})
"""Endings of files in which a table is looked for, in a folder or a zip."""
_OF_SEVERAL = frozenset({".hea"})
"""Of what lies in several files, which are not looked for in a zip."""
_BLOCK_BYTES = 1 << 20
_LOGGED = ".json"
"""Of Sensor Logger's, which holds tables of several sensors."""
MOST_FILES = 10_000
_MOST_RATIO, _SMALL_BYTES = 200, 100_000_000
"""Tables shrink to a tenth; what shrinks more, and is not small, is made to fill a disk."""
_WORD = re.compile(r"[^\W\d_]+")
_CAPITAL = re.compile(r"(?<=[a-zß-ÿ])(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingFile:
    """A table.

    Attributes:
        name: what to call it.
        folder: where it lies with others, as a name; '' of the only file that was named.
        parts: names of the folders and the file, without its ending, that may say what it holds.
        open: its bytes.
        mapping: what a person has said of its columns and labels.
        marks: a table of what a person has marked, in the same file; None: there is none.
    """

    name: str
    folder: str
    parts: tuple[str, ...]
    open: _Opened
    mapping: TableMapping = NO_MAPPING
    marks: RecordingFile | None = None

    def rows(self, stream: ByteStream) -> Iterator[list[Row]]:
        """Its rows, with names and labels as the bundle has them where a person has said so."""
        return self.mapping.rows(row_blocks(stream, self.where))

    def label(self, classes: Sequence[str], *, of_folder: bool = False) -> str | None:
        """The class that its name, or its folder's, says; None: none, or several."""
        known = self.mapping.classes(classes)
        said = label_in(self.parts[:-1] if of_folder else self.parts, tuple(known))
        return None if said is None else known[said]

    @property
    def where(self) -> str:
        """As messages say it."""
        return f"data '{self.name}'"


def recording_files(
    sources: Sequence[str], mapping: TableMapping = NO_MAPPING
) -> list[RecordingFile]:
    """The tables of files, folders and zips; of those of a folder or a zip in ascending order.

    Args:
        sources: what a person has named.
        mapping: of all of them.

    Raises:
        MissingDataError: one is absent, or has no table in it.
        InputError: a zip that cannot be read, or more than ``MOST_FILES`` tables.
    """
    found: list[RecordingFile] = []
    for source in sources:
        path = Path(source)
        if not path.exists():
            raise MissingDataError(f"data '{path}': no such file or folder")
        tables = list(_tables(path, alone=len(sources) == 1))
        if not tables:
            known = TABLES | BINARY
            raise MissingDataError(
                f"data '{path}': no table in it; expected files that end in "
                f"{', '.join(sorted(known))}"
            )
        found += tables
    if len(found) > MOST_FILES:
        raise InputError(f"data: expected at most {MOST_FILES} tables, got {len(found)}")
    return [
        replace(one, mapping=mapping, marks=one.marks and replace(one.marks, mapping=mapping))
        for one in found
    ]


def label_in(parts: Sequence[str], classes: Sequence[str]) -> str | None:
    """The class that a file's own name, or else its folder's, says; None: none, or several.

    Of two that fit, one within the other, the longer: ``walking upstairs``, not ``walking``.
    """
    for part in reversed(parts):
        said = _words(part)
        fitting = {name: _words(name) for name in classes if _words(name) and _words(name) <= said}
        longest = [
            name
            for name, words in fitting.items()
            if not any(words < other for other in fitting.values())
        ]
        if len(longest) == 1:
            return longest[0]
        if longest:
            return None
    return None


def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(_CAPITAL.sub(" ", name)))


def _tables(path: Path, *, alone: bool) -> Iterator[RecordingFile]:
    if path.is_dir():
        yield from _in_folder(path)
    elif is_binary(path):
        yield from _binary(path, (path.stem,))
    elif path.suffix.lower() == _LOGGED:
        yield from _logged(str(path), (path.stem,), _opened(path))
    elif path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
        yield from _zipped(path)
    else:
        folder = (
            path.resolve().parent.name
        )  # of several it may say what they are, of one it is chance
        yield _plain(
            path, "" if alone else str(path.parent), (path.stem,) if alone else (folder, path.stem)
        )


def _in_folder(path: Path) -> Iterator[RecordingFile]:
    for file in sorted(path.rglob("*")):
        place = file.relative_to(path)
        hidden = any(part.startswith(".") for part in place.parts)
        if hidden or not file.is_file():
            continue
        parts = (path.resolve().name, *place.with_suffix("").parts)
        if file.suffix.lower() in TABLES:
            yield _plain(file, str(file.parent), parts)
        elif file.suffix.lower() == ".zip":
            yield from _zipped(file)
        elif is_binary(file):
            yield from _binary(file, parts)
        elif file.suffix.lower() == _LOGGED and _is_logged(_opened(file)):
            yield from _logged(str(file), parts, _opened(file))


def _plain(file: Path, folder: str, parts: tuple[str, ...]) -> RecordingFile:
    opened = _timed(_opened(file), parts[-1])
    return RecordingFile(name=str(file), folder=folder, parts=parts, open=opened)


def _opened(file: Path) -> _Opened:
    @contextmanager
    def opened() -> Iterator[ByteStream]:
        with file.open("rb") as stream:
            yield stream

    return opened


def _timed(opened: _Opened, name: str) -> _Opened:
    """Gives a table the times and names that its kind does without."""

    @contextmanager
    def timed() -> Iterator[ByteStream]:
        with opened() as stream:
            yield with_times(stream, name)

    return timed


def _is_logged(opened: _Opened) -> bool:
    with opened() as stream:
        return is_logged(stream)


def _logged(name: str, parts: tuple[str, ...], opened: _Opened) -> Iterator[RecordingFile]:
    """The tables of Sensor Logger's JSON."""

    def table(one: LoggedTable) -> _Opened:
        @contextmanager
        def written() -> Iterator[ByteStream]:
            with opened() as stream:
                yield one.stream(stream)

        return written

    with opened() as stream:
        tables = logged_tables(stream, f"data '{name}'")
    for one in tables:
        yield RecordingFile(
            name=f"{name}: {one.name}", folder=name, parts=(*parts, one.name), open=table(one)
        )


def _binary(path: Path, parts: tuple[str, ...], name: str = "") -> Iterator[RecordingFile]:
    """The tables of a file that is none itself, whose marks are of all of them."""
    tables = binary_tables(path, name)
    name = name or str(path)
    files = [_converted(name, one, parts, alone=len(tables) == 1) for one in tables]
    marks = next((file for file, one in zip(files, tables, strict=True) if one.is_marks), None)
    for file, one in zip(files, tables, strict=True):
        if not one.is_marks:
            yield replace(file, marks=marks)


def _converted(
    name: str, table: BinaryTable, parts: tuple[str, ...], *, alone: bool
) -> RecordingFile:
    @contextmanager
    def opened() -> Iterator[ByteStream]:
        yield table.stream()

    return RecordingFile(
        name=name if alone else f"{name}: {table.name}",
        folder=name,
        parts=(*parts, table.name),
        open=opened,
    )


def _zipped(path: Path) -> Iterator[RecordingFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except UNREADABLE as error:
        raise InputError(f"data '{path}': not a zip that can be read ({error})") from error
    for member in sorted(members, key=lambda one: one.filename):
        place = PurePosixPath(member.filename)
        foreign = place.parts[:1] == ("__MACOSX",) or place.name.startswith(".")
        ending = place.suffix.lower()
        if member.is_dir() or foreign or ending not in (*TABLES, *(BINARY - _OF_SEVERAL), _LOGGED):
            continue
        if member.file_size > max(_SMALL_BYTES, _MOST_RATIO * member.compress_size):
            raise InputError(
                f"data '{path}': '{place}' unpacks {member.compress_size} bytes to "
                f"{member.file_size}, which no recording does"
            )
        name, opened = f"{path}: {place}", _member(path, member)
        parts = (path.stem, *place.with_suffix("").parts)
        if ending in BINARY:
            yield from _unpacked(name, place.name, parts, opened)
            continue
        if ending == _LOGGED:
            if _is_logged(opened):
                yield from _logged(name, parts, opened)
            continue
        yield RecordingFile(
            name=name,
            folder=str(path) if place.parent == PurePosixPath() else f"{path}: {place.parent}",
            parts=parts,
            open=_timed(opened, parts[-1]),
        )


def _unpacked(
    name: str, file_name: str, parts: tuple[str, ...], opened: _Opened
) -> Iterator[RecordingFile]:
    """The tables of a file in a zip, which its package reads from a disk."""
    with tempfile.TemporaryDirectory(prefix="protofleet-") as folder:
        file = Path(folder) / file_name
        with opened() as stream, file.open("wb") as copy:
            while block := stream.read1(_BLOCK_BYTES):
                copy.write(block)
        if is_binary(file):
            yield from _binary(file, parts, name)


def _member(path: Path, member: zipfile.ZipInfo) -> _Opened:
    @contextmanager
    def opened() -> Iterator[ByteStream]:
        with zipfile.ZipFile(path) as archive:
            yield _Member(archive, member, f"data '{path}': '{member.filename}'")

    return opened


class _Member:
    """A zip's member, whose errors name it.

    Raises:
        InputError: it is encrypted, damaged, or packed in a way that is not known.
    """

    def __init__(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> None:
        self._where = where
        self._stream = cast("ByteStream", self._guarded(lambda: archive.open(member)))

    def read1(self, size: int, /) -> bytes:
        """As of ``ByteStream``."""
        return self._guarded(lambda: self._stream.read1(size))

    def _guarded(self, act: Callable[[], _T]) -> _T:
        try:
            return act()
        except UNREADABLE as error:
            raise InputError(f"{self._where} cannot be unpacked ({error})") from error
