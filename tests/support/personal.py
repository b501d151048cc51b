"""Stores with a personal model of the tiny bundle that is written down, not trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from scripted_coordinator import FEDERATION
from trained_round import trained_round

from protofleet.bundle import Bundle
from protofleet.edge.state.journal import StoreBinding
from protofleet.edge.state.move import BundleMove
from protofleet.edge.state.store import Store
from protofleet.federation.outcomes.gate import GateEvidence
from protofleet.strategies.types import ClientState


def opened_store(folder: Path, bundle: Bundle, *, scale: float = 3.0) -> Store:
    """A store of FedAvg whose round 2 has counted; its folder's name is the device's id."""
    store = Store.open(folder, device_id=folder.name)
    layout = bundle.manifest.layout_hash
    binding = StoreBinding(federation=FEDERATION, bundle=bundle.digest, layout_hash=layout)
    BundleMove(store, binding, bundle).commit()
    store.bind_strategy("fedavg", {})
    deliver_personal(store, 2, scale=scale)
    return store


def deliver_personal(
    store: Store, round_id: int, *, scale: float, evidence: GateEvidence | None = None
) -> None:
    """A round counts; with its model, the score of class k is ``scale`` times the k-th number."""
    tensors = {
        "params/w": scale * np.eye(4, 3, dtype=np.float32),
        "params/b": np.zeros(3, np.float32),
    }
    state = ClientState(round_id=round_id, tensors=tensors)
    trained = replace(trained_round(state, b"update"), evidence=evidence)
    store.commit_trained(trained, transfer_id=f"t{round_id}")
    store.commit_delivered()
