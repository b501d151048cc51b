"""What is kept of tested claims beside their runs: figures as JSON, the page, its pictures."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from protofleet.durable import replace_whole
from protofleet.experiments.claim_figures import draw
from protofleet.experiments.claim_registry import RegisteredClaim
from protofleet.experiments.claim_results import ClaimResult, current_runs
from protofleet.experiments.claim_text import page


def draw_claims(
    chosen: Sequence[RegisteredClaim],
    results: Sequence[ClaimResult],
    ours: Collection[str],
    out: Path,
    folder: Path,
) -> dict[str, Path]:
    """Draw the claims that have anything to show.

    Args:
        chosen: the claims.
        results: of each, in the same order.
        ours: ids of those whose results are of runs in ``out``; others' curves are not here to
            draw, and a picture that is there stays.
        out: folder of all experiments' runs.
        folder: for ``claims-<id>.png``; made if absent.

    Returns:
        Claim → its picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Path] = {}
    for one, result in zip(chosen, results, strict=True):
        path = folder / f"claims-{result.id}.png"
        if result.id not in ours:
            if path.is_file():
                drawn[result.id] = path
        elif any(outcome.estimate for outcome in result.outcomes):
            runs = current_runs(one.experiment, out / result.experiment)
            draw(result, runs, path)
            drawn[result.id] = path
    return drawn


def write_results(path: Path, results: Sequence[ClaimResult]) -> None:
    """A JSON list with a line for each claim; ``claim_results.load_claim_results`` reads it."""
    lines = b",\n".join(map(msgspec.json.encode, results))
    replace_whole(path, b"[\n" + lines + b"\n]\n", shared=True)


def write_page(path: Path, results: Sequence[ClaimResult], drawn: Mapping[str, Path]) -> None:
    """The page of the claims, with the pictures of ``draw_claims`` where they lie from it."""
    seen = {
        key: Path(os.path.relpath(picture.resolve(), path.resolve().parent)).as_posix()
        for key, picture in drawn.items()
    }
    replace_whole(path, page(results, seen).encode(), shared=True)
