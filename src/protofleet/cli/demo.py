"""``protofleet demo``: the whole road, from central training to a report."""

from __future__ import annotations

import datetime as dt
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._broker import broker_options
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._verbosity import progress_console
from protofleet.errors import InputError
from protofleet.printable import shell_word

if TYPE_CHECKING:
    from protofleet.demo import DemoSettings

_COMMANDLINE = click.core.ParameterSource.COMMANDLINE
_NEEDED = (
    *("torch", "onnx", "onnxscript", "onnxruntime", "ai_edge_litert", "networkx", "flatbuffers"),
    *("paho", "sklearn", "scipy", "rich", "jinja2", "matplotlib", "tomli_w"),
)
"""Of what the extra ``demo`` brings; the rest has something that takes its place."""
_DEFAULT_DEVICES = 8
_DEFAULT_ROUNDS = 6
"""So few that three methods of the digits train in a minute or two on two cores."""


@click.command()
@click.option(
    "--data",
    type=click.Choice(["digits", "uci-har"]),
    default="digits",
    show_default=True,
    help="digits: in scikit-learn. uci-har: 30 people's activity, from --data-root.",
)
@click.option(
    "--data-root",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="PROTOFLEET_DATA",
    show_envvar=True,
    help="Folder that holds 'ucihar/UCI HAR Dataset.zip'.",
)
@click.option(
    "--strategy",
    default="ditto",
    show_default=True,
    metavar="NAME",
    help="What devices and coordinator do, of those in 'protofleet strategies' that suit the "
    "model; fedali trains one with alignment layers.",
)
@click.option(
    "--compare/--no-compare",
    default=True,
    show_default=True,
    help="Train FedAvg, Ditto and Local (no federation) on the same data, too, without a broker.",
)
@click.option(
    "--devices",
    type=click.IntRange(2, 30),
    default=_DEFAULT_DEVICES,
    show_default=True,
    help="Device processes; with uci-har each is one person.",
)
@click.option(
    "--browsers",
    type=click.IntRange(0, 16),
    default=0,
    show_default=True,
    help="Headless Chromium pages beside them, with data of their own; needs 'make web'.",
)
@click.option("--rounds", type=click.IntRange(1), default=_DEFAULT_ROUNDS, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@broker_options("mqtt://host:port; default: one of its own.")
@click.option(
    "--sensors",
    type=click.Choice(["playback", "published"]),
    default="playback",
    show_default=True,
    help="uci-har: play recordings back through virtual sensors, or take the published windows.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "onnx", "litert", "mixed"]),
    default="auto",
    show_default=True,
    help="Who runs the devices' programs; mixed: ONNX Runtime and LiteRT in turn.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the run; default: a new one under runs/. An interrupted run goes on.",
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json instead of the table.")
@click.pass_context
def demo(ctx: click.Context, /, *, out: Path | None, as_json: bool, **options: Any) -> None:
    """Let a fleet of device processes personalise a model.

    The model is pretrained and exported first. Each device is a process of its own that sees only
    its owner's data and talks MQTT to a coordinator process. Then other methods are trained on the
    same data. At the end: a table with all of them below what they start from, how many owners are
    better off than before and than alone, DIR/report.html to look at, DIR/result.json to read.
    """
    _check_packages()
    from rich.console import Console

    from protofleet.demo import run_demo
    from protofleet.strategies import check_known

    folder = out or _new_folder(options["data"], options["strategy"])
    settings = _settings(folder, ctx, options)
    check_known(settings.strategy)
    results = Console(stderr=as_json)
    with on_interrupt(f"to go on: protofleet demo --out {shell_word(folder)}"):
        report = run_demo(settings, folder, progress_console(stderr=as_json), results)
    if as_json:
        click.echo((folder / "result.json").read_text())
    else:
        results.print(f"\nreport: {report}", soft_wrap=True)


def _check_packages() -> None:
    """Name all that the demonstration lacks at once, and the one extra that brings it.

    Raises:
        InputError: something is not installed.
    """
    lacking = [name for name in _NEEDED if not _is_there(name)]
    if lacking:
        raise InputError(
            f"demo: not installed: {', '.join(lacking)}; pip install 'protofleet[demo]'"
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a finder that hides it says so
        return False


def _new_folder(data: str, strategy: str) -> Path:
    now = dt.datetime.now().astimezone()
    return Path("runs") / f"{now:%Y%m%d-%H%M%S}-{data}-{strategy}"


def _settings(folder: Path, ctx: click.Context, options: dict[str, Any]) -> DemoSettings:
    """What was asked for; a run that goes on keeps what is not asked for otherwise."""
    import msgspec

    from protofleet.demo import DemoSettings, has_settings, load_settings

    before = msgspec.structs.asdict(load_settings(folder)) if has_settings(folder) else {}
    given = {name for name in options if ctx.get_parameter_source(name) is _COMMANDLINE}
    chosen = {**options, **{key: before[key] for key in before if key not in given}}
    return DemoSettings(**chosen)
