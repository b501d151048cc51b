"""``protofleet strategies``: which algorithms there are and what they send."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protofleet.cli._width import rows as in_rows

if TYPE_CHECKING:
    from protofleet.strategies.types import Description


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option(
    "--model",
    "bundle",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="Say which of them run on this bundle, and what to do for the others.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def strategies(*, names: tuple[str, ...], bundle: Path | None, as_json: bool) -> None:
    """List the strategies, or those of these NAMEs: paper, objectives, what travels."""
    from protofleet.strategies import DESCRIPTIONS, check_known

    for name in names:
        check_known(name)
    if bundle is not None:
        _tell_fitting(bundle, names, as_json=as_json)
        return
    known = [DESCRIPTIONS[name] for name in names or sorted(DESCRIPTIONS)]
    if as_json:
        click.echo(json.dumps([asdict(item) for item in known], indent=2))
        return
    click.echo("\n\n".join(_describe(item) for item in known))


def _tell_fitting(path: Path, names: tuple[str, ...], *, as_json: bool) -> None:
    from protofleet.bundle import Bundle
    from protofleet.federation.suitability import why_not

    found = why_not(Bundle.open(path, any_signer=True))
    reasons = {name: found[name] for name in names or found}
    if as_json:
        listed = [{"name": name, "runs": not why, "why": why} for name, why in reasons.items()]
        click.echo(json.dumps(listed, indent=2))
        return
    told = {name: f"no: {why}" if why else "runs" for name, why in reasons.items()}
    click.echo("\n".join(in_rows(told)))


def _describe(item: Description) -> str:
    rows = {
        "paper": item.paper,
        "tasks": ", ".join(item.tasks),
        "objectives": ", ".join(item.objectives),
        "goes down": ", ".join(item.travels.down) or "nothing",
        "comes up": ", ".join(item.travels.up),
        "stays on the device": ", ".join(item.travels.personal),
    }
    if item.server_objectives:
        rows["server objectives"] = ", ".join(item.server_objectives)
    if item.takes_rule:
        rows["aggregation rule"] = "that of the federation file, by default the mean"
    if item.class_counts:
        rows["devices register"] = "training samples of each class"
    if item.final_fit:
        rows["final fit"] = "after the last round, on every device; scored, not aggregated"
    if item.partial_work:
        rows["less work"] = "a slow device may do a part of its local training"
    if item.takes_late:
        rows["without rounds"] = "updates may be late, or aggregated as they come (buffered)"
    return "\n".join((click.style(item.name, bold=True), *in_rows(rows, indent=2)))
