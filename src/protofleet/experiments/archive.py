"""Runs of experiments in one file: machines share the work, and figures outlive them.

The file is gzip over JSON Lines, a line for each run that is finished, or that cannot go on because
its method diverged: ``{"experiment": name, "run": …}``, the latter as in its ``result.json``. The
same runs give the same bytes.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from protofleet.durable import replace_whole
from protofleet.errors import InputError
from protofleet.experiments.claim_results import current_runs, diverged_runs
from protofleet.experiments.config import Experiment, Method, with_rounds
from protofleet.experiments.store import MethodResult, holds_run, run_folder, save_result

_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
_MOST_LINE = 64 * 1024 * 1024
"""Bytes of a run at most; one of thousands of rounds has a few million."""


class ArchivedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the file.

    Attributes:
        experiment: its name, which becomes a folder.
        run: finished, or stopped for good.
    """

    experiment: str
    run: MethodResult

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.experiment):
            raise ValueError(f"expected the name of an experiment, got '{self.experiment}'")
        if not self.run.finished and not self.run.stopped:
            raise ValueError(f"expected a finished run, got one of {len(self.run.rounds)} rounds")


def archived_runs(
    experiments: Mapping[str, Experiment], folder: Path, rounds: int | None = None
) -> list[ArchivedRun]:
    """The finished runs of experiments as their files are now, and those that diverged.

    Args:
        experiments: by name.
        folder: their results are in folders of it by these names.
        rounds: in place of the files', as ``run`` was told.

    Raises:
        InputError: a result cannot be read.
    """
    if rounds is not None:
        experiments = {name: with_rounds(one, rounds) for name, one in experiments.items()}
    return [
        ArchivedRun(experiment=name, run=run)
        for name, experiment in experiments.items()
        for run in _ended(experiment, folder / name)
    ]


def _ended(experiment: Experiment, folder: Path) -> Iterator[MethodResult]:
    diverged = diverged_runs(experiment, folder)
    for label, finished in current_runs(experiment, folder).items():
        yield from sorted([*finished, *diverged[label]], key=lambda run: run.seed)


def write_archive(path: Path, runs: Iterable[ArchivedRun]) -> None:
    """Replace ``path`` by the runs, whole or not at all."""
    lines = b"".join(msgspec.json.encode(one) + b"\n" for one in runs)
    replace_whole(path, gzip.compress(lines, mtime=0), shared=True)


def read_archive(path: Path) -> Iterator[ArchivedRun]:
    """The runs of a file, each checked when its turn comes.

    Raises:
        InputError: it cannot be read, is empty, or a line is no such run.
    """
    number = 0
    try:
        with gzip.open(path) as file:
            while line := file.readline(_MOST_LINE + 1):
                number += 1
                if len(line) > _MOST_LINE:
                    raise InputError(f"'{path}': line {number}: above {_MOST_LINE} bytes")
                yield msgspec.json.decode(line, type=ArchivedRun)
        if not number:
            raise InputError(f"'{path}': empty, no run in it; copy it again")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"'{path}': {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"'{path}': line {number}: expected a run as 'protofleet experiment pack' writes it: "
            f"{error}"
        ) from error


def unpack(path: Path, folder: Path) -> tuple[int, int]:
    """Lay the runs of a file where ``run`` would have left them; none is replaced.

    Args:
        path: the file.
        folder: of all experiments' runs.

    Returns:
        How many were laid, and how many had a run in their place, finished or begun.

    Raises:
        InputError: the file is damaged or no archive; then nothing is laid.
        OSError: the folder takes no writes; the same call goes on.
    """
    laid = present = 0
    for one in list(read_archive(path)):
        method = Method(label=one.run.label, strategy=one.run.strategy)
        place = run_folder(folder / one.experiment, method, one.run.seed)
        if holds_run(place):
            present += 1
        else:
            save_result(place, one.run)
            laid += 1
    return laid, present
