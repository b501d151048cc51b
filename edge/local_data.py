"""A device's examples from a file, or from a published data set by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData, load_device_data, load_pooled
from protofleet.edge.training import LocalData
from protofleet.errors import InputError

_UCI_HAR = "uci-har"


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
    return LocalData(
        own=_own(source, preprocessing, data_root),
        pooled=None if pooled is None else load_pooled(pooled),
        later=tuple((first, _own(other, preprocessing, data_root)) for first, other in later),
    )


def _own(source: str, preprocessing: Preprocessing, data_root: Path | None) -> DeviceData:
    name, _, which = source.partition(":")
    if name == _UCI_HAR:
        return _uci_har(which, preprocessing, data_root)
    return load_device_data(Path(source))


def _uci_har(which: str, preprocessing: Preprocessing, data_root: Path | None) -> DeviceData:
    from protofleet.datasets.ucihar import CLASSES, load_ucihar  # noqa: PLC0415 - takes memory
    from protofleet.datasets.windows import normalise, split_in_time  # noqa: PLC0415 - as above

    if data_root is None or not which.isdecimal():
        raise InputError(
            f"data '{_UCI_HAR}:{which}': expected a subject, as in {_UCI_HAR}:5, and --data-root"
        )
    windows = load_ucihar(data_root).of(int(which))
    normalised = normalise(windows, preprocessing.mean, preprocessing.std)
    return split_in_time(normalised, CLASSES)
