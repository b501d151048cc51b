"""Your own sensor on a Raspberry Pi: readings become windows, windows train the bundle's model.

    pip install 'protofleet[edge]'        # no PyTorch; an MPU-6050 also needs: pip install smbus2
    python sensors_on_a_pi.py harness.pfb --seconds 120

The bundle takes windows of acceleration in g and turning in rad/s. No sensor: it is simulated.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import protofleet as pf
from protofleet.datasets.windows import Windows, split_in_time
from protofleet.edge.data.intake import SensorIntake

Readings = Iterator[tuple[np.ndarray, np.ndarray, int]]
RATE_HZ = 100.0


def read_mpu6050(seconds: float, classes: tuple[str, ...]) -> Readings:
    """Second by second: times in s (n,), values (n, 6), and the number of what the owner does."""
    from smbus2 import SMBus  # noqa: PLC0415 - only where there is a sensor

    with SMBus(1) as bus:
        bus.write_byte_data(0x68, 0x6B, 0)  # wake up
        for label, name in enumerate(classes):
            input(f"now do '{name}', then press return ")
            for _ in range(round(seconds / len(classes))):
                times, rows = [], []
                for _ in range(round(RATE_HZ)):
                    raw = struct.unpack(">7h", bytes(bus.read_i2c_block_data(0x68, 0x3B, 14)))
                    times.append(time.monotonic())
                    rows.append([*np.divide(raw[:3], 16384), *np.radians(raw[4:]) / 131])
                    time.sleep(1 / RATE_HZ)
                yield np.array(times), np.array(rows), label


def simulated(seconds: float, classes: tuple[str, ...]) -> Readings:
    """The same, of a person who does not exist."""
    rng = np.random.default_rng(1)
    for second in range(round(seconds)):
        label = second * len(classes) // round(seconds)
        times = second + np.arange(100) / RATE_HZ
        move = label * np.sin(2 * np.pi * (1 + label) * times)[:, np.newaxis]
        yield times, move * [0.3, 0.1, 0.5, 1.0, 0.5, 0.2] + rng.normal(0, 0.05, (100, 6)), label


def main(bundle: Path, seconds: float, out: Path) -> None:
    """Record, save what ``protofleet device join`` takes, and train at once, alone."""
    model, windows = pf.open_bundle(bundle), []
    sensor = read_mpu6050 if find_spec("smbus2") and Path("/dev/i2c-1").exists() else simulated
    intake = SensorIntake(model.preprocessing, {"imu": RATE_HZ})
    for times, values, label in sensor(seconds, model.names):
        intake.mark(float(times[0]), label)
        windows += intake.push("imu", times, values)
    known = [one for one in windows + intake.flush() if one.label >= 0]
    length_s = len(known[0].x) / (model.preprocessing.rate_hz or RATE_HZ)
    follows = np.diff([one.start_s for one in known], prepend=-np.inf) < length_s
    x, y = np.stack([one.x for one in known]), np.array([one.label for one in known])
    own = split_in_time(Windows(x=x, y=y, follows=follows), model.names)
    own.save(out)
    personal = model.train(own, epochs=20, optimiser={"kind": "adam", "lr": 0.003})
    before, now = (one.score(own).scores["accuracy"] for one in (model, personal))
    print(f"{len(own.y_train)} windows to train on; accuracy {before:.2f} before, {now:.2f} now")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=Path("mine.npz"))
    main(**vars(parser.parse_args()))
