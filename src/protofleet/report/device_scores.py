"""Each device's own scores over a run's rounds, read from its ledger while it may be written."""

from __future__ import annotations

from pathlib import Path

import msgspec

from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.queries import committed_updates, opened_ledger
from protofleet.hub.dashboard.reading import own_score
from protofleet.tensors import TaskName


class RoundScore(msgspec.Struct, frozen=True, kw_only=True):
    """The task's first score of one device's model on its own test part, after a round."""

    round_id: int
    score: float


def device_scores(run_dir: Path, task: TaskName) -> dict[str, tuple[RoundScore, ...]]:
    """Own scores of each device, by round; empty where ``run_dir`` has no ledger.

    Args:
        run_dir: of a coordinator.
        task: of its bundle.

    Raises:
        InputError: the ledger is damaged.
    """
    found: dict[str, list[RoundScore]] = {}
    if not (run_dir / LEDGER).is_file():
        return {}
    with opened_ledger(run_dir) as db:
        for device_id, round_id, record in committed_updates(db):
            score = own_score(task, record.evaluation)
            if score is not None:
                found.setdefault(device_id, []).append(RoundScore(round_id=round_id, score=score))
    return {name: tuple(scores) for name, scores in found.items()}
