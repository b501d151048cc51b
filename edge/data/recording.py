"""A device's data from a recording: labelled examples, split into a train and a test part."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from protofleet.bundle.manifest import Manifest
from protofleet.datasets import DeviceData
from protofleet.datasets.windows import Windows, split_in_time
from protofleet.edge.data.examples import Examples
from protofleet.edge.personal import checked_examples
from protofleet.edge.predictions import NO_LABEL
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
    if not manifest.classes:
        raise InputError(
            f"recording: expected a bundle with classes, got one of task {manifest.task}; save its "
            "data as an .npz (docs/device.md)"
        )
    windows = _labelled(list(blocks), manifest, raw=raw)
    if not len(windows.y):
        raise InputError(
            "recording: expected examples with a label (column 'label'), got none with one; a "
            "window has a label if it is the same throughout"
        )
    return split_in_time(windows, manifest.classes, test_fraction=test_share)


def _labelled(blocks: list[Examples], manifest: Manifest, *, raw: bool) -> Windows:
    inputs = manifest.preprocessing
    x = [checked_examples(one.x, inputs, raw=raw and not one.normalised) for one in blocks]
    # Examples that are no windows of a stream overlap no other.
    starts = [np.full(len(one.y), np.inf) if one.start_s is None else one.start_s for one in blocks]
    y = np.concatenate([np.zeros(0, np.int64), *(one.y for one in blocks)])
    known = y != NO_LABEL
    if not known.all():
        _log.warning(
            "%d of %d examples have no label and are left out%s",
            (~known).sum(),
            len(known),
            " (a window has one if it is the same throughout)" if inputs.window else "",
        )
    start_s = np.concatenate([np.zeros(0), *starts])[known]
    length_s = inputs.window / inputs.rate_hz if inputs.window and inputs.rate_hz else 0.0
    with np.errstate(invalid="ignore"):
        steps_s = np.diff(start_s, prepend=-np.inf)
    # A start before the last one is by a clock that was set back.
    follows = (steps_s > 0) & (steps_s < length_s)
    empty = np.zeros((0, *inputs.input_shape), np.float32)
    return Windows(x=np.concatenate([empty, *x])[known], y=y[known], follows=follows)
