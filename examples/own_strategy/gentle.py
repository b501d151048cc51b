"""A strategy of your own in one file, outside Protofleet: clients go only a part of their way.

    pip install ./own_strategy       # beside the export, on the coordinator, on every device
    protofleet strategies            # lists it
    python gentle.py digits.pfb      # any bundle that FedAvg can run on

It is FedAvg but for one thing: of what local training has changed a client sends only a share, and
keeps the whole: its own model is the one that it has trained.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.shared_model import SharedModel, SharedTraining
from protofleet.strategies.types import ClientState, ClientTools, Payload, Update


class GentleSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, and ``share``: how far a client lets the others follow it."""

    share: Annotated[float, Meta(gt=0, le=1)] = 0.5


class Gentle(SharedModel):
    """FedAvg of points on the way."""

    description = replace(
        FedAvg.description, name="gentle", paper="none: an example", combines="rule"
    )
    settings: GentleSettings

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        """Train as FedAvg does, send a point on the way."""
        state, update = super().client_update(state, payload, tools)
        share, sent = self.settings.share, payload.tensors
        tensors = {
            name: sent[name] + share * (value - sent[name])
            for name, value in update.tensors.items()
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
