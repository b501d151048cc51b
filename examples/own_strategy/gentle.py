"""A strategy of your own in one file, outside Protofleet: clients go only a part of their way.

    pip install ./own_strategy       # beside the export, on the coordinator, on every device
    protofleet strategies            # lists it
    python gentle.py digits.pfb      # any bundle that FedAvg can run on

It is FedAvg but for one thing: of what local training has changed a client sends only a share, and
keeps the whole: its own model is the one that it has trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from protofleet.strategies.averaging import (
    AveragingContext,
    SharedTraining,
    averaging,
    share_all,
)
from protofleet.strategies.common import parse_settings
from protofleet.strategies.methods import fedavg
from protofleet.strategies.types import ClientState, ClientTools, Payload, Strategy, Update
from protofleet.tensors import Model

DESCRIPTION = replace(
    fedavg.DESCRIPTION, name="gentle", paper="none: an example", weighted_mean=False
)


class GentleSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, and ``share``: how far a client lets the others follow it."""

    share: Annotated[float, Meta(gt=0, le=1)] = 0.5


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """The strategy for one model; raises InputError for settings that are none."""
    chosen = parse_settings("gentle", settings, GentleSettings)
    return averaging(share_all(DESCRIPTION, chosen, model), client_update)


def client_update(
    context: AveragingContext[GentleSettings],
    state: ClientState,
    payload: Payload,
    tools: ClientTools,
) -> tuple[ClientState, Update]:
    """Train as FedAvg does, send a point on the way."""
    state, update = fedavg.client_update(context, state, payload, tools)
    share, sent = context.settings.share, payload.tensors
    tensors = {
        name: sent[name] + share * (value - sent[name]) for name, value in update.tensors.items()
    }
    return state, replace(update, tensors=tensors)


def main(bundle: Path, rounds: int) -> None:
    """Compare it with FedAvg on the same clients."""
    import protofleet as pf  # noqa: PLC0415 - a device that loads the strategy needs none of it

    clients = pf.split(pf.load_dataset("digits"), 4, alpha=0.5)
    for name, settings in (("fedavg", {}), ("gentle", {"share": 0.5})):
        run = pf.Federation(bundle, clients, rounds=rounds, strategy=name, settings=settings)
        print(run.run())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="of digits, such as docs/api.md makes")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    main(given.bundle, given.rounds)
