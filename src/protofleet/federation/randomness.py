"""Seeds of everything random in a federation: one seed gives the same run, also after restarts."""

from __future__ import annotations

import hashlib

import numpy as np


def client_rng(seed: int, round_id: int, client_id: str) -> np.random.Generator:
    """The randomness of one client in one round."""
    client = int.from_bytes(hashlib.sha256(client_id.encode()).digest()[:8], "big")
    return np.random.default_rng(np.random.SeedSequence([seed, round_id, client]))


def server_rng(seed: int, round_id: int) -> np.random.Generator:
    """The randomness of the server's aggregation of a round; round 0 is its initialisation."""
    return np.random.default_rng(np.random.SeedSequence([seed, round_id]))
