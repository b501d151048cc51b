"""Owners who label badly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from protofleet.datasets.device_data import DeviceData
from protofleet.errors import InputError


def with_wrong_labels(data: DeviceData, share: float, rng: np.random.Generator) -> DeviceData:
    """The same with a share of the training labels drawn at random; those that test are right.

    Raises:
        InputError: the data have no classes.
    """
    if not data.classes:
        raise InputError("expected data with classes")
    y = data.y_train
    drawn = rng.random(len(y)) < share
    return replace(data, y_train=np.where(drawn, rng.integers(0, len(data.classes), len(y)), y))
