"""A device report as tables for a person, each narrow enough for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from protofleet.benchmarks._rows import aligned, short
from protofleet.benchmarks.device.report import (
    RANDOM,
    DeviceReport,
    DeviceRun,
    Phase,
    StrategyTraffic,
)
from protofleet.wire import codecs

Cells = tuple[str, ...]

_WHAT = ("backend", "precision", "threads")
_REASON_CHARS = 240
_BUSY = 0.3  # of the cores
_ONCE = ("import", "verify", "open", "infer", "stream", "open training")


def lines(report: DeviceReport) -> Iterator[str]:
    """The whole report."""
    yield from _head(report)
    measured = [run for run in report.runs if run.phases]
    if measured:
        is_scored = any(run.score for run in measured)
        head = _inference_head(report, is_scored=is_scored)
        cells = partial(_inference, is_scored=is_scored)
        yield from _section("Loading and inference", head, measured, cells)
        yield from _training(measured)
        yield from _memory(measured)
        yield from _sizes(measured)
        yield from _energy(report, measured)
    yield from _traffic(report.traffic)
    yield from _missing(report.runs)


def _head(report: DeviceReport) -> Iterator[str]:
    bundle = report.bundle
    yield " · ".join(f"{name} {value}" for name, value in report.machine.items())
    yield (
        f"bundle {bundle.name} {bundle.digest[:16]} · {bundle.params:,} parameters · "
        f"{bundle.bytes / 1e3:,.0f} kB · strategy {bundle.strategy}"
    )
    said = "random numbers of the declared shape" if report.data == RANDOM else report.data
    yield f"examples: {said} · seed {report.settings.seed}"
    yield from _busy(report)


def _busy(report: DeviceReport) -> Iterator[str]:
    load = report.load_average
    if load > _BUSY * int(report.machine["cores"]):
        yield (
            f"NOTE: other work kept this machine busy (load {load:g}, {report.machine['cores']} "
            "cores): times are longer than on a quiet one"
        )


def _section(
    title: str,
    head: Cells,
    runs: Sequence[DeviceRun],
    cells: Callable[[DeviceRun], Cells],
    note: str = "",
) -> Iterator[str]:
    yield ""
    yield f"{title}{f' ({note})' if note else ''}"
    rows = [(*_what(run), *cells(run)) for run in runs]
    yield from aligned([head, *rows], right=range(2, len(head)), kept=len(_WHAT))


def _what(run: DeviceRun) -> Cells:
    return run.what.backend, run.what.precision, str(run.what.threads)


def _inference_head(report: DeviceReport, *, is_scored: bool) -> Cells:
    batch = report.settings.stream_batch
    scores = ("macro-F1", "examples") if is_scored else ()
    return (*_WHAT, "load ms", "window p50", "p95", "p99", "cpu ms", f"1/s by {batch}", *scores)


def _inference(run: DeviceRun, *, is_scored: bool) -> Cells:
    one, stream, score = run.phase("infer"), run.phase("stream"), run.score
    told = (f"{score.macro_f1:.4f}", str(score.examples)) if score else ("-", "-")
    return (
        _number(run.load_ms),
        *_percentiles(one, "p50", "p95", "p99"),
        _number(one.cpu_ms if one else None),
        _number(stream.per_s if stream else None),
        *(told if is_scored else ()),
    )


def _training(runs: Sequence[DeviceRun]) -> Iterator[str]:
    trained = [run for run in runs if run.objective]
    batches = sorted({p.batch or 0 for run in trained for p in run.phases if p.name == "train"})
    if not trained:
        return
    head = (*_WHAT, *(text for n in batches for text in (f"batch {n} p50", "p95")), "program")

    def cells(run: DeviceRun) -> Cells:
        times = [_percentiles(run.phase(f"train {n}"), "p50", "p95") for n in batches]
        kernels = " (kernels)" if run.uses_kernels else ""
        return (*(text for pair in times for text in pair), f"{run.objective}{kernels}")

    note = "forward and backward of one batch, no optimiser; ms"
    yield from _section("Training step", head, trained, cells, note)


def _memory(runs: Sequence[DeviceRun]) -> Iterator[str]:
    keys = [key for key in _ONCE if any(run.phase(key) for run in runs)]
    trains = {p.batch or 0: p.key for run in runs for p in run.phases if p.name == "train"}
    keys += [trains[batch] for batch in sorted(trains)]

    def cells(run: DeviceRun) -> Cells:
        return tuple(_megabytes(run.phase(key)) for key in keys)

    methods = "; ".join(dict.fromkeys(run.memory for run in runs))
    yield from _section("Peak resident memory, MB", (*_WHAT, *keys), runs, cells, methods)


def _sizes(runs: Sequence[DeviceRun]) -> Iterator[str]:
    shown = {(run.what.backend, run.what.precision): run for run in runs}

    def cells(run: DeviceRun) -> Cells:
        programs = sum(run.program_bytes.values())
        sizes = (programs, run.weight_bytes, programs + run.weight_bytes)
        return (*(f"{size / 1e3:,.1f}" for size in sizes), ", ".join(run.program_bytes))

    yield ""
    yield "On disk, kB"
    head = ("backend", "precision", "programs", "weights", "together", "files")
    rows = [(*what, *cells(run)) for what, run in shown.items()]
    yield from aligned([head, *rows], right=(2, 3, 4))


def _energy(report: DeviceReport, runs: Sequence[DeviceRun]) -> Iterator[str]:
    if report.energy.source is None:
        yield ""
        yield f"Energy: {report.energy.reason}"
        return
    keys = [
        key
        for key in dict.fromkeys(phase.key for run in runs for phase in run.phases)
        if key in {"infer", "stream"} or key.startswith("train")
    ]

    def cells(run: DeviceRun) -> Cells:
        return tuple(_millijoules(run.phase(key)) for key in keys)

    note = f"in brackets less idle power of {report.energy.idle_w:.2f} W; {report.energy.source}"
    yield from _section("Energy of a call, mJ", (*_WHAT, *keys), runs, cells, note)


def _traffic(rows: Sequence[StrategyTraffic]) -> Iterator[str]:
    totals = {(row.strategy, row.codec): row.total for row in rows if row.total is not None}
    base = totals.get(("fedavg", codecs.RAW))
    names = list(dict.fromkeys(codec for _, codec in totals))
    if totals:
        share = "; behind each its share of raw FedAvg's" if base else ""
        yield ""
        yield f"Bytes of a device in a round, both ways, kB (blobs of the second round{share})"
        cells = {
            strategy: tuple(_kilobytes(totals.get((strategy, name)), base) for name in names)
            for strategy, _ in totals
        }
        table = [("strategy", *names), *((name, *found) for name, found in cells.items())]
        yield from aligned(table, right=range(1, len(names) + 1))
    absent = [row for row in rows if row.total is None]
    if absent:
        yield ""
        yield "Strategies that this bundle cannot run"
        yield from (f"  {row.strategy}: {_shortened(row.reason)}" for row in absent)


def _kilobytes(total: int | None, base: int | None) -> str:
    if total is None:
        return ""
    return f"{total / 1e3:,.1f}{f' {total / base:5.3f}' if base else ''}"


def _missing(runs: Sequence[DeviceRun]) -> Iterator[str]:
    for status, title in (("failed", "Failed"), ("absent", "Absent")):
        reasons: dict[str, list[str]] = {}
        for run in runs:
            if run.status == status:
                reasons.setdefault(run.reason, []).append(run.what.label)
        if reasons:
            yield ""
            yield title
        for reason, labels in reasons.items():
            yield f"  {'; '.join(labels)}: {_shortened(reason)}"


def _shortened(reason: str) -> str:
    """The file has all of it."""
    return textwrap.shorten(reason, _REASON_CHARS, placeholder=" …")


def _percentiles(phase: Phase | None, *names: str) -> Cells:
    return tuple(_number(phase.ms.get(name) if phase else None) for name in names)


def _megabytes(phase: Phase | None) -> str:
    if phase is None or phase.peak_rss_bytes is None:
        return ""
    return f"{phase.peak_rss_bytes / 1e6:.1f}"


def _millijoules(phase: Phase | None) -> str:
    if phase is None or phase.energy_j is None or phase.net_energy_j is None:
        return ""
    return f"{short(1e3 * phase.energy_j)} ({short(1e3 * phase.net_energy_j)})"


def _number(value: float | None) -> str:
    return "" if value is None else short(value)
