"""What runs leave: one folder per method and seed, with the result of every finished round."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from protofleet.errors import InputError
from protofleet.experiments.config import Experiment, Method, slug
from protofleet.federation.outcomes.calibration import Calibration
from protofleet.federation.outcomes.outcome import Outcome
from protofleet.federation.records import Metrics, RoundRecord, Scores, save_record
from protofleet.federation.schedules.early_stopping import EarlyEnd

Engine = Literal["local", "mqtt", "ray"]
_FILE = "result.json"
_MARKER = "identity"


class EvaluationData(msgspec.Struct, frozen=True, kw_only=True):
    """What the scores of a seed rest on, whatever the method.

    Attributes:
        pooled: test examples of all clients together, for the generalisation and global scores.
        most_frequent: over the clients, scores on the own test part of always naming the class that
            is most frequent in the own training part; of two, the first.
    """

    pooled: int
    most_frequent: Metrics


class MethodResult(msgspec.Struct, frozen=True, kw_only=True):
    """One method with one seed.

    Attributes:
        identity: hash of everything that decides the numbers; a changed experiment runs anew.
        digest: of the file's lines that decide them (``config.digest``).
        engine: what ran it.
        finished: whether all rounds are done.
        rounds: those that are.
        scores: of the best round (``federation.outcomes.scores.run_scores``), the final fit being
            one.
        last: as each section was scored last (``federation.outcomes.scores.last_scores``).
        outcome: what the run has done for the clients' owners so far; None: not told.
        early_end: why it has fewer rounds than it was to have; None: it has them.
        calibration: how its learning rate was chosen; None: its settings have one.
        clients: number of clients.
        parameters: number of trained values of the model.
        peak_bytes: largest resident memory of a device's process (``memory.measure_memory``);
            None: not measured.
        settings: of its strategy, defaults included; empty: not told.
        evaluation_data: of its seed; None: not told.
        environment: versions and machine.
        stopped: why the run cannot go on: a method diverged, on a client or in an update that broke
            a rule; empty: it did not.
    """

    experiment: str
    label: str
    strategy: str
    seed: int
    identity: str
    engine: Engine
    finished: bool
    rounds: tuple[RoundRecord, ...]
    scores: Scores = Scores()
    last: Scores = Scores()
    outcome: Outcome | None = None
    early_end: EarlyEnd | None = None
    calibration: Calibration | None = None
    clients: int = 0
    parameters: int = 0
    peak_bytes: int | None = None
    settings: dict[str, Any] = {}
    evaluation_data: EvaluationData | None = None
    environment: dict[str, str] = {}
    digest: str = ""
    stopped: str = ""


def run_folder(folder: Path, method: Method, seed: int) -> Path:
    """Where one method with one seed keeps its things."""
    return folder / slug(method) / f"seed-{seed}"


def holds_run(folder: Path) -> bool:
    """Whether a run was finished or begun there."""
    return (folder / _FILE).exists() or (folder / _MARKER).exists()


def claim(folder: Path, identity: str) -> bool:
    """Make the folder this run's, if it is new or was this run's before; whether it is now."""
    marker = folder / _MARKER
    if marker.is_file():
        return marker.read_text() == identity
    if (folder / _FILE).exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text(identity)
    return True


def save_result(folder: Path, result: MethodResult) -> None:
    """Replace the result in a run's folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    save_record(result, folder / _FILE)


def load_run(folder: Path) -> MethodResult | None:
    """The result in a run's folder; None if there is none.

    Raises:
        InputError: the file is no result.
    """
    file = folder / _FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=MethodResult)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"result '{file}': {error}; remove it to run again") from error


def load_results(folder: Path, experiment: Experiment) -> list[MethodResult]:
    """All results of an experiment's methods and seeds, in the file's order."""
    found = [
        (method.label, load_run(run_folder(folder, method, seed)))
        for method in experiment.methods
        for seed in experiment.seeds
    ]
    return [result for label, result in found if result is not None and result.label == label]
