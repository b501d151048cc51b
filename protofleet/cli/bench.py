"""``protofleet bench``: measured comparisons on this machine."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from protofleet.benchmarks._rows import Result
    from protofleet.benchmarks.kernels import Planned

_NAMES = ("programs", "memory", "rounds")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def bench() -> None:
    """Measure this machine: kernels, training steps, rounds, memory (docs/benchmarks.md)."""


def _output(_context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Known before minutes of measuring, not after."""
    if path is None:
        return None
    if not path.parent.is_dir():
        raise click.BadParameter(f"no such folder: '{path.parent}'")
    if option.name == "plot" and path.suffix not in {".png", ".svg"}:
        raise click.BadParameter(f"expected a name that ends in .png or .svg, got '{path}'")
    return path


def _integers(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"expected numbers from 1 such as 1,2; got '{text}'")
    return tuple(dict.fromkeys(int(part) for part in parts))


_quick = click.option("--quick", is_flag=True, help="Fewer cases and repetitions.")
_json = click.option(
    "--json", "json_file", type=_FILE, callback=_output, help="Also write rows to FILE."
)
_plot = click.option(
    "--plot", type=_FILE, callback=_output, help="Also draw kernels to FILE, .png or .svg."
)


@bench.command()
@_quick
@_json
@_plot
@click.option("--threads", default="", callback=_integers, help="Numbers of threads, e.g. 1,2.")
@click.option("--only", multiple=True, metavar="NAME", help="Kernels with NAME in theirs; repeat.")
def kernels(
    *,
    quick: bool,
    json_file: Path | None,
    plot: Path | None,
    threads: tuple[int, ...],
    only: tuple[str, ...],
) -> None:
    """Kernels against PyTorch, POT, scikit-learn and bounds, each with a target."""
    from protofleet.benchmarks.kernels import load_cases, plan

    planned = plan(load_cases(), quick=quick, only=only, threads=threads)
    _measure_kernels(_started(), planned, json_file, plot, quick=quick)


@bench.command("all")
@_quick
@_json
@_plot
def every(*, quick: bool, json_file: Path | None, plot: Path | None) -> None:
    """All of them; minutes."""
    from protofleet.benchmarks.kernels import load_cases, plan

    planned = plan(load_cases(), quick=quick)
    result = _started()
    _measure(result, _NAMES, json_file, quick=quick)
    _measure_kernels(result, planned, json_file, plot, quick=quick)


@bench.command()
@click.argument("first", metavar="A.json", type=_FILE)
@click.argument("second", metavar="B.json", type=_FILE)
def compare(first: Path, second: Path) -> None:
    """Two files of --json side by side."""
    from protofleet.benchmarks._compare import compare as lines

    for line in lines(first, second):
        click.echo(line)


def _started() -> Result:
    from protofleet.benchmarks import _rows

    result = _rows.Result(machine=_rows.machine_facts(), rows=[])
    click.echo(" · ".join(f"{name} {value}" for name, value in result.machine.items()))
    return result


def _measure(
    result: Result, names: tuple[str, ...], json_file: Path | None, *, quick: bool
) -> None:
    from protofleet.benchmarks import _rows

    for name in names:
        click.echo(f"measuring {name} …", err=True)
        found = importlib.import_module(f"protofleet.benchmarks.{name}").run(quick=quick)
        _rows.show(found, click.echo)
        result.rows.extend(found)
        if json_file is not None:
            result.write(json_file)


def _measure_kernels(
    result: Result,
    planned: list[Planned],
    json_file: Path | None,
    plot: Path | None,
    *,
    quick: bool,
) -> None:
    from protofleet.benchmarks import _kernel_rows
    from protofleet.benchmarks.kernels import measure

    started, rows = time.perf_counter(), []
    try:
        for found in measure(planned, lambda line: click.echo(line, err=True), quick=quick):
            rows += found
            result.rows.extend(found)
            if json_file is not None:
                result.write(json_file)
    finally:
        _kernel_rows.show_kernels(rows, click.echo)
    click.echo(f"\n{_kernel_rows.verdict(rows)}\n{time.perf_counter() - started:.1f} s")
    if plot is not None:
        from protofleet.benchmarks._kernel_plot import draw

        draw(plot, rows, [one.case for one in planned], result.machine)


def _command(name: str, summary: str) -> None:
    def command(json_file: Path | None, quick: bool) -> None:
        _measure(_started(), (name,), json_file, quick=quick)

    options: Callable[[Callable[..., None]], Any] = bench.command(name, help=summary)
    options(_quick(_json(command)))


_command("programs", "Training steps against PyTorch eager.")
_command("memory", "Peak memory of a device, with and without Numba.")
_command("rounds", "Rounds over Mosquitto: seconds, bytes, memory.")
