"""Models of the benchmarks, exported in memory: published sizes, no signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protofleet.export.capture import capture, model_tensors
from protofleet.export.models import build_model
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx_write import to_onnx
from protofleet.wire.manifest import (
    FORMAT_VERSION,
    Manifest,
    Preprocessing,
    Program,
    StrategyDecl,
    TensorDecl,
)
from protofleet.wire.tensors import TensorMap

OBJECTIVE = "cross_entropy"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model at one batch size.

    Attributes:
        name: in the table.
        spec: model by name in ``protofleet.export.models``.
        input_shape: of one example.
        batch: examples in a step.
        settings: of the model.
    """

    name: str
    spec: str
    input_shape: tuple[int, ...]
    batch: int
    settings: Mapping[str, Any] = field(default_factory=dict)


CASES = (
    Case(name="HART with ALP, batch 64", spec="hart_alp", input_shape=(128, 6), batch=64),
    Case(name="HART, batch 64", spec="hart", input_shape=(128, 6), batch=64),
    Case(
        name="MLP 561-128-512-6, batch 32",
        spec="mlp",
        input_shape=(561,),
        batch=32,
        settings={"inputs": 561, "classes": 6},
    ),
    Case(name="CNN 28x28, batch 32", spec="cnn", input_shape=(1, 28, 28), batch=32),
)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A model, its training program and a batch; what ``open_programs`` needs of a bundle."""

    model: nn.Module
    manifest: Manifest
    program: bytes
    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def read(self, _name: str, /) -> bytes:
        """The training program."""
        return self.program

    def tensors(self) -> tuple[TensorMap, TensorMap]:
        """Fresh parameters and state."""
        found = model_tensors(self.model)
        return _packed(found.params), _packed(found.state)


def export_case(case: Case) -> Exported:
    """Build a model with fixed weights and export its training program."""
    torch.manual_seed(0)
    model = build_model(case.spec, **case.settings)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(case.batch, *case.input_shape)).astype(np.float32)
    classes = model(torch.from_numpy(x)).shape[1]
    y = rng.integers(0, classes, case.batch)
    captured = capture(
        model, OBJECTIVES[OBJECTIVE], {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
    )
    data = to_onnx(captured, name="train")
    program = Program(
        file="train.onnx",
        inputs=captured.inputs,
        outputs=captured.outputs,
        objective=OBJECTIVE,
    )
    return Exported(model=model, manifest=_manifest(model, program, case), program=data, x=x, y=y)


def _manifest(model: nn.Module, program: Program, case: Case) -> Manifest:
    tensors = model_tensors(model)
    params = _packed(tensors.params)
    return Manifest(
        format=FORMAT_VERSION,
        name=case.name,
        created="2026-01-01T00:00:00Z",
        layout_hash=params.layout.hash,
        params=_declared(params),
        state=_declared(_packed(tensors.state)),
        programs={"train": program},
        preprocessing=Preprocessing(input_shape=case.input_shape),
        classes=(),
        strategy=StrategyDecl(name="fedavg", settings={}),
        provenance={},
        files={},
    )


def _packed(tensors: Mapping[str, torch.Tensor]) -> TensorMap:
    return TensorMap.pack({name: value.detach().numpy() for name, value in tensors.items()})


def _declared(tensors: TensorMap) -> tuple[TensorDecl, ...]:
    return tuple(TensorDecl(name=n, shape=s) for n, s in tensors.layout.shapes.items())
