"""Numbers drawn by NumPy, for the browser's generator: ``golden_random.py FILE`` writes JSON.

Long streams stand there as the SHA-256 of their bytes, so that the rare branches are among them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from protofleet.federation.randomness import client_rng

_CLIENTS = [(0, 1, "a"), (7, 3, "phone 2"), (2**32 - 1, 1, ""), (2**63 - 1, 100_000, "gerät-ü")]
_LONG = 300_000


def numbers() -> dict[str, Any]:
    """Everything that the file holds."""
    return {
        "seeds": [_seed(entropy) for entropy in ([0], [1, 2, 3], [2**32, 5, 2**64 - 1], [9] * 6)],
        "clients": [_client(*client) for client in _CLIENTS],
    }


def _seed(entropy: list[int]) -> dict[str, Any]:
    state = np.random.SeedSequence(entropy).generate_state(8)
    return {"entropy": [str(number) for number in entropy], "words": state.tolist()}


def _client(seed: int, round_id: int, client_id: str) -> dict[str, Any]:
    rng = client_rng(seed, round_id, client_id)
    uniform, normal = np.empty(5, np.float32), np.empty(8, np.float32)
    rng.random(out=uniform, dtype=np.float32)
    rng.standard_normal(out=normal, dtype=np.float32)
    permutations = [rng.permutation(count).tolist() for count in (0, 1, 2, 33)]
    # Of the last one every fourth draw is thrown away.
    most = [0, 1, 9, 1000, *[3 * 2**30] * 8]
    integers = [{"most": n, "drawn": int(rng.integers(0, n, endpoint=True))} for n in most]
    return {
        "seed": str(seed),
        "round_id": round_id,
        "client_id": client_id,
        "uniform": uniform.tolist(),
        "normal": normal.tolist(),
        "permutations": permutations,
        "integers": integers,
        "long_permutation": _sha256(rng.permutation(100_003).astype(np.int32)),
        "long_uniform": _sha256(rng.random(_LONG + 1, dtype=np.float32)),
        "long_normal": _sha256(rng.standard_normal(_LONG, dtype=np.float32)),
    }


def _sha256(values: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(values.tobytes()).hexdigest()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(numbers(), indent=1) + "\n")
