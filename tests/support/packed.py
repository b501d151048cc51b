"""An update as a raw blob, as a device without a codec sends it."""

from __future__ import annotations

from protofleet.federation.coding import encode_update
from protofleet.federation.records import Costs
from protofleet.strategies.types import Update
from protofleet.wire.codecs import Codec


def pack_update(update: Update, costs: Costs, *, work: float = 1.0) -> bytes:
    """The raw blob of an update, made by so much of the local training."""
    return encode_update(update, costs, {}, Codec(), {}, work=work).blob
