"""A device's data from a recording: labelled examples, split into a train and a test part."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest
from protofleet.datasets import DeviceData
from protofleet.datasets.windows import parts_in_time
from protofleet.edge.data.examples import Examples
from protofleet.edge.personal import checked_examples
from protofleet.edge.predictions import known_rows
from protofleet.errors import InputError

_log = logging.getLogger(__name__)


def to_device_data(
    blocks: Iterable[Examples], manifest: Manifest, *, raw: bool, test_share: float
) -> DeviceData:
    """The labelled examples among ``blocks``, each class split in the order in which it comes.

    The first of each class train and the last test. A test window that overlaps a training window
    is left out, and so is a window whose label changes or is not known.

    Args:
        blocks: from ``load_examples`` or ``read_csv``.
        manifest: the bundle's.
        raw: examples that are no windows of a stream are readings as they come.
        test_share: part of each class's examples for the test, from 0 to below 1.

    Raises:
        InputError: the bundle has no classes, no example has a label, or one does not fit.
    """
    labelled = Labelled(manifest, raw=raw)
    empty = np.zeros((0, *manifest.preprocessing.input_shape), np.float32)
    x = np.concatenate([empty, *map(labelled.taken, blocks)])
    train, test = labelled.parts(test_share)
    return DeviceData(
        x_train=x[train],
        y_train=labelled.y[train],
        x_test=x[test],
        y_test=labelled.y[test],
        classes=manifest.classes,
    )


class Labelled:
    """Picks examples with a label, and keeps of each its class and whether it overlaps another.

    Args:
        manifest: the bundle's.
        raw: as of ``to_device_data``.

    Raises:
        InputError: the bundle has no classes.
    """

    def __init__(self, manifest: Manifest, *, raw: bool) -> None:
        if not manifest.classes:
            raise InputError(
                f"recording: expected a bundle with classes, got one of task {manifest.task}; save "
                "its data as an .npz (docs/device.md)"
            )
        inputs = manifest.preprocessing
        self._inputs, self._raw = inputs, raw
        self._length_s = inputs.window / inputs.rate_hz if inputs.window and inputs.rate_hz else 0.0
        self._y, self._follows = array("i"), array("b")
        self._count, self._last_s = 0, -np.inf
        self._steps = manifest.steps

    @property
    def y(self) -> NDArray[np.int64]:
        """``(n,)`` class indices of those that have been taken, of a segmentation ``(n, S)``."""
        found = np.array(self._y, np.int64)
        return found.reshape(-1, self._steps) if self._steps else found

    def taken(self, block: Examples) -> NDArray[np.float32]:
        """Those of a block that have a label, ``(n, *input_shape)``, as the model takes them.

        Raises:
            InputError: one does not fit the bundle.
        """
        x = checked_examples(block.x, self._inputs, raw=self._raw and not block.normalised)
        if self._steps and block.y.ndim == 1:
            raise InputError(
                "recording: a class for each step is known of windows of a stream alone; save x "
                "(n, …) and y (n, steps) as an .npz (docs/device.md)"
            )
        known = known_rows(block.y)
        self._count += len(known)
        # Examples that are no windows of a stream overlap no other.
        start_s = np.full(len(known), np.inf) if block.start_s is None else block.start_s
        start_s = start_s[known]
        with np.errstate(invalid="ignore"):
            steps_s = np.diff(start_s, prepend=self._last_s)
        # A start before the last one is by a clock that was set back.
        follows = (steps_s > 0) & (steps_s < self._length_s)
        self._last_s = float(start_s[-1]) if len(start_s) else self._last_s
        self._y.frombytes(block.y[known].astype(np.intc).tobytes())
        self._follows.frombytes(follows.tobytes())
        return x if known.all() else x[known]

    def parts(self, test_share: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of those that have been taken train, and which test; tells how many have no label.

        Raises:
            InputError: none has been taken.
        """
        follows = np.frombuffer(self._follows, np.bool_)
        has_one = "each of its steps has one" if self._steps else "it is the same throughout"
        if lacking := self._count - len(follows):
            _log.warning(
                "%d of %d examples have no label and are left out%s",
                lacking,
                self._count,
                f" (a window has one if {has_one})" if self._inputs.window else "",
            )
        if not len(follows):
            raise InputError(
                "recording: expected examples with a label (column 'label'), got none with one; a "
                f"window has a label if {has_one}"
            )
        y: NDArray[np.integer] = np.frombuffer(self._y, np.intc)
        if self._steps:  # divided by the class of most steps
            y = np.array([np.bincount(steps).argmax() for steps in y.reshape(-1, self._steps)])
        return parts_in_time(y, follows, test_fraction=test_share)
