"""Data: published sets by name, one's own arrays, and their division among clients."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.bundle.rules import check_preprocessing
from protofleet.datasets import DeviceData, catalogue, load_device_data
from protofleet.datasets.federate import (
    Dirichlet,
    Iid,
    Natural,
    Partition,
    Stratified,
    by_main_class,
    federate,
)
from protofleet.datasets.joining import taken
from protofleet.datasets.partition import stratified_split
from protofleet.datasets.pool import Pool
from protofleet.edge.data.examples import load_examples
from protofleet.edge.data.mapping import NO_MAPPING, read_mapping
from protofleet.edge.data.recording import to_device_data
from protofleet.edge.data.unbundled import manifest_for
from protofleet.errors import InputError, RefusedError


def load_dataset(name: str, *, root: Path | str | None = None, **options: Any) -> Pool:
    """Load a published data set.

    Args:
        name: ``digits``, which comes with scikit-learn, or one of ``docs/data.md``: ``ucihar``,
            ``wisdm``, ``mnist``, ``cifar10``, …
        root: folder with a folder for each data set; None: ``$PROTOFLEET_DATA``, else the working
            folder.
        options: of the loader, such as the window or the size of images.

    Returns:
        All examples, with their owners where the data have some.

    Raises:
        InputError: unknown name or option, or a file that is not as published.
        MissingDataError: a file is not there; the message says what to put where.
    """
    place = os.environ.get("PROTOFLEET_DATA", ".") if root is None else root
    return catalogue.load(name, Path(place), options)


def load_npz(path: Path | str) -> DeviceData:
    """Load one client's own data from an ``.npz`` file.

    Args:
        path: of a file with ``x_train``, ``y_train``, ``x_test``, ``y_test`` and ``classes`` (or
            ``targets``), as ``DeviceData.save`` writes it.

    Returns:
        The client's train and test part.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz``, lacks an array, or an array has a wrong form.
    """
    return load_device_data(Path(path))


def read_recording(  # noqa: PLR0913 - what a person may say of a table, each by its name
    sources: Path | str | Sequence[Path | str],
    bundle: Path | str | None = None,
    *,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    classes: Sequence[str] = (),
    trusted: Collection[bytes] = (),
    raw: bool = False,
    test_share: float = 0.3,
    rate_hz: float | None = None,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    labels: Path | str | None = None,
    mapping: Path | str | None = None,
) -> DeviceData:
    """Make one client's data from recordings, as ``protofleet device prepare`` does.

    Args:
        sources: a table such as ``mine.csv``, a folder or a zip of tables, or several.
        bundle: folder or file: whose windows, channels and classes they are to have; None:
            ``preprocessing`` and ``classes`` say them, before there is a bundle.
        preprocessing: rate, window and channels of an example, as of ``export_model``.
        classes: that labels, folders or files name.
        trusted: raw public keys whose signature on it counts; empty: those of the user's trust
            store, and this user's own.
        raw: examples that are no sensor samples are readings as they come: normalise them.
        test_share: of each class, its last examples, which test.
        rate_hz: of sensor samples; None: from their times, else the bundle's.
        time: the column that says when; None: the one whose name says so.
        columns: names of the columns of a table that has no row of names.
        labels: a table of what a person has marked: a column of times and one of labels, or start,
            end and label.
        mapping: a file that says what columns and labels mean where their names do not
            (docs/recordings.md).

    Returns:
        The examples that have a label.

    Raises:
        MissingDataError: a source is absent, or has no table in it.
        InputError: a table that cannot be read, none that fits, or no label; both a bundle and
            preprocessing, or neither.
        RefusedError: the bundle is not what was signed, or its signer is not trusted.
    """
    names = [sources] if isinstance(sources, Path | str) else list(sources)
    if bundle is not None and preprocessing is None:
        manifest = Bundle.open(bundle, trusted=trusted).manifest
    elif preprocessing is not None and bundle is None:
        manifest = manifest_for(to_preprocessing(preprocessing), classes)
    else:
        raise InputError("read_recording: expected either a bundle or preprocessing and classes")
    blocks = load_examples(
        [str(one) for one in names],
        manifest,
        rate_hz=rate_hz,
        time=time,
        columns=columns,
        labels=None if labels is None else str(labels),
        mapping=NO_MAPPING if mapping is None else read_mapping(Path(mapping), manifest),
    )
    return to_device_data(blocks, manifest, raw=raw, test_share=test_share)


def to_preprocessing(given: Preprocessing | Mapping[str, Any]) -> Preprocessing:
    """The record of what a mapping says; InputError if it is none."""
    if isinstance(given, Preprocessing):
        return given
    try:
        found = msgspec.convert(given, Preprocessing)
        check_preprocessing(found)
    except (msgspec.ValidationError, RefusedError) as error:
        raise InputError(f"preprocessing: {error}") from error
    return found


def hold_out(pool: Pool, fraction: float, *, seed: int = 0) -> tuple[Pool, Pool]:
    """Cut a share off, such as the part that a central training may see.

    Args:
        pool: all examples.
        fraction: of each class, above 0 and below 1.
        seed: of the choice.

    Returns:
        What is left, and the share.

    Raises:
        InputError: a fraction out of range.
    """
    if not 0 < fraction < 1:
        raise InputError(f"hold_out: expected a fraction above 0 and below 1, got {fraction}")
    rng = np.random.default_rng(seed)
    _, rows = stratified_split(by_main_class(pool).y, test_fraction=fraction, rng=rng)
    chosen = np.zeros(len(pool.y), bool)
    chosen[rows] = True
    return taken(pool, ~chosen), taken(pool, chosen)


def split(
    pool: Pool,
    clients: int | None = None,
    *,
    alpha: float | None = None,
    test_fraction: float = 0.25,
    seed: int = 0,
) -> dict[str, DeviceData]:
    """Divide examples among clients, and each client's into a train and a test part.

    Where steps have classes, an example counts for that of most of its steps.

    Args:
        pool: all examples.
        clients: how many; None: each owner in the data is one.
        alpha: classes are drawn for each client from Dirichlet(alpha) (arXiv:1909.06335): the
            smaller, the more clients differ; None: everybody gets the same mixture.
        test_fraction: share of each client's examples of each class that tests.
        seed: of the division.

    Returns:
        Each client's data by its name.

    Raises:
        InputError: no owners, a number out of range, or a client that is left without examples.
    """
    _check("clients, at least 1", clients, good=clients is None or clients >= 1)
    _check("alpha, above 0", alpha, good=alpha is None or alpha > 0)
    _check("test_fraction, above 0 and below 1", test_fraction, good=0 < test_fraction < 1)
    cut = Stratified(test_fraction=test_fraction)
    return federate(pool, _partition(clients, alpha), cut, seed=seed)


def _check(what: str, value: object, *, good: bool) -> None:
    if not good:
        raise InputError(f"split: expected {what}, got {value}")


def _partition(clients: int | None, alpha: float | None) -> Partition:
    if clients is None:
        if alpha is not None:
            raise InputError("split: alpha divides among a number of clients; give clients, too")
        return Natural()
    return Iid(clients=clients) if alpha is None else Dirichlet(clients=clients, alpha=alpha)
