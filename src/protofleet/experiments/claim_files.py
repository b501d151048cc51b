"""What is kept of tested claims beside their runs: figures as JSON, the page, its pictures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from protofleet.durable import replace_whole
from protofleet.experiments.claim_curves import compared, curve_section
from protofleet.experiments.claim_figures import draw
from protofleet.experiments.claim_results import ClaimResult
from protofleet.experiments.claim_text import pages
from protofleet.experiments.pages import write_pages


def draw_claims(results: Sequence[ClaimResult], folder: Path) -> dict[str, Path]:
    """Draw the claims that have anything to show.

    Args:
        results: of the claims. One that lacks a method's curve, because its runs are elsewhere,
            keeps the picture that is there.
        folder: for ``claims-<id>.png``; made if absent.

    Returns:
        Claim → its picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Path] = {}
    for result in results:
        path = folder / f"claims-{result.id}.png"
        if not any(outcome.estimate for outcome in result.outcomes):
            continue
        if has_all_curves(result) or not path.is_file():
            draw(result, path)
        drawn[result.id] = path
    return drawn


def has_all_curves(result: ClaimResult) -> bool:
    """Whether every method that was measured has its curve, or the claim is of bytes alone."""
    if curve_section(result.outcomes) is None:
        return True
    return set(compared([one for one in result.outcomes if one.pairs])) <= result.curves.keys()


def write_results(path: Path, results: Sequence[ClaimResult]) -> None:
    """A JSON list with a line for each claim; ``claim_results.load_claim_results`` reads it."""
    lines = b",\n".join(map(msgspec.json.encode, results))
    replace_whole(path, b"[\n" + lines + b"\n]\n", shared=True)


def write_page(path: Path, results: Sequence[ClaimResult], drawn: Mapping[str, Path]) -> None:
    """The pages of the claims, with the pictures of ``draw_claims`` where they lie from them.

    Args:
        path: of the first one; the others come into ``results/`` beside it.
        results: of the claims.
        drawn: claim → its picture.
    """
    seen = {
        key: Path(os.path.relpath(picture.resolve(), path.resolve().parent)).as_posix()
        for key, picture in drawn.items()
    }
    write_pages(path, pages(results, seen, path.stem))
