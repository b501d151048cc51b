"""``protofleet device stores`` and ``reset``: the folders of devices."""

from __future__ import annotations

import json
from pathlib import Path

import click

from protofleet.cli._store import chosen_store, store_option
from protofleet.errors import InputError
from protofleet.units import byte_text

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("folder", type=_PATH, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines for programs.")
def stores(folder: Path | None, as_json: bool) -> None:
    """List device stores: of this user's devices, or those that lie in FOLDER."""
    import msgspec

    from protofleet.edge.state.stores import list_stores, stores_folder

    found = list_stores(folder)
    if as_json:
        for one in found:
            record = {**msgspec.to_builtins(one, enc_hook=str), "path": str(one.path)}
            click.echo(json.dumps(record))
        return
    if not found:
        click.echo(f"no device store in '{folder or stores_folder()}'; see: protofleet device join")
    for one in found:
        click.echo(str(one.path))
        if one.problem:
            click.echo(f"    cannot be read: {one.problem}")
            continue
        rounds = f"round {one.round_id}" if one.round_id else "no round finished"
        rounds += ", a head trained alone" if one.head else ""
        bundle = f"bundle '{one.bundle}'" if one.bundle else "no bundle"
        federation = f"federation '{one.federation}'" if one.federation else "no federation"
        size = byte_text(one.size_bytes)
        click.echo(f"    {federation}, device '{one.device_id}', {rounds}, {bundle}, {size}")


@click.command()
@store_option
@click.option("--identity", "with_identity", is_flag=True, help="Forget the device id, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(store: Path | None, with_identity: bool, yes: bool) -> None:
    """Forget the personal model, what is on its way, and the federation of a device's store.

    The device id stays, so that a coordinator still knows the device, unless --identity is given.
    """
    from protofleet.edge.state.stores import reset_store, summarise

    folder = chosen_store(store)
    known = summarise(folder)
    rounds = f"its personal model of round {known.round_id}" if known.round_id else "no model yet"
    kept = "nothing stays" if with_identity else f"the device id '{known.device_id}' stays"
    click.echo(
        f"{folder}: federation '{known.federation}', {rounds}, {byte_text(known.size_bytes)}, "
        f"will be deleted for good; {kept}",
        err=True,
    )
    if not yes and not _agreed():
        raise click.Abort
    reset_store(folder, with_identity=with_identity)
    click.echo(f"{folder}: reset", err=True)


def _agreed() -> bool:
    try:
        return click.confirm("Delete?", err=True)
    except click.Abort as error:
        raise InputError(
            "device reset: expected an answer, got none, so nothing is deleted; without a "
            "terminal: --yes"
        ) from error
