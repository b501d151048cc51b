"""Recordings as a central training takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from protofleet.cli._files import read_preprocessing
from protofleet.cli._store import table_mapping
from protofleet.errors import InputError, MissingDataError

if TYPE_CHECKING:
    from protofleet.edge.data.recordings import Found


def are_recordings(sources: Sequence[Path]) -> bool:
    """Whether these are tables, folders or zips and no file of arrays.

    Raises:
        MissingDataError: one is absent.
        InputError: some are, some are not.
    """
    for one in sources:
        if not one.exists():
            raise MissingDataError(f"data '{one}': no such file or folder")
    arrays = [one for one in sources if one.suffix.lower() == ".npz"]
    if arrays and len(sources) > 1:
        raise InputError(f"data '{arrays[0]}': expected it alone, or recordings alone")
    return not arrays


def read_recorded(
    sources: Sequence[Path],
    *,
    supervised: bool,
    preprocessing: Path | None,
    classes: str | None,
    **table: Any,
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """``x`` and, supervised, ``y`` of recordings, and the names of the classes.

    What is found in each is told on standard error.

    Args:
        sources: tables, folders and zips of them.
        supervised: whether examples need a label.
        preprocessing: file that says rate, window and channels.
        classes: that labels, folders or files name, comma-separated.
        table: what a person has said of the tables, as of ``load_examples``.

    Raises:
        MissingDataError: a source is absent.
        InputError: one cannot be read, or nothing in it can be used.
    """
    from protofleet.edge.data.examples import load_examples
    from protofleet.edge.data.recording import to_device_data
    from protofleet.edge.data.unbundled import manifest_for
    from protofleet.edge.personal import checked_examples

    if preprocessing is None:
        raise InputError(
            f"data '{sources[0]}': recordings need --preprocessing FILE.json, with the rate, the "
            "window and the channels of an example (docs/bundle.md)"
        )
    names = () if classes is None else tuple(name.strip() for name in classes.split(","))
    if supervised and (len(names) < 2 or len(set(names)) < len(names) or "" in names):
        raise InputError(
            "--classes: expected two names or more, each once, as in --classes sit,walk, got "
            f"'{classes or ''}'"
        )
    manifest = manifest_for(read_preprocessing(preprocessing), names)
    table["mapping"] = table_mapping(table["mapping"], [str(one) for one in sources], manifest)

    def told(one: Found) -> None:
        text = f"left out: {one.refused}" if one.refused else f"{one.name}: {one.text(names)}"
        click.echo(text, err=True)

    blocks = list(load_examples([str(one) for one in sources], manifest, told=told, **table))
    if supervised:
        data = to_device_data(blocks, manifest, raw=False, test_share=0.0)
        counts = np.bincount(data.y_train, minlength=len(names))
        if absent := [name for name, count in zip(names, counts, strict=True) if not count]:
            raise InputError(
                f"data '{sources[0]}': expected examples of each class, got none of "
                f"{', '.join(absent)}; leave it out of --classes, or record it"
            )
        return {"x": data.x_train, "y": data.y_train}, data.classes
    inputs = manifest.preprocessing
    found = [checked_examples(one.x, inputs, raw=False) for one in blocks]
    if not found:
        raise InputError(f"data '{sources[0]}': expected examples, got none")
    return {"x": np.concatenate(found)}, ()
