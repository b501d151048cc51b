"""Examples from files: NPZ, a device's data, or recordings (``recordings``)."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest
from protofleet.datasets.arrays import UNREADABLE, read_arrays, to_labels, to_targets
from protofleet.edge.data.csv_examples import Examples, read_csv
from protofleet.edge.data.csv_rows import ByteStream
from protofleet.edge.data.csv_table import unknown
from protofleet.edge.data.local_data import UCI_HAR, load_local_data
from protofleet.edge.data.mapping import NO_MAPPING, TableMapping
from protofleet.edge.data.recordings import Told, nobody, read_recordings
from protofleet.edge.learning.training import check_data
from protofleet.errors import InputError

__all__ = ["ByteStream", "Examples", "is_device_data", "load_examples", "read_csv"]


def load_examples(  # noqa: PLR0913 - what a person may say of a file
    source: str | Sequence[str],
    manifest: Manifest,
    *,
    data_root: Path | None = None,
    rate_hz: float | None = None,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    labels: str | None = None,
    mapping: TableMapping = NO_MAPPING,
    told: Told | None = None,
) -> Iterator[Examples]:
    """The examples of a file, or of several recordings, in blocks.

    Args:
        source: ``FILE.npz`` with ``x`` (and ``y``), or with ``x_test`` and ``y_test`` as a device's
            data; ``uci-har:5``, the test part of subject 5; or recordings: tables as ``FILE.csv``,
            folders and zips of them, one or several.
        manifest: the bundle's.
        data_root: folder of the published data sets.
        rate_hz: of sensor samples; None: from their times, or the bundle's where they have none.
        time: the column of a table that says when; None: one whose name says so.
        columns: names of the columns of a table that has no row of names.
        labels: a table of what a person has marked in recordings.
        mapping: what a person has said of the columns and labels of recordings.
        told: what is found in each table.

    Raises:
        MissingDataError: a file is absent.
        InputError: a file has a wrong form, or does not fit the bundle.
    """
    sources = [source] if isinstance(source, str) else list(source)
    others = [one for one in sources if _is_no_table(one)]
    if not others:
        table: dict[str, Any] = {"rate_hz": rate_hz, "time": time, "columns": columns}
        table["mapping"] = mapping
        return read_recordings(sources, manifest, told or nobody, labels=labels, **table)
    if len(sources) > 1:
        raise InputError(f"data '{others[0]}': expected it alone, or recordings alone")
    if (time, columns, labels, mapping) != (None, None, None, NO_MAPPING):
        raise InputError(
            f"data '{others[0]}': --time, --columns, --labels and --mapping are for recordings in "
            "tables"
        )
    return _prepared(others[0], manifest, data_root)


def _is_no_table(source: str) -> bool:
    return source.startswith(f"{UCI_HAR}:") or Path(source).suffix.lower() == ".npz"


def _prepared(source: str, manifest: Manifest, data_root: Path | None) -> Iterator[Examples]:
    """Examples that need no reading of a table."""
    path = Path(source)
    if path.suffix.lower() == ".npz" and not is_device_data(source):
        arrays = read_arrays(path, ("x",), ("y",), ignored=("classes", "targets"))
        return iter((_plain(path, arrays, manifest),))
    data = load_local_data(source, manifest.preprocessing, data_root=data_root)
    check_data(data, manifest)
    return iter((Examples(x=data.own.x_test, y=data.own.y_test),))


def is_device_data(source: str) -> bool:
    """Whether a file has a train and a test part already."""
    try:
        with zipfile.ZipFile(source) as archive:
            return "x_train.npy" in archive.namelist()
    except UNREADABLE:  # whoever reads it says what is wrong
        return False


def _plain(path: Path, arrays: dict[str, NDArray[Any]], manifest: Manifest) -> Examples:
    x, y = arrays["x"], arrays.get("y")
    if y is None:
        return Examples(x=x, y=unknown(len(x), manifest))
    what = f"data '{path}': y"
    if x.ndim < 1 or y.shape[:1] != x.shape[:1]:
        form = f"(n, {len(manifest.targets)})" if manifest.targets else "(n,)"
        raise InputError(f"data '{path}': expected x (n, …) and y {form}, got {x.shape}, {y.shape}")
    if manifest.targets:
        return Examples(x=x, y=to_targets(y, what, manifest.targets))
    steps = manifest.task == "segmentation"
    return Examples(x=x, y=to_labels(y, what, manifest.classes, steps=steps))
