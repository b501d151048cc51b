"""How much memory a device needs: a process of its own trains a round on an owner's data.

``python -m protofleet.rehearsal.dry_run`` is that process; nothing is in it but the edge runtime.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from protofleet.errors import InputError

_LIMIT_S = 600.0


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a local round takes.

    Attributes:
        memory_bytes: most that the process had in memory.
    """

    memory_bytes: int


def dry_run(bundle: Path, data: Path, strategy: str, settings: Mapping[str, Any]) -> DryRun:
    """Train one round of an owner in a process of its own; the same is tried once.

    Args:
        bundle: of the federation.
        data: an owner's ``.npz``.
        strategy: of the federation.
        settings: its settings, with a learning rate.

    Raises:
        InputError: the process failed, with its last line.
    """
    asked = {"bundle": str(bundle), "data": str(data), "strategy": strategy, "settings": settings}
    return _tried(json.dumps(asked, sort_keys=True))


@cache
def _tried(asked: str) -> DryRun:
    done = subprocess.run(
        [sys.executable, "-m", __name__, asked],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        data = json.loads(asked)["data"]
        raise InputError(f"data '{data}': a device cannot train on it ({said[-1][:300]})")
    return msgspec.json.decode(done.stdout, type=DryRun)


def _train(bundle: str, data: str, strategy: str, settings: Mapping[str, Any]) -> None:
    """What a device does in a round, from the payload's tensors to the update's bytes."""
    # As of a device, whose connection is part of its memory, too.
    from protofleet.bundle import Bundle  # noqa: PLC0415 - nothing of it is in the parent
    from protofleet.datasets import load_device_data  # noqa: PLC0415 - as above
    from protofleet.edge import agent  # noqa: PLC0415 - as above
    from protofleet.edge.join import open_learner  # noqa: PLC0415 - as above
    from protofleet.edge.learning.training import LocalData  # noqa: PLC0415 - as above
    from protofleet.tensors import blobs  # noqa: PLC0415 - as above

    del agent
    opened = Bundle.open(Path(bundle), any_signer=True)
    tokens = opened.manifest.preprocessing.tokens is not None
    own = LocalData(own=load_device_data(Path(data), tokens=tokens))
    learner = open_learner(opened, own, threads=1, device_id="dry-run")
    method, model = learner.strategy(strategy, settings), opened.model()
    state = method.server_init(model, np.random.default_rng(0))
    payload = method.downlink(state, "dry-run")
    kept, update = learner.train(method, None, payload, seed=0)
    blobs.encode(update.tensors)
    blobs.encode(kept.tensors)


if __name__ == "__main__":
    from protofleet.edge.learning.meter import peak_rss_bytes

    _train(**json.loads(sys.argv[1]))
    sys.stdout.write(msgspec.json.encode(DryRun(memory_bytes=peak_rss_bytes())).decode())
