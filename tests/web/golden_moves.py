"""What devices take along to another bundle: ``golden_moves.py FOLDER`` writes cases and answers.

``cases.json`` has, for each strategy and each change of the bundle, the fate of every tensor as the
owner is told it, or why the state cannot move; states and what training starts from lie beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from attacks.hostile import KEY, PUBLIC
from numpy.typing import NDArray
from tiny_bundle import PROGRAMS

from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.manifest import (
    FORMAT_VERSION,
    Manifest,
    Port,
    Preprocessing,
    Program,
    StrategyDecl,
    TensorDecl,
)
from protofleet.edge.state.journal import PersonalState, StoreBinding, StoredFile, StoredState
from protofleet.edge.state.move import plan
from protofleet.errors import ProvisionError
from protofleet.strategies import build
from protofleet.strategies.types import ClientState
from protofleet.tensors import Layout
from protofleet.tensors.blobs import encode

_FEATURES = "programs/features.onnx"
_INPUT = Preprocessing(
    input_shape=(8, 2), rate_hz=50.0, window=8, hop=4, channels=("a", "b"), std=(2.0, 2.0)
)


@dataclass(frozen=True)
class _Model:
    """A bundle's model: a body with a buffer and aligned prototypes, and a head.

    ``value`` fills all of it.
    """

    width: int = 5
    classes: tuple[str, ...] = ("sit", "walk", "run")
    targets: tuple[str, ...] = ()
    value: float = 0.0
    body: str = "body"
    head: str = "weight"
    inputs: Preprocessing = _INPUT

    def write(self, path: Path) -> Bundle:
        """Sign it."""
        outputs = len(self.classes or self.targets)
        params = {
            f"{self.body}.weight": (self.width, 4),
            f"head.{self.head}": (outputs, self.width),
            "head.bias": (outputs,),
        }
        prototypes = (6, self.width)
        buffers = {
            "norm.mean": (4,),
            "alp.local_prototypes": prototypes,
            "alp.global_prototypes": prototypes,
            "beta": (),
        }
        files = {
            f"{kind}.safetensors": encode(
                {name: np.full(shape, self.value, np.float32) for name, shape in shapes.items()}
            )
            for kind, shapes in (("params", params), ("state", buffers))
        }
        files[_FEATURES] = (PROGRAMS / "4x3" / "features.onnx").read_bytes()
        manifest = Manifest(
            format=FORMAT_VERSION,
            name=path.stem,
            created="2026-01-01T00:00:00Z",
            layout_hash=Layout.of(params).hash,
            params=_declared(params),
            state=_declared(buffers),
            programs={"features": self._features()},
            preprocessing=self.inputs,
            task="regression" if self.targets else "classification",
            classes=self.classes,
            targets=self.targets,
            head=(f"head.{self.head}", "head.bias"),
            strategy=StrategyDecl(name="local", settings={}),
            provenance={},
            files={},
        )
        write_bundle(path, manifest, files, KEY)
        return Bundle.open(path, trusted={PUBLIC})

    def _features(self) -> Program:
        shapes = {"x": ("batch", *self.inputs.input_shape), "features": ("batch", self.width)}
        x, features = (
            Port(name=key, role=role, key=key, dtype="float32", shape=shapes[key])
            for key, role in (("x", "input"), ("features", "output"))
        )
        return Program(file=_FEATURES, inputs=(x,), outputs=(features,))


def _declared(shapes: Mapping[str, tuple[int, ...]]) -> tuple[TensorDecl, ...]:
    return tuple(TensorDecl(name=name, shape=shape) for name, shape in shapes.items())


def _inputs(**changes: Any) -> Preprocessing:
    return msgspec.structs.replace(_INPUT, **changes)


_OLD = _Model()
_ANEW = _Model(value=7.0)
_CHANGES = {
    "trained anew": _ANEW,
    "more classes": replace(_ANEW, classes=("lie", "run", "sit", "walk")),
    "fewer classes": replace(_ANEW, classes=("run", "sit")),
    "wider": replace(_ANEW, width=6),
    "another body": replace(_ANEW, body="trunk"),
    "scaled a little": replace(_ANEW, inputs=_inputs(mean=(0.5, 0.0), std=(2.0, 3.0))),
    "scaled otherwise": replace(_ANEW, inputs=_inputs(mean=(0.0, 4.0))),
    "channels": replace(_ANEW, inputs=_inputs(channels=("b", "a"))),
    "window": replace(_ANEW, inputs=_inputs(input_shape=(6, 2), window=6)),
    "as many classes": replace(_ANEW, classes=("walk", "sit", "run")),
    "another task": replace(_ANEW, classes=(), targets=("speed", "slope")),
    "nothing alike": replace(_ANEW, width=6, body="trunk", classes=("a", "b", "c", "d")),
}
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fedper": {"head": "head."},
    "scaffold": {"optimiser": {"kind": "sgd", "lr": 0.1}},
}
STRATEGIES = (
    *("ditto", "fedala", "fedali", "fedavg", "fedavg_c", "fedhp", "fedper", "fedproto"),
    *("fedprox", "fedrep", "local", "moon", "protohar", "scaffold"),
)


def write(folder: Path) -> None:
    """Everything: bundles, states and cases."""
    folder.mkdir(parents=True)
    cases = []
    for strategy in STRATEGIES:
        head = "prototypes" if strategy == "fedhp" else "weight"
        old = _bundle(folder, "old", replace(_OLD, head=head))
        state = _state(strategy, old)
        (folder / f"{strategy}.safetensors").write_bytes(encode(state.tensors))
        for change, model in _CHANGES.items():
            new = _bundle(folder, change, replace(model, head=head))
            told = _told(strategy, state, old, new, folder / f"{strategy}, {change}.safetensors")
            cases.append(
                {
                    "strategy": strategy,
                    "settings": dict(_SETTINGS.get(strategy, {})),
                    "change": change,
                    "old": f"old, {head}.pfb",
                    "new": f"{change}, {head}.pfb",
                    **told,
                }
            )
    (folder / "cases.json").write_text(json.dumps({"signer": PUBLIC.hex(), "cases": cases}))


def _bundle(folder: Path, name: str, model: _Model) -> Bundle:
    path = folder / f"{name}, {model.head}.pfb"
    return Bundle.open(path, trusted={PUBLIC}) if path.exists() else model.write(path)


def _state(strategy: str, bundle: Bundle) -> ClientState:
    """As rounds leave one: other numbers, and what a run keeps beside the model."""
    made = build(strategy, _SETTINGS.get(strategy, {}), bundle.model())
    tensors: dict[str, NDArray[Any]] = {
        name: (np.arange(value.size) % 97 + len(name)).reshape(value.shape).astype(value.dtype)
        for name, value in made.client_init(bundle.model()).tensors.items()
    }
    tensors["optimiser/0.0"] = np.ones(3, np.float32)
    return ClientState(round_id=3, tensors=tensors)


def _told(
    strategy: str, state: ClientState, old: Bundle, new: Bundle, start: Path
) -> dict[str, Any]:
    file = StoredFile(sha256="", bytes=0)
    personal = PersonalState(
        binding=StoreBinding(federation="f", bundle=old.digest, layout_hash=""),
        strategy=strategy,
        settings=dict(_SETTINGS.get(strategy, {})),
        state=StoredState(round_id=3, transfer_id="t", file=file),
    )
    try:
        move = plan(personal, state, old, new)
    except ProvisionError as error:
        return {"refused": str(error)}
    if move.start is not None:
        start.write_bytes(encode(move.start))
    return {
        "refused": None,
        "text": str(move),
        "tensors": [str(one) for one in move.tensors],
        "notes": list(move.notes),
        "start": None if move.start is None else start.name,
    }


if __name__ == "__main__":
    write(Path(sys.argv[1]))
