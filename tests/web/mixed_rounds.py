"""Compares a mixed federation, round by round, with devices of ONNX Runtime alone.

    python mixed_rounds.py FOLDER STRATEGY SETTINGS DEVICE...

``FOLDER`` is the federation's (``mixed_files.py``, and the server's state of every round in
``run/states``), ``SETTINGS`` the strategy's in JSON. The same federation is run once more in this
process, with every device on ONNX Runtime. Standard output is a line of JSON for each round: the
largest difference of the two servers' parameters, relative to their largest change since the start,
and the same of prototypes where there are some.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from protofleet.bundle import Bundle
from protofleet.datasets.device_data import load_device_data
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.runtime import open_programs
from protofleet.strategies import build
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import ClientState, ServerState, ServerTools
from protofleet.tensors.blobs import decode

_SEED = 3
"""Of the federation."""
_MAX_BYTES = 2**30


class OnnxRuntimeFederation:
    """Devices on ONNX Runtime and their server, all in this process."""

    def __init__(self, folder: Path, names: Sequence[str], strategy: str, settings: Any) -> None:
        bundle = Bundle.open(folder / "bundle.pfb", any_signer=True)
        programs = open_programs(bundle, backend="onnx", kernels="graph")
        self._learners = {
            name: Learner(
                bundle,
                programs,
                LocalData(own=load_device_data(folder / f"{name}.npz")),
                Meter(),
                name,
            )
            for name in names
        }
        self._strategy: Strategy = build(strategy, settings, bundle.model())
        self._clients: dict[str, ClientState] = {}
        self.state = self._strategy.server_init(bundle.model(), np.random.default_rng(0))

    def run_round(self) -> None:
        """Replace the server's state by the next one."""
        updates = []
        for name, learner in self._learners.items():
            payload = self._strategy.downlink(self.state, name)
            before = self._clients.get(name)
            self._clients[name], update = learner.train(self._strategy, before, payload, seed=_SEED)
            tensors = {tensor: np.array(value) for tensor, value in update.tensors.items()}
            updates.append(replace(update, tensors=tensors))
        tools = ServerTools(grad_fns={}, predict=_no_programs, rng=np.random.default_rng(0))
        self.state = self._strategy.aggregate(self.state, updates, tools)


def _no_programs(*_arguments: object, **_named: object) -> Any:
    raise AssertionError("these servers run no program")


def _states(folder: Path) -> list[ServerState]:
    """After each round."""
    return [
        ServerState(round_id=round_id, tensors=decode(path.read_bytes(), max_bytes=_MAX_BYTES)[0])
        for path in sorted(folder.glob("*.safetensors"))
        if (round_id := int(path.stem))
    ]


def _difference(mixed: ServerState, alone: ServerState, initial: ServerState) -> dict[str, float]:
    """By kind of tensor."""
    kinds: dict[str, list[str]] = {}
    for name in mixed.tensors:
        kinds.setdefault("prototypes" if "prototypes" in name else "parameters", []).append(name)
    return {
        kind: _most(mixed, alone, names) / _most(alone, initial, names)
        for kind, names in kinds.items()
    }


def _most(one: ServerState, other: ServerState, names: Sequence[str]) -> float:
    return max(float(np.abs(one.tensors[name] - other.tensors[name]).max()) for name in names)


def main(folder: Path, strategy: str, settings: Any, names: Sequence[str]) -> None:
    """Write it."""
    federation = OnnxRuntimeFederation(folder, names, strategy, settings)
    initial = federation.state
    for mixed in _states(folder / "run" / "states"):
        federation.run_round()
        told = {"round": mixed.round_id, **_difference(mixed, federation.state, initial)}
        sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    _folder, _strategy, _settings, *_names = sys.argv[1:]
    main(Path(_folder), _strategy, json.loads(_settings), _names)
