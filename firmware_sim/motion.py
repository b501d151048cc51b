"""What a virtual device's owner does: recorded or synthesised motion, with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets.arrays import read_arrays

GRAVITY_AXES = 3  # channels 0-2 acceleration in g, 3-5 angular velocity in rad/s
_PAUSE_S = 2.0  # between recordings: long enough for the intake to see a gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """Continuous motion, to be sampled by any sensor.

    Attributes:
        times_s: ``(n,) float64``, increasing; pauses of over a second separate recordings.
        values: ``(n, 6) float32``: acceleration (g) and angular velocity (rad/s).
        labels: ``(n,) int64`` class index of every sample.
    """

    times_s: NDArray[np.float64]
    values: NDArray[np.float32]
    labels: NDArray[np.int64]

    def save(self, path: Path) -> None:
        """Write an ``.npz`` that ``load_motion`` reads."""
        with path.open("wb") as file:
            np.savez(file, times_s=self.times_s, values=self.values, labels=self.labels)


def load_motion(path: Path) -> Motion:
    """Read what ``Motion.save`` wrote (arrays only, no pickles).

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz`` of these arrays.
    """
    return Motion(**read_arrays(path, ("times_s", "values", "labels")))


def join_recordings(
    recordings: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]], rate_hz: float
) -> Motion:
    """Recordings one after the other on one clock, each starting on a multiple of a period.

    Args:
        recordings: pairs of values ``(n, 6) float32`` and labels ``(n,) int64``.
        rate_hz: of all of them.
    """
    times, start = [], 0
    for values, _ in recordings:
        times.append((start + np.arange(len(values))) / rate_hz)
        start += len(values) + round(_PAUSE_S * rate_hz)
    return Motion(
        times_s=np.concatenate(times),
        values=np.concatenate([values for values, _ in recordings]),
        labels=np.concatenate([labels for _, labels in recordings]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gait:
    """How an activity moves the body: cadence in Hz, acceleration in g, turning in rad/s."""

    cadence_hz: float
    sway_g: float
    turn: float
    posture: tuple[float, float, float]


# Rounded from what phones on a waist show: stairs are slower and harder than level walking,
# rest differs by the direction of gravity alone.
_GAITS = {
    "walking": _Gait(cadence_hz=1.9, sway_g=0.25, turn=0.8, posture=(1.0, 0.1, 0.0)),
    "upstairs": _Gait(cadence_hz=1.5, sway_g=0.22, turn=1.0, posture=(0.97, 0.1, 0.2)),
    "downstairs": _Gait(cadence_hz=2.1, sway_g=0.40, turn=1.1, posture=(0.97, 0.1, -0.2)),
    "sitting": _Gait(cadence_hz=0.3, sway_g=0.004, turn=0.02, posture=(0.9, 0.2, 0.4)),
    "standing": _Gait(cadence_hz=0.4, sway_g=0.006, turn=0.03, posture=(1.0, -0.1, 0.1)),
    "laying": _Gait(cadence_hz=0.3, sway_g=0.003, turn=0.01, posture=(0.0, 0.6, 0.8)),
}
ACTIVITIES = tuple(_GAITS)


def synthesise(seconds_each: float, rng: np.random.Generator, *, rate_hz: float = 200.0) -> Motion:
    """A person's motion through all activities of ``ACTIVITIES``, in random order.

    Gait is a sum of four harmonics with a person's own cadence, strength and phases; posture turns
    gravity. It rehearses the road from sensor to model; it is no substitute for recordings.
    """
    body = rng.normal(1.0, 0.08, 3)
    tilt = rng.normal(0.0, 0.15, GRAVITY_AXES)
    recordings = []
    for label in rng.permutation(len(ACTIVITIES)):
        gait = _GAITS[ACTIVITIES[label]]
        values = _walk(gait, body, tilt, np.arange(round(seconds_each * rate_hz)) / rate_hz, rng)
        recordings.append((values, np.full(len(values), label, np.int64)))
    return join_recordings(recordings, rate_hz)


def _walk(
    gait: _Gait,
    body: NDArray[np.float64],
    tilt: NDArray[np.float64],
    times_s: NDArray[np.float64],
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    wander = np.cumsum(rng.normal(0, 0.02, len(times_s))) * np.sqrt(times_s[1] - times_s[0])
    phase = 2 * np.pi * gait.cadence_hz * body[0] * times_s + wander
    strength = rng.normal(0, 1, (4, 6)) / np.arange(1, 5)[:, np.newaxis]
    offsets = rng.uniform(0, 2 * np.pi, (4, 6))
    order = np.arange(1, 5)[:, np.newaxis, np.newaxis]
    waves = np.sin(order * phase[:, np.newaxis] + offsets[:, np.newaxis])
    motion = np.einsum("htc,hc->tc", waves, strength)
    motion *= np.repeat([gait.sway_g * body[1], gait.turn * body[2]], 3)
    posture = np.asarray(gait.posture) + tilt
    motion[:, :GRAVITY_AXES] += posture / np.linalg.norm(posture)
    values: NDArray[np.float32] = motion.astype(np.float32)
    return values
