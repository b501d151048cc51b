"""``protofleet load``: thousands of light devices on one coordinator."""

from __future__ import annotations

from pathlib import Path

import click

from protofleet.cli._outputs import writable
from protofleet.cli._verbosity import say
from protofleet.cli._width import wrapped

_LEAST_BYTES, _MOST_BYTES = 1024, 2**30


@click.command()
@click.option(
    "--devices",
    "counts",
    type=click.IntRange(1, 100_000),
    multiple=True,
    default=(100,),
    show_default=True,
    metavar="N",
    help="How many; repeat for several loads.",
)
@click.option(
    "--update-bytes",
    type=click.IntRange(_LEAST_BYTES, _MOST_BYTES),
    default=65_536,
    show_default=True,
    metavar="N",
    help="Of parameters in each update and payload.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="To measure, behind a first one that is not.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=writable,
    help="Also write rows to FILE.",
)
def load(
    *, counts: tuple[int, ...], update_bytes: int, rounds: int, json_file: Path | None
) -> None:
    """What a coordinator and Mosquitto bear on this machine.

    Light devices, all in one process, have a connection each and speak the whole protocol; they do
    not train. Each adds its own number to what it gets, and the final model is checked for all of
    them. The bound is a loop that reads, hashes and adds as many bytes as a round brings.

    docs/scale.md says how to read the figures. Needs Mosquitto.
    """
    from protofleet.benchmarks import _rows
    from protofleet.benchmarks.load.measure import measure

    result = _rows.Result(machine=_rows.machine_facts(), rows=[])
    facts = " · ".join(f"{name} {value}" for name, value in result.machine.items())
    click.echo("\n".join(wrapped(facts, hanging=2)))
    for devices in counts:
        say(f"{devices} devices, {update_bytes} bytes …")
        row = measure(devices, update_bytes, rounds)
        for line in row.lines():
            click.echo(line)
        result.rows.append(row)
        if json_file is not None:
            result.write(json_file)
