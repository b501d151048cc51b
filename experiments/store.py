"""What runs leave: one folder per method and seed, with the result of every finished round."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from protofleet.durable import replace_whole
from protofleet.errors import InputError
from protofleet.experiments.config import Experiment, Method, slug

Engine = Literal["local", "mqtt"]
_FILE = "result.json"


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round of a run.

    Attributes:
        round_id: from 1.
        seconds: wall time.
        participants: clients whose update was used.
        bytes_up, bytes_down: of all clients; measured at the devices' sockets by the engine
            ``mqtt``, the sizes of the blobs by the engine ``local``.
        scores: section → metric → mean and std over clients (``coordinator.results``).
        final: the fit after the last round.
    """

    round_id: int
    seconds: float
    participants: int
    bytes_up: int
    bytes_down: int
    scores: dict[str, Any]
    final: bool = False


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One method with one seed.

    Attributes:
        identity: hash of everything that decides the numbers; a changed experiment runs anew.
        digest: of the file's lines that decide them (``config.digest``).
        engine: what ran it.
        finished: whether all rounds are done.
        rounds: those that are.
        scores: of the whole run, chosen by ``coordinator.results.run_scores``.
        clients: number of clients.
        parameters: number of trained values of the model.
        environment: versions and machine.
    """

    experiment: str
    label: str
    strategy: str
    seed: int
    identity: str
    engine: Engine
    finished: bool
    rounds: tuple[Round, ...]
    scores: dict[str, Any] = {}
    clients: int = 0
    parameters: int = 0
    environment: dict[str, str] = {}
    digest: str = ""


def run_folder(folder: Path, method: Method, seed: int) -> Path:
    """Where one method with one seed keeps its things."""
    return folder / slug(method) / f"seed-{seed}"


def save_result(folder: Path, result: RunResult) -> None:
    """Replace the result in a run's folder; durable when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_whole(folder / _FILE, msgspec.json.format(msgspec.json.encode(result), indent=1))


def load_run(folder: Path) -> RunResult | None:
    """The result in a run's folder; None if there is none.

    Raises:
        InputError: the file is no result.
    """
    file = folder / _FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=RunResult)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise InputError(f"result '{file}': {error}; remove it to run again") from error


def load_results(folder: Path, experiment: Experiment) -> list[RunResult]:
    """All results of an experiment's methods and seeds, in the file's order."""
    found = [
        (method.label, load_run(run_folder(folder, method, seed)))
        for method in experiment.methods
        for seed in experiment.seeds
    ]
    return [result for label, result in found if result is not None and result.label == label]
