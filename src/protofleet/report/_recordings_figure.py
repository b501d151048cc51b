"""The picture of what was found in recordings: their channels over time, and which class when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest
from protofleet.edge.data.examples import Examples
from protofleet.edge.predictions import NO_LABEL
from protofleet.errors import InputError
from protofleet.report._figures import BLUE, GREEN, INK, ORANGE, PURPLE, RED, SKY, STYLE

_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
_MOST_PANELS, _MOST_CHANNELS = 12, 9
_WIDTH_IN, _CHANNEL_IN, _FRAME_IN = 9.0, 0.28, 0.9
_APART = 6.0
"""Standard deviations from one channel's line to the next; what is farther off is cut."""


def draw(
    recordings: Sequence[tuple[str, Sequence[Examples]]], manifest: Manifest, path: Path
) -> None:
    """Draw a panel for each recording of sensors, the first dozen.

    Args:
        recordings: name and windows of each.
        manifest: the bundle's.
        path: file to write, .png or .svg.

    Raises:
        InputError: none has times, as examples in rows have not.
    """
    timed = [(name, _Windows(blocks)) for name, blocks in recordings if _has_times(blocks)]
    if not timed:
        raise InputError("--plot: expected sensor samples with times, got examples without")
    shown = timed[:_MOST_PANELS]
    channels = min(len(manifest.preprocessing.channels), _MOST_CHANNELS)
    with mpl.rc_context(STYLE):
        size = (_WIDTH_IN, (_CHANNEL_IN * channels + _FRAME_IN) * len(shown))
        figure: Any = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(shown), 1, squeeze=False).flatten()
        for axes, (name, windows) in zip(panels, shown, strict=True):
            _panel(axes, name, windows, manifest)
        panels[-1].set_xlabel("seconds since its first window")
        handles = [
            Patch(color=_colour(k), alpha=0.3, label=one) for k, one in enumerate(manifest.classes)
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=6, fontsize=8)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=110, metadata=metadata)


def _has_times(blocks: Sequence[Examples]) -> bool:
    return any(one.start_s is not None and len(one.start_s) for one in blocks)


class _Windows:
    """A recording's windows in one.

    Attributes:
        x: ``(n, window, channels)``, normalised.
        y: ``(n,)`` class indices, ``(n, S)`` of steps, or ``(n, T)`` targets.
        start_s: ``(n,)`` seconds since the first.
    """

    def __init__(self, blocks: Sequence[Examples]) -> None:
        known = [one for one in blocks if one.start_s is not None and len(one.start_s)]
        self.x = np.concatenate([one.x for one in known])
        self.y = np.concatenate([one.y for one in known])
        times = np.concatenate([one.start_s for one in known if one.start_s is not None])
        self.start_s: NDArray[np.float64] = times - times[0]


def _panel(axes: Any, name: str, windows: _Windows, manifest: Manifest) -> None:
    inputs = manifest.preprocessing
    names = inputs.channels[:_MOST_CHANNELS]
    rate = inputs.rate_hz or 1.0
    length_s = (inputs.window or 1) / rate
    places = -_APART * np.arange(len(names))
    for times, values in _lines(windows, rate):
        lines = np.clip(values[:, : len(names)], -_APART / 2, _APART / 2) + places
        axes.plot(times, lines, color=INK, lw=0.5)
    if manifest.classes:
        for start, labels in zip(windows.start_s.tolist(), windows.y, strict=True):
            steps = np.atleast_1d(labels)
            bounds = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
            for first, end in pairwise(bounds):
                if (label := int(steps[first])) != NO_LABEL:
                    begin, stop = (start + length_s * at / len(steps) for at in (first, end))
                    axes.axvspan(begin, stop, color=_colour(label), alpha=0.15, lw=0)
    axes.set_yticks(places, names, fontsize=7)
    axes.set_title(f"{name}: {len(windows.y)} windows", loc="left", fontsize=8)
    axes.margins(x=0.01)


def _lines(
    windows: _Windows, rate_hz: float
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Times and values from each window up to the next, a line for each stretch without a gap."""
    length = windows.x.shape[1]
    steps = np.diff(windows.start_s, append=np.inf)
    counts = np.where(
        (steps > 0) & (steps * rate_hz < length + 1), np.round(steps * rate_hz), length
    ).astype(int)
    ends = np.flatnonzero((steps <= 0) | (steps * rate_hz >= length + 1))
    for first, last in zip(np.concatenate([[0], ends[:-1] + 1]), ends, strict=True):
        rows = range(int(first), int(last) + 1)
        values = np.concatenate([windows.x[k, : counts[k]] for k in rows])
        yield windows.start_s[first] + np.arange(len(values)) / rate_hz, values


def _colour(label: int) -> str:
    return _COLOURS[label % len(_COLOURS)]
