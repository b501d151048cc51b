"""``protofleet kernels``: machine code made ahead of time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from protofleet.cli._verbosity import say


@click.group()
def kernels() -> None:
    """Compiled kernels of this machine."""


@kernels.command()
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the code; default: $PROTOFLEET_KERNEL_CACHE, else this user's cache.",
)
def warm(cache: Path | None) -> None:
    """Compile every kernel for this processor, so that no first round has to wait for it.

    For images of SD cards and containers: run it on the model of device that the image is for, and
    set PROTOFLEET_KERNEL_CACHE there if you name a folder here.
    """
    from protofleet.kernels import warm as warm_all

    if cache is not None:
        os.environ["PROTOFLEET_KERNEL_CACHE"] = str(cache.resolve())
    started = time.perf_counter()
    warmed = warm_all(_tell)
    click.echo(
        f"{warmed.compiled} kernels compiled, {warmed.kept} already there; "
        f"{time.perf_counter() - started:.1f} s; {warmed.folder}"
    )


def _tell(name: str, compiled: bool) -> None:
    say(f"{name}: {'compiled' if compiled else 'already there'}")
