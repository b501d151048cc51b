"""Files that a command writes at its end, tried at its beginning."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from protofleet.errors import InputError

PICTURES = (".png", ".svg")


def writable(_context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """The option's value, if a file can be written there; known before hours of work, not after."""
    if path is not None:
        check_writable_file(path, f"--{option.opts[0].lstrip('-')}")
    return path


def writable_picture(
    context: click.Context, option: click.Parameter, path: Path | None
) -> Path | None:
    """As ``writable``, for a picture."""
    if path is not None and path.suffix not in PICTURES:
        raise click.BadParameter(f"expected a name that ends in .png or .svg, got '{path}'")
    return writable(context, option, path)


def check_writable_file(path: Path, named: str) -> None:
    """Raise InputError unless a file or folder can be made at ``path``."""
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except FileNotFoundError as error:
        raise InputError(f"{named} '{path}': no such folder: '{path.parent}'") from error
    except OSError as error:
        raise InputError(
            f"{named} '{path}': nothing can be written there: {error.strerror}"
        ) from error
