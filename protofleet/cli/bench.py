"""``protofleet bench``: measured comparisons on this machine."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_NAMES = ("programs", "memory", "rounds")


@click.group()
def bench() -> None:
    """Measure this machine: training steps, rounds and memory (docs/benchmarks.md)."""


def _measure(names: tuple[str, ...], json_file: Path | None, *, quick: bool) -> None:
    from protofleet.benchmarks import _rows

    machine, rows = _rows.machine_facts(), []
    click.echo(" · ".join(f"{name} {value}" for name, value in machine.items()))
    for name in names:
        click.echo(f"measuring {name} …", err=True)
        found = importlib.import_module(f"protofleet.benchmarks.{name}").run(quick=quick)
        _rows.show(found, click.echo)
        rows += found
        if json_file is not None:
            _rows.Result(machine=machine, rows=rows).write(json_file)


def _options(function: Callable[..., None]) -> Any:
    quick = click.option("--quick", is_flag=True, help="Fewer cases and repetitions.")
    json_file = click.option(
        "--json", "json_file", type=click.Path(path_type=Path), help="Also write rows to FILE."
    )
    return quick(json_file(function))


def _command(name: str, names: tuple[str, ...], summary: str) -> None:
    def command(json_file: Path | None, quick: bool) -> None:
        _measure(names, json_file, quick=quick)

    bench.command(name, help=summary)(_options(command))


_command("programs", ("programs",), "Training steps against PyTorch eager.")
_command("memory", ("memory",), "Peak memory of a device, with and without Numba.")
_command("rounds", ("rounds",), "Rounds over Mosquitto: seconds, bytes, memory.")
_command("all", _NAMES, "All of them; minutes.")
