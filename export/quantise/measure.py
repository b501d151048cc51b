"""What quantising costs and gives: size, latency and score of each variant, on real data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Precision
from protofleet.errors import ExportError, InputError
from protofleet.export.quantise.draft import Backend, Draft
from protofleet.runtime import Classifier, open_classifier
from protofleet.strategies.scores import confusion, macro_f1

EVALUATION_BATCH = 32
"""As devices score; ALP couples the examples of a batch, so the number belongs to the result."""

_WARM_UP_CALLS = 5
_TIMED_CALLS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One variant in one runtime.

    Attributes:
        precision: of the weights.
        backend: the runtime.
        file_bytes: of the program with its weights.
        p50_ms: median latency of one window on one thread.
        macro_f1: on the test part.
        agreement: share of the test part that gets float32's class.
    """

    precision: Precision
    backend: Backend
    file_bytes: int
    p50_ms: float
    macro_f1: float
    agreement: float


def measure(draft: Draft, x: NDArray[np.float32], y: NDArray[np.int64]) -> list[Measured]:
    """Score and time all variants, float32 first, for each runtime that the bundle has files for.

    Variants of one runtime are timed in turns, so that their ratios hold on a busy machine.

    Args:
        draft: what ``quantise`` made.
        x: of the test part, ``(n, …)``.
        y: its classes, ``(n,)``.

    Raises:
        InputError: there are no examples.
    """
    if not len(y):
        raise InputError("test part: expected examples to score on, got none")
    rows: list[Measured] = []
    for backend in draft.float_bytes:
        rows += _measure_backend(draft, backend, x, y)
    return rows


def _measure_backend(
    draft: Draft,
    backend: Backend,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
) -> list[Measured]:
    baked = [p.precision for p in draft.manifest.programs.values() if p.precision != "float32"]
    precisions: list[Precision] = ["float32", *baked]
    opened = [open_classifier(draft, precision=p, backend=backend) for p in precisions]
    classes = [one.predict(x, batch_size=EVALUATION_BATCH).argmax(axis=1) for one in opened]
    return [
        Measured(
            precision=precision,
            backend=backend,
            file_bytes=_size(draft, precision, backend),
            p50_ms=latency,
            macro_f1=macro_f1(confusion(y, found, len(draft.manifest.classes))),
            agreement=float(np.mean(found == classes[0])),
        )
        for precision, latency, found in zip(
            precisions, _latencies(opened, x), classes, strict=True
        )
    ]


def _size(draft: Draft, precision: Precision, backend: Backend) -> int:
    if precision == "float32":
        return draft.float_bytes[backend]
    program = draft.manifest.programs[f"infer_{precision}"]
    return len(draft.files[str(program.file if backend == "onnx" else program.tflite)])


def _latencies(opened: Sequence[Classifier], x: NDArray[np.float32]) -> list[float]:
    """Median milliseconds of one window for each classifier."""
    spent = np.empty((_WARM_UP_CALLS + _TIMED_CALLS, len(opened)))
    for call, row in enumerate(spent):
        window = x[call % len(x)][np.newaxis]
        for index, one in enumerate(opened):
            started = time.perf_counter()
            one.predict(window)
            row[index] = time.perf_counter() - started
    medians: list[float] = (np.median(spent[_WARM_UP_CALLS:], axis=0) * 1e3).tolist()
    return medians


def doubts(*, scored: int, allowed_points: float, windows: int, asked: int) -> list[str]:
    """Why the numbers may say little, each with its remedy.

    Args:
        scored: test examples.
        allowed_points: of macro-F1, on a scale to 100.
        windows: that calibrated.
        asked: how many should have.
    """
    found = []
    if scored * allowed_points < 100:
        found.append(
            f"one of {scored} test examples weighs about {100 / scored:.2g} points, more than the "
            f"allowed loss of {allowed_points:g}: score on more test examples"
        )
    if windows < asked:
        found.append(
            f"the train part has only {windows} of the {asked} windows asked for: calibrate on "
            "more data, or ask for fewer with --calibration"
        )
    return found


def check_loss(rows: Iterable[Measured], allowed_points: float) -> None:
    """Refuse variants that score worse than float32 in the same runtime.

    Args:
        rows: what ``measure`` gave.
        allowed_points: of macro-F1, on a scale to 100.

    Raises:
        ExportError: a variant loses more; the message names all that do.
    """
    rows = list(rows)
    reference = {row.backend: row for row in rows if row.precision == "float32"}
    worse = []
    for row in rows:
        loss = 100 * (reference[row.backend].macro_f1 - row.macro_f1)
        # NaN (no class present) is a loss too.
        if not loss <= allowed_points:
            worse.append(
                f"{row.precision} in {row.backend} scores {100 * row.macro_f1:.2f} where float32 "
                f"scores {100 * reference[row.backend].macro_f1:.2f}"
            )
    if worse:
        raise ExportError(
            f"macro-F1: expected a loss of at most {allowed_points:g} points, but "
            f"{'; '.join(worse)}; nothing was written. Leave the variant out with --precision, "
            "calibrate on more windows with --calibration, or allow it with --allow-loss POINTS"
        )
