"""Two files of ``protofleet bench --json`` side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from protofleet.benchmarks._rows import Row, aligned, short
from protofleet.benchmarks.device.compare import compare_devices
from protofleet.benchmarks.device.report import DeviceReport, is_device_report, read_report
from protofleet.benchmarks.kernels.comparison import KernelRow
from protofleet.errors import InputError, MissingDataError

_NOTABLE = 1.1
_HEAD = (
    *("kernel", "case", "threads", "baseline"),
    *("ours ms A", "B", "B / A"),
    *("speedup A", "B", "B / A", ""),
)


class _Key(NamedTuple):
    group: str
    case: str
    threads: int | None
    baseline: str

    @property
    def label(self) -> str:
        threads = "" if self.threads is None else f", threads {self.threads}"
        return f"{self.group} {self.case}{threads}{f', {self.baseline}' if self.baseline else ''}"


class _Figures(NamedTuple):
    """Ours in milliseconds, and baseline ÷ ours where there is a baseline."""

    ours_ms: float
    speedup: float | None


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    machine: dict[str, str]
    rows: list[dict[str, Any]]


class _Run(NamedTuple):
    letter: str
    path: Path
    machine: Mapping[str, str]
    figures: Mapping[_Key, _Figures]


def compare(first: Path, second: Path) -> list[str]:
    """Lines for a person: machines where they differ, rows side by side, rows of one file alone.

    Raises:
        InputError: a file is not what ``bench --json`` writes, no row is in both, or only one is
            of ``bench device``.
    """
    contents = [_content(path) for path in (first, second)]
    devices = [is_device_report(content) for content in contents]
    if all(devices):
        reports = map(read_report, (first, second), contents)
        return _device_lines(*zip((first, second), reports, strict=True))
    if any(devices):
        raise InputError(
            f"benchmark files '{first}' and '{second}': expected two of 'bench device' or none"
        )
    a, b = (
        _load(path, letter, content)
        for path, letter, content in zip((first, second), "AB", contents, strict=True)
    )
    both = [key for key in a.figures if key in b.figures]
    if not both:
        raise InputError(f"benchmark files '{first}' and '{second}': no row is in both")
    lines = [(*_words(key), *_cells(a.figures[key], b.figures[key])) for key in both]
    marked = sum(1 for line in lines if line[-1])
    return [
        *_machines(a, b),
        *aligned([_HEAD, *lines], right=(2, 4, 5, 6, 7, 8, 9)),
        *_alone(a, b),
        *_alone(b, a),
        f"{marked} of {len(both)} rows changed by more than {100 * (_NOTABLE - 1):.0f} %",
    ]


def _device_lines(a: tuple[Path, DeviceReport], b: tuple[Path, DeviceReport]) -> list[str]:
    runs = [
        _Run(letter, path, report.machine, {})
        for letter, (path, report) in zip("AB", (a, b), strict=True)
    ]
    return [*_machines(*runs)[:-1], *compare_devices(a[1], b[1])]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingDataError(f"benchmark file '{path}': no such file") from None
    except OSError as error:
        raise InputError(f"benchmark file '{path}': cannot be read ({error.strerror})") from error


def _load(path: Path, letter: str, content: bytes) -> _Run:
    try:
        saved = msgspec.json.decode(content, type=_Saved)
        figures = dict(found for row in saved.rows if (found := _read(row)) is not None)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"benchmark file '{path}': expected what 'protofleet bench --json' writes: {error}"
        ) from error
    return _Run(letter, path, saved.machine, figures)


def _read(row: Mapping[str, Any]) -> tuple[_Key, _Figures] | None:
    """A row's name and figures; None for one without a time (memory alone)."""
    if "kernel" in row:
        one = msgspec.convert(row, KernelRow)
        key = _Key(one.kernel, one.case, one.threads, one.baseline)
        return key, _Figures(one.ours_ms, one.speedup)
    other = msgspec.convert(row, Row)
    if other.ours_ms is None:
        return None
    key = _Key(other.bench, other.case, other.threads, other.baseline or "")
    return key, _Figures(other.ours_ms, 1 / other.ratio if other.ratio else None)


def _alone(one: _Run, other: _Run) -> list[str]:
    missing = [key for key in one.figures if key not in other.figures]
    return [f"only in {one.letter}: {key.label}" for key in missing]


def _machines(a: _Run, b: _Run) -> list[str]:
    names = {**a.machine, **b.machine}
    differ = [name for name in names if a.machine.get(name) != b.machine.get(name)]
    lines = [f"{run.letter}: {run.path}" for run in (a, b)]
    for name in differ:
        mine, other = (run.machine.get(name, "not said") for run in (a, b))
        lines.append(f"machines differ in {name}: A {mine}, B {other}")
    return [*lines, ""]


def _words(key: _Key) -> tuple[str, ...]:
    return key.group, key.case, "" if key.threads is None else str(key.threads), key.baseline


def _cells(a: _Figures, b: _Figures) -> tuple[str, ...]:
    time = b.ours_ms / a.ours_ms if a.ours_ms else None
    speedup = b.speedup / a.speedup if a.speedup and b.speedup else None
    changes = (_change(time, "faster", "slower"), _change(speedup, "speedup down", "speedup up"))
    return (
        _text(a.ours_ms),
        _text(b.ours_ms),
        _text(time),
        _text(a.speedup),
        _text(b.speedup),
        _text(speedup),
        ", ".join(change for change in changes if change),
    )


def _change(ratio: float | None, below: str, above: str) -> str:
    if ratio is None or 1 / _NOTABLE <= ratio <= _NOTABLE:
        return ""
    return above if ratio > 1 else below


def _text(value: float | None) -> str:
    return "" if value is None else short(value)
