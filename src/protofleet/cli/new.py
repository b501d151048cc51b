"""``protofleet new``: a small project to begin with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import click

from protofleet.errors import InputError
from protofleet.starter.questions import CHANNELS, KINDS, SHAPES, TOKENS, Kind, Project

_ASKED = {
    "windows": "windows of sensors",
    "images": "images",
    "table": "rows of a table",
    "texts": "texts",
}


def _names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(one.strip() for one in value.split(",")) if value else ()


def _sizes(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in value.split(",")) if value else ()
    except ValueError as error:
        raise InputError(f"--input-shape: expected sizes like 128,6, got '{value}'") from error


@click.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), help="What an example is.")
@click.option("--classes", callback=_names, help="What is told apart, such as walking,sitting.")
@click.option("--targets", callback=_names, help="Numbers to predict in the place of classes.")
@click.option("--channels", callback=_names, help="Of windows, such as acc_x,acc_y,acc_z.")
@click.option(
    "--units",
    callback=_names,
    help="Of the channels, such as m/s²,m/s²,m/s²: recordings are brought to them.",
)
@click.option(
    "--rate", "rate_hz", type=click.FloatRange(0, min_open=True), help="Of windows, in Hz."
)
@click.option("--input-shape", callback=_sizes, help="Of one example, such as 128,6.")
@click.option("--tokens", type=click.IntRange(2), help="Of texts: how many different words.")
@click.option(
    "--recordings",
    multiple=True,
    metavar="PATH",
    help="Recordings of your own, whose mean and spread normalise windows; may be repeated.",
)
@click.option("--strategy", default="ditto", show_default=True, help="Of the federation.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: what is not said is the default.")
def new(*, name: str, yes: bool, recordings: tuple[str, ...], **given: Any) -> None:
    """Write a small project into the folder NAME: yours to change, and it runs as it is.

    A network, what an example is, the federation file, a rehearsal on this machine, and README.md
    with the commands. What no option says is asked for, or with --yes a sensible default.
    """
    from dataclasses import replace

    from protofleet.starter.files import check_new, write_project
    from protofleet.strategies import check_known

    check_known(given["strategy"])
    folder = Path(name)
    check_new(folder)  # before anything is asked
    project = Project(name=name, **_answers(given, ask=not yes))
    if recordings:
        if project.kind != "windows":
            raise InputError("--recordings: are for --kind windows")
        from protofleet.starter.scale import scale_of

        mean, std = scale_of(recordings, project)
        project = replace(project, mean=mean, std=std)
    for file in write_project(project, folder):
        click.echo(f"  {file}")
    click.echo(f"{folder}: {project.examples}; what comes next: {folder / 'README.md'}")


def _answers(given: dict[str, Any], *, ask: bool) -> dict[str, Any]:
    """What options say, else a person, else what is usual."""

    def answer(text: str, default: str) -> str:
        if not ask:
            return default
        try:
            return str(click.prompt(text, default=default))
        except click.Abort as error:
            if sys.stdin.isatty():
                raise
            click.echo(err=True)
            raise InputError(
                f"{text}: nobody answers here; say it by its option, or take '{default}' with --yes"
            ) from error

    if not given["classes"] and not given["targets"]:
        given["classes"] = tuple(
            one.strip() for one in answer("what is to be told apart", "yes,no").split(",")
        )
    if given["kind"] is None:
        told = "windows" if given["channels"] or given["rate_hz"] else ""
        kinds = ", ".join(f"{kind} ({_ASKED[kind]})" for kind in KINDS)
        given["kind"] = told or answer(f"from what: {kinds}", "windows")
    if given["kind"] not in KINDS:
        raise InputError(f"kind: expected one of {', '.join(KINDS)}, got '{given['kind']}'")
    return _sized(cast("Kind", given["kind"]), given, answer)


def _sized(kind: Kind, given: dict[str, Any], answer: Any) -> dict[str, Any]:
    """With channels and shape, as far as the kind has them."""
    usual = SHAPES[kind]
    if kind == "windows":
        if not given["channels"]:
            told = answer("channels of the sensors", ",".join(CHANNELS))
            given["channels"] = tuple(one.strip() for one in told.split(","))
        if given["rate_hz"] is None:
            given["rate_hz"] = _number(answer("samples a second", "50"))
        usual = (usual[0], len(given["channels"]))
    else:
        if given["channels"] or given["units"] or given["rate_hz"] is not None:
            raise InputError("--channels, --units, --rate: are for --kind windows")
        del given["rate_hz"]
    if kind == "texts":
        given["tokens"] = given["tokens"] or TOKENS
    elif given["tokens"] is not None:
        raise InputError("--tokens: is for --kind texts")
    given["input_shape"] = given["input_shape"] or usual
    return given


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if found <= 0:
        raise InputError(f"samples a second: expected a number above 0, got '{text}'")
    return found
