"""``protofleet rehearse``: weeks of a fleet in minutes, before the first device is bought."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._outputs import writable, writable_picture
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._verbosity import say, verbosity
from protofleet.printable import shell_word

if TYPE_CHECKING:
    from protofleet.federation.settings import FederationConfig
    from protofleet.rehearsal.answer import Answer
    from protofleet.rehearsal.run import Rehearsal
    from protofleet.rehearsal.simulation import RehearsedRound

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=_FILE)
@click.option("--days", type=click.FloatRange(0, min_open=True), help="Instead of the file's.")
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=A,B",
    help="Compare settings of the federation file: codec.up=raw,int8; repeat for combinations.",
)
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="Repeat with others."
)
@click.option(
    "--no-training",
    is_flag=True,
    help="Bytes, energy and participation alone: for thousands of devices.",
)
@click.option(
    "--sensitivity",
    is_flag=True,
    help="Also show which assumption moves the answer: each at the ends of its spread.",
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the rounds in this run folder, for 'protofleet report' and 'protofleet hub'.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes that train; default: all cores.")
@click.option("--plot", type=_FILE, callback=writable_picture, help="Also draw FILE, .png or .svg.")
@click.option(
    "--json", "json_file", type=_FILE, callback=writable, help="Also write the figures to FILE."
)
def rehearse(
    file: Path,
    *,
    days: float | None,
    vary: tuple[str, ...],
    seeds: int,
    no_training: bool,
    sensitivity: bool,
    run_dir: Path | None,
    workers: int | None,
    plot: Path | None,
    json_file: Path | None,
) -> None:
    """Live through the days of the fleet FILE (TOML) in virtual time, and say what it will cost.

    Rounds, training and policies are the real ones; processors, batteries, networks and owners'
    habits are models, each with its source (docs/rehearse.md). 'protofleet fleet init' writes a
    FILE, 'protofleet fleet run' rehearses the wire in real time.
    """
    import tempfile

    import msgspec

    from protofleet.experiments.processes import processes
    from protofleet.federation.settings import load_config
    from protofleet.rehearsal.fleet_file import load_rehearsal
    from protofleet.rehearsal.run import Rehearsal

    if run_dir is not None and (vary or seeds > 1 or no_training):
        raise click.UsageError(
            "--run-dir keeps one rehearsal with its training: leave out --vary, --seeds and "
            "--no-training"
        )
    fleet = load_rehearsal(file)
    if days is not None:
        fleet = msgspec.structs.replace(fleet, days=days)
    config = load_config(fleet.federation)
    variants = list(_variants(config, vary))
    answers: list[Answer] = []
    kept = "nothing is kept of a rehearsal; start it again"
    if run_dir is not None:
        kept = f"the rounds so far: protofleet report {shell_word(run_dir)}"
    with (
        on_interrupt(kept),
        tempfile.TemporaryDirectory(prefix="protofleet-rehearsal-") as folder,
        processes(workers or os.cpu_count() or 1) as opened,
    ):
        rehearsal = Rehearsal(
            file=fleet,
            opened=opened,
            folder=Path(folder),
            trains=not no_training,
            run_dir=run_dir,
        )
        for (label, varied), seed in itertools.product(variants, range(seeds)):
            answers.append(rehearsal.answer(varied, label, seed, _tell))
            _show(answers[-1], seeds)
        if sensitivity:
            _show_sensitivity(rehearsal, config, answers[0].example_s)
    _summarise(answers, plot, json_file, fleet.target)
    if run_dir is not None and answers[0].rounds:
        say(f"next: protofleet report {shell_word(run_dir)}")


def _show_sensitivity(rehearsal: Rehearsal, config: FederationConfig, example_s: float) -> None:
    """All with the same measured time, which differs a little each time."""
    import dataclasses

    import msgspec

    from protofleet.rehearsal.run import OTHERWISE
    from protofleet.rehearsal.text import sensitivity_lines

    file = msgspec.structs.replace(rehearsal.file, step_s=example_s)
    plain = dataclasses.replace(rehearsal, file=file, trains=False, run_dir=None)
    answers = [
        dataclasses.replace(plain, assumed=assumed).answer(config, label, 0, _tell)
        for label, assumed in OTHERWISE.items()
    ]
    click.echo("\n".join(sensitivity_lines(answers)) + "\n")


def _variants(
    config: FederationConfig, vary: Sequence[str]
) -> Iterator[tuple[str, FederationConfig]]:
    """Every combination of the settings, with what it is called."""
    from protofleet.rehearsal.run import varied

    axes = [_axis(text) for text in vary]
    for chosen in itertools.product(*axes):
        label = ", ".join(f"{key}={value}" for key, value in chosen)
        yield label, varied(config, chosen) if chosen else config


def _axis(text: str) -> list[tuple[str, Any]]:
    """``codec.up=raw,int8`` as a key with each value; numbers and true, false as such."""
    import tomllib

    key, is_given, values = text.partition("=")
    if not is_given or not key or not values:
        raise click.BadParameter(f"expected KEY=A,B, got '{text}'", param_hint="--vary")
    found = []
    for value in values.split(","):
        try:
            found.append((key, tomllib.loads(f"it = {value}")["it"]))
        except tomllib.TOMLDecodeError:
            found.append((key, value))
    return found


def _tell(label: str, done: RehearsedRound) -> None:
    if verbosity() > 0:
        score = None if done.record is None else done.record.scores.selecting
        told = "" if score is None else f", score {score:.3f}"
        named = f"{label}: " if label else ""
        day, hour = divmod(done.closed_s / 3600, 24)
        say(
            f"{named}day {day:.0f}, {hour:.1f} h: round {done.round_id}, {len(done.counted)} of "
            f"{len(set(done.invited))} updates{told}"
        )


def _show(answer: Answer, seeds: int) -> None:
    from protofleet.rehearsal.text import answer_lines

    if answer.seed == 0:
        click.echo("\n".join(answer_lines(answer)) + "\n")
    else:
        say(f"seed {answer.seed + 1} of {seeds} is done")


def _summarise(
    answers: Sequence[Answer], plot: Path | None, json_file: Path | None, target: float | None
) -> None:
    import msgspec

    from protofleet.durable import replace_whole
    from protofleet.rehearsal.text import comparison_lines

    if len(answers) > 1:
        click.echo("\n".join(comparison_lines(answers)))
    if plot is not None:
        from protofleet.rehearsal.figure import draw

        draw(answers, plot, target)
    if json_file is not None:
        data = msgspec.json.format(msgspec.json.encode(list(answers)))
        replace_whole(json_file, data, shared=True)
