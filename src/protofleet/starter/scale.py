"""Mean and standard deviation of a sensor's channels, from recordings of one's own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.examples import load_examples
from protofleet.edge.data.unbundled import manifest_for
from protofleet.errors import InputError
from protofleet.starter.questions import Project

_DIGITS = 4


def scale_of(
    sources: Sequence[str], project: Project
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, over all windows of the recordings.

    Args:
        sources: files, folders, zips.
        project: whose channels, rate and window they are to have.

    Raises:
        MissingDataError: a source is absent.
        InputError: one cannot be read, or a channel has one value alone.
    """
    window = project.input_shape[0]
    plain = Preprocessing(
        input_shape=project.input_shape,
        rate_hz=project.rate_hz,
        window=window,
        hop=window,
        channels=project.channels,
        units=project.units or msgspec.UNSET,
    )
    manifest = manifest_for(plain, project.classes)
    blocks = load_examples(sources, manifest)
    found = [block.x.reshape(-1, len(project.channels)) for block in blocks]
    values = np.concatenate(found).astype(np.float64)
    mean, std = values.mean(axis=0), values.std(axis=0)
    if (std == 0).any():
        still = project.channels[int(np.argmin(std))]
        raise InputError(f"recordings: '{still}' has one value alone, so that nothing can be told")
    return tuple(np.round(mean, _DIGITS).tolist()), tuple(np.round(std, _DIGITS).tolist())
