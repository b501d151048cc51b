"""``protofleet models``: the models that have a name, and their settings."""

from __future__ import annotations

import json

import click

from protofleet.errors import InputError
from protofleet.export.catalogue import MODELS


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def models(*, name: str | None, as_json: bool) -> None:
    """List the models of export and pretrain, or the settings of the one called NAME.

    Sizes of examples and the number of classes come from the data, --input-shape and --classes; any
    setting may be given with --set KEY=VALUE. A module of one's own is package.module:function.
    """
    if name is None:
        _list(as_json=as_json)
        return
    if name not in MODELS:
        raise InputError(f"model '{name}': expected one of {', '.join(MODELS)}")
    from protofleet.export.models import described, settings_of

    settings, shape = settings_of(name), list(MODELS[name].input_shape)
    if as_json:
        click.echo(json.dumps({"name": name, "input_shape": shape, "settings": settings}))
        return
    click.echo(f"{name}: {described(name)}")
    click.echo(f"example, unless the data say another: {','.join(map(str, shape))}")
    for key, value in settings.items():
        click.echo(f"  --set {key}={json.dumps(value)}")


def _list(*, as_json: bool) -> None:
    shapes = {one: list(known.input_shape) for one, known in MODELS.items()}
    if as_json:
        click.echo(json.dumps(shapes))
        return
    width = max(map(len, shapes))
    for one, shape in shapes.items():
        click.echo(f"{one:<{width}}  examples such as {','.join(map(str, shape))}")
    click.echo("protofleet models NAME has the settings of one")
