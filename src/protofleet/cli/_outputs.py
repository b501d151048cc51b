"""What a command writes at its end, tried at its beginning."""

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


def check_writable_file(path: Path, option: str) -> None:
    """Raise InputError unless ``path`` can be made, in a folder that exists."""
    if not path.parent.exists():
        raise InputError(f"{option} '{path}': no such folder: '{path.parent}'")
    check_writable_folder(path.parent, option, named=path)


def check_writable_bundle(out: Path) -> None:
    """Raise InputError if no bundle can be written to ``out``: ``*.pfb``, else a folder."""
    from protofleet.bundle.bundle import SUFFIX
    from protofleet.bundle.files import MANIFEST

    check_writable_folder(out.parent, "--out", named=out)
    if out.suffix == SUFFIX and out.is_dir():
        raise InputError(f"--out '{out}': is a folder; give another name, or remove it")
    if out.suffix != SUFFIX and out.exists() and not (out / MANIFEST).is_file():
        raise InputError(f"--out '{out}': exists and is no bundle; give another path, or remove it")


def check_writable_folder(folder: Path, option: str, *, named: Path | None = None) -> None:
    """Raise InputError unless files can be made in the folder, which may be still to be made.

    Args:
        folder: it, or the nearest one above it that exists, is tried.
        option: as the message says it.
        named: what the option says; None: the folder itself.
    """
    nearest = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise InputError(
            f"{option} '{named or folder}': cannot write in '{nearest}': {error.strerror}"
        ) from error
