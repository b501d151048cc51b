"""A virtual device's recordings: motion → faulty sensor → the real intake → labelled windows."""

from __future__ import annotations

import numpy as np

from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets.device_data import DeviceData
from protofleet.datasets.windows import Windows, split_in_time
from protofleet.edge.data.intake import SensorIntake, Window
from protofleet.errors import InputError
from protofleet.firmware_sim.imu import ImuProfile, readings
from protofleet.firmware_sim.motion import Motion

_BLOCK = 256  # readings handed over at a time, as a driver's FIFO would


def record_windows(
    motion: Motion, imu: ImuProfile, preprocessing: Preprocessing, rng: np.random.Generator
) -> Windows:
    """Windows that a device with this sensor collects while its owner moves.

    Windows in which the activity changes have no label and are left out, as on a real device that
    asks its owner.

    Raises:
        InputError: not a single window came out.
    """
    intake = SensorIntake(preprocessing, {"imu": imu.rate_hz})
    found: list[Window] = []
    for times_s, values, labels in readings(motion, imu, rng):
        for start in range(0, len(times_s), _BLOCK):
            block = slice(start, start + _BLOCK)
            changes = np.flatnonzero(np.diff(labels[block], prepend=-1))
            for change in changes:
                intake.mark(float(times_s[block][change]), int(labels[block][change]))
            found += intake.push("imu", times_s[block], values[block])
    found += intake.flush()
    labelled = [window for window in found if window.label >= 0]
    if not labelled:
        raise InputError(f"sensor: no labelled window in {motion.times_s[-1]:.0f} s of motion")
    starts = np.array([window.start_s for window in labelled])
    overlap_s = (preprocessing.window or 0) / (preprocessing.rate_hz or 1.0)
    return Windows(
        x=np.stack([window.x for window in labelled]),
        y=np.array([window.label for window in labelled], np.int64),
        follows=np.diff(starts, prepend=-np.inf) < overlap_s,
    )


def record_device_data(
    motion: Motion,
    imu: ImuProfile,
    preprocessing: Preprocessing,
    classes: tuple[str, ...],
    seed: tuple[int, int],
) -> DeviceData:
    """What ``record_windows`` found, split in time order into a train and a test part.

    Args:
        motion: what the owner does.
        imu: the sensor.
        preprocessing: the bundle's.
        classes: class names, in the order of the motion's labels.
        seed: of the fleet and of the device: the same pair gives the same windows.
    """
    return split_in_time(
        record_windows(motion, imu, preprocessing, np.random.default_rng(seed)), classes
    )
