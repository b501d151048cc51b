"""A virtual inertial sensor: motion in, readings with a real sensor's faults out."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.firmware_sim.motion import Motion

_LONGEST_STEP_S = 1.0  # a longer step in a motion's clock is a pause between recordings


class ImuProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sensor's rate and faults.

    Attributes:
        rate_hz: readings per second.
        noise_g, noise_rad_s: standard deviation of white noise on acceleration and rotation.
        bias_g, bias_rad_s: standard deviation of the constant offset drawn once per device.
        jitter_s: standard deviation of a reading's true time about its nominal one.
        gap_every_s: mean time between losses of readings; 0: none.
        gap_s: length of a loss.
    """

    rate_hz: float = 50.0
    noise_g: float = 0.0
    noise_rad_s: float = 0.0
    bias_g: float = 0.0
    bias_rad_s: float = 0.0
    jitter_s: float = 0.0
    gap_every_s: float = 0.0
    gap_s: float = 0.5

    def __post_init__(self) -> None:
        if self.rate_hz <= 0:
            raise InputError(f"imu.rate_hz: expected > 0, got {self.rate_hz}")
        for name in self.__struct_fields__:
            if getattr(self, name) < 0:
                raise InputError(f"imu.{name}: expected >= 0, got {getattr(self, name)}")


def readings(
    motion: Motion, profile: ImuProfile, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float32], NDArray[np.int64]]]:
    """Sample a motion, one recording after the other.

    Yields:
        ``(times_s (n,), values (n, 6) float32, labels (n,))`` of one recording; times are those
        of the sensor's clock and include its jitter.
    """
    spread = np.repeat([profile.noise_g, profile.noise_rad_s], 3)
    bias = rng.normal(0, 1, 6) * np.repeat([profile.bias_g, profile.bias_rad_s], 3)
    pauses = np.flatnonzero(np.diff(motion.times_s) > _LONGEST_STEP_S) + 1
    for rows in np.split(np.arange(len(motion.times_s)), pauses):
        clock_s = motion.times_s[rows]
        count = int(np.floor((clock_s[-1] - clock_s[0]) * profile.rate_hz + 1e-9)) + 1
        times_s = clock_s[0] + np.arange(count) / profile.rate_hz
        # A quarter of a period at most: a sensor's interrupt never overtakes the next.
        limit_s = 0.25 / profile.rate_hz
        times_s = times_s + np.clip(rng.normal(0, profile.jitter_s, count), -limit_s, limit_s)
        kept = _outside_gaps(times_s, profile, rng)
        times_s = times_s[kept]
        values = _interpolate(clock_s, motion.values[rows], times_s) + bias
        values += rng.normal(0, 1, values.shape) * spread
        nearest = np.searchsorted(clock_s, times_s).clip(0, len(rows) - 1)
        yield times_s, values.astype(np.float32), motion.labels[rows][nearest]


def _outside_gaps(
    times_s: NDArray[np.float64], profile: ImuProfile, rng: np.random.Generator
) -> NDArray[np.bool_]:
    kept = np.ones(len(times_s), bool)
    if not profile.gap_every_s:
        return kept
    length_s = times_s[-1] - times_s[0]
    for start_s in rng.uniform(
        times_s[0], times_s[-1], rng.poisson(length_s / profile.gap_every_s)
    ):
        kept &= (times_s < start_s) | (times_s >= start_s + profile.gap_s)
    kept[0] = True  # a recording never vanishes whole
    return kept


def _interpolate(
    clock_s: NDArray[np.float64], values: NDArray[np.float32], at_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Catmull-Rom spline through equidistant samples: exact at the samples, smooth between."""
    step_s = clock_s[1] - clock_s[0]
    position = ((at_s - clock_s[0]) / step_s).clip(0, len(clock_s) - 1)
    nearest = np.rint(position)
    position = np.where(np.abs(position - nearest) < 1e-6, nearest, position)
    left = np.floor(position).astype(np.int64).clip(0, len(clock_s) - 2)
    t = (position - left)[:, np.newaxis]
    index = (left[:, np.newaxis] + np.arange(-1, 3)).clip(0, len(clock_s) - 1)
    a, b, c, d = (values[index[:, k]].astype(np.float64) for k in range(4))
    slope = (c - a) / 2
    curve = a - 2.5 * b + 2 * c - d / 2
    twist = (d - a) / 2 + 1.5 * (b - c)
    spline: NDArray[np.float64] = b + t * (slope + t * (curve + t * twist))
    return spline
