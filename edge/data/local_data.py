"""A device's examples from a file, or from a published data set by name."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData, load_device_data, load_pooled
from protofleet.datasets.arrays import doubt_of_scale
from protofleet.edge.learning.training import LocalData
from protofleet.errors import InputError

_log = logging.getLogger(__name__)

UCI_HAR = "uci-har"


def load_local_data(
    source: str,
    preprocessing: Preprocessing,
    *,
    pooled: Path | None = None,
    data_root: Path | None = None,
    later: Sequence[tuple[int, str]] = (),
) -> LocalData:
    """The examples named by ``source``, and the pooled test part of a rehearsal.

    Args:
        source: an ``.npz`` file (``DeviceData.save``), already preprocessed; or ``uci-har:5``,
            subject 5 of UCI-HAR, normalised with the bundle's statistics.
        preprocessing: the bundle's.
        pooled: an ``.npz`` file with ``x_test`` and ``y_test`` of all devices.
        data_root: folder of the published data sets.
        later: from which round on which other source takes its place.

    Raises:
        MissingDataError: a file is absent.
        InputError: a file has a wrong form, the name is unknown, or rounds do not ascend.
    """
    tokens = preprocessing.tokens is not None
    data = LocalData(
        own=_own(source, preprocessing, data_root),
        pooled=None if pooled is None else load_pooled(pooled, tokens=tokens),
        later=tuple((first, _own(other, preprocessing, data_root)) for first, other in later),
    )
    for doubt in doubts(data, preprocessing):
        _log.warning("%s", doubt)
    return data


def doubts(data: LocalData, preprocessing: Preprocessing) -> Iterator[str]:
    """What can be used, but is hardly meant: no examples, or values of another scale."""
    for suffix, own in (("", data.own), *((f" from round {r}", own) for r, own in data.later)):
        if not len(own.y_train):
            yield f"device data{suffix}: no training examples, so nothing is trained on them"
        x = own.x_train if len(own.y_train) else own.x_test
        if preprocessing.tokens is None:
            mean, std = preprocessing.mean, preprocessing.std
            if doubt := doubt_of_scale(x, f"device data{suffix}", mean, std):
                yield doubt


def _own(source: str, preprocessing: Preprocessing, data_root: Path | None) -> DeviceData:
    name, _, which = source.partition(":")
    if name == UCI_HAR:
        return _uci_har(which, preprocessing, data_root)
    return load_device_data(Path(source), tokens=preprocessing.tokens is not None)


def _uci_har(which: str, preprocessing: Preprocessing, data_root: Path | None) -> DeviceData:
    from protofleet.datasets.ucihar import CLASSES, load_ucihar  # noqa: PLC0415 - takes memory
    from protofleet.datasets.windows import normalise, split_in_time  # noqa: PLC0415 - as above

    if data_root is None or not which.isdecimal():
        raise InputError(
            f"data '{UCI_HAR}:{which}': expected a subject, as in {UCI_HAR}:5, and --data-root"
        )
    windows = load_ucihar(data_root).of(int(which))
    normalised = normalise(windows, preprocessing.mean, preprocessing.std)
    return split_in_time(normalised, CLASSES)
