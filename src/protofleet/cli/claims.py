"""``protofleet experiment claims``: what the papers claim, tested over the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._experiments import (
    FILE,
    FOLDER,
    all_runs_option,
    data_root_option,
    default_data_root,
    engine_option,
    kept,
    workers_option,
)
from protofleet.cli._outputs import check_writable_folder, writable
from protofleet.cli._verbosity import progress_console

if TYPE_CHECKING:
    from protofleet.experiments.claim_results import ClaimResult


@click.command()
@click.argument("ids", metavar="[CLAIM]...", nargs=-1)
@all_runs_option
@click.option(
    "--status",
    is_flag=True,
    help="Train nothing: tell how far each claim is, and write what is asked for from that.",
)
@click.option(
    "--markdown",
    type=FILE,
    callback=writable,
    help="Also write the table of all chosen claims to FILE, and a page for each paper to "
    "results/ beside it (docs/claims.md is made so).",
)
@click.option(
    "--json",
    "json_file",
    type=FILE,
    callback=writable,
    help="Write every seed's figures to FILE.",
)
@click.option("--pictures", type=FOLDER, help="Also draw claims-CLAIM.png for each in it.")
@click.option(
    "--earlier",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An earlier --json, perhaps of another machine: counts where it has more seeds.",
)
@click.option(
    "--claims", "folder", type=FOLDER, help="With files of claims, instead of Protofleet's own."
)
@data_root_option
@engine_option
@workers_option
def claims(
    *,
    ids: tuple[str, ...],
    out: Path,
    status: bool,
    markdown: Path | None,
    json_file: Path | None,
    pictures: Path | None,
    earlier: Path | None,
    folder: Path | None,
    data_root: Path | None,
    **options: Any,
) -> None:
    """Test what the papers claim, method against method over the same seeds.

    A CLAIM is a name such as fedali-generalisation; without any, all are tested. Experiments that
    measure them run as 'run' would run them, into OUT/NAME; what is finished is not repeated, and
    an interruption costs nothing: give the command again. Then every claim is printed with the
    difference that was measured, its 95 % interval over the seeds, and the verdict: reproduced or
    refuted (the whole interval is on one side) or not decided.

    \b
    How far is it, and how long will the rest take?
      protofleet experiment claims --status
    One claim:
      protofleet experiment claims fedali-generalisation
    The page of them all, from what is stored:
      protofleet experiment claims --status --markdown claims.md --pictures images
    The same where another machine has run other claims:
      protofleet experiment claims --status --earlier there.json --markdown claims.md

    Claims stand in experiments/claims/papers/ (docs/tables.md, "Claims").
    """  # noqa: D301 - click's mark for lines to keep
    from rich.console import Console

    from protofleet.experiments import claim_text
    from protofleet.experiments.claim_registry import (
        CLAIMS,
        chosen_claims,
        experiments_of,
        load_claims,
    )
    from protofleet.experiments.claim_results import (
        load_claim_results,
        or_earlier,
        progress_of,
        result_of,
        run_missing,
    )
    from protofleet.experiments.runner import RunOptions

    chosen = chosen_claims(load_claims(folder or CLAIMS), ids)
    known = load_claim_results(earlier) if earlier else {}
    if pictures is not None:
        check_writable_folder(pictures, "--pictures")
    console = Console()
    if not status:
        asked = RunOptions(data_root=data_root or default_data_root(), **options)
        with kept(out):
            run_missing(chosen, out, asked, progress_console())
    results = [or_earlier(result_of(one, out), known.get(one.claim.id)) for one in chosen]
    found = {
        name: progress_of(name, one, out / name) for name, one in experiments_of(chosen).items()
    }
    if status or not all(one.finished for one in found.values()):
        claim_text.show_progress(found, console)
    claim_text.show(results, console)
    _write(results, markdown=markdown, json_file=json_file, pictures=pictures)


def _write(
    results: Sequence[ClaimResult],
    *,
    markdown: Path | None,
    json_file: Path | None,
    pictures: Path | None,
) -> None:
    """What was asked for."""
    if pictures is None and json_file is None and markdown is None:
        return
    from protofleet.experiments import claim_files  # loads matplotlib

    drawn = {}
    if pictures is not None:
        drawn = claim_files.draw_claims(results, pictures)
    if json_file is not None:
        claim_files.write_results(json_file, results)
    if markdown is not None:
        claim_files.write_page(markdown, results, drawn)
