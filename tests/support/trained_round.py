"""What a local round made, as a store keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofleet.federation.client import TrainedRound
from protofleet.federation.records import Costs
from protofleet.strategies.types import ClientState, Update
from protofleet.wire.codecs import Coding


def trained_round(
    state: ClientState, blob: bytes, residual: Mapping[str, Any] | None = None
) -> TrainedRound:
    """A round whose update is ``blob``."""
    update = Update(client_id="d", round_id=state.round_id, num_examples=1, tensors={})
    return TrainedRound(
        state=state,
        residual=residual or {},
        update=update,
        costs=Costs(),
        parts=[blob],
        coding=Coding(),
    )
