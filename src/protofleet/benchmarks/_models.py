"""Models of the benchmarks, exported in memory: published sizes, no signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from torch import nn

from protofleet.bundle import write_bundle
from protofleet.bundle.manifest import (
    FORMAT_VERSION,
    Manifest,
    Preprocessing,
    Program,
    StrategyDecl,
    TensorDecl,
)
from protofleet.errors import InputError
from protofleet.export.capture import CapturedProgram, capture, model_tensors
from protofleet.export.models import build_model
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.tflite import to_tflite
from protofleet.tensors import Model, TensorMap
from protofleet.tensors.blobs import encode

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
    Case(
        name="ResNet-18 32x32, batch 32",
        spec="resnet18",
        input_shape=(3, 32, 32),
        batch=32,
        settings={"small_input": True},
    ),
    Case(
        name="ViT with ALP, digits 8x8, batch 32",
        spec="vit_digits",
        input_shape=(1, 8, 8),
        batch=32,
    ),
    Case(
        name="fastText, 64 of 20000 words, batch 32",
        spec="fasttext",
        input_shape=(64,),
        batch=32,
        settings={"vocabulary": 20_000},
    ),
    *(
        Case(
            name=f"{kind} of {hidden}, 128 x 6, batch 32",
            spec="protofleet.export.sweep.recurrent:Sequential",
            input_shape=(128, 6),
            batch=32,
            settings={"kind": kind, "hidden": hidden, "classes": 6},
        )
        for kind in ("LSTM", "GRU", "RNN")
        for hidden in (64, 128)
    ),
    Case(
        name="DeepConvLSTM, 128 x 6, batch 32",
        spec="protofleet.export.sweep.recurrent:DeepConvLstm",
        input_shape=(128, 6),
        batch=32,
        settings={"classes": 6},
    ),
)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A model, its programs and a batch; what ``open_programs`` needs of a bundle.

    Attributes:
        module: as it was captured.
        captured: the training program before it became ONNX.
        manifest: names programs, parameters and state.
        files: programs by path.
        x, y: a batch.
    """

    module: nn.Module
    captured: CapturedProgram
    manifest: Manifest
    files: Mapping[str, bytes]
    x: NDArray[np.float32]
    y: NDArray[np.int64]

    @property
    def train(self) -> bytes:
        """The training program."""
        return self.files[_file("train")]

    def file_bytes(self, program: str, backend: str) -> int:
        """Size of a program's file for ``onnx`` or ``litert``."""
        return len(self.files[_file(program) if backend == "onnx" else _tflite(program)])

    def read(self, name: str, /) -> bytes:
        """One program."""
        return self.files[name]

    def model(self) -> Model:
        """Fresh parameters and buffers."""
        found = model_tensors(self.module)
        return Model(
            params=_packed(found.params),
            buffers=_packed(found.buffers),
            input_shape=self.manifest.preprocessing.input_shape,
            num_classes=len(self.manifest.classes),
        )

    def write(self, path: Path, key: Ed25519PrivateKey) -> None:
        """Write a signed bundle."""
        model = self.model()
        tensors = {
            "params.safetensors": encode(model.params, {}),
            "state.safetensors": encode(model.buffers, {}),
        }
        write_bundle(path, self.manifest, {**self.files, **tensors}, key)


def matching(names: Iterable[str], only: Sequence[str]) -> list[str]:
    """The models that have one of ``only`` in their names, all where it is empty.

    Raises:
        InputError: there is none.
    """
    known = list(names)
    found = [name for name in known if not only or any(part in name for part in only)]
    if not found:
        raise InputError(f"--only {' '.join(only)}: no such model; there are {', '.join(known)}")
    return found


def export_case(case: Case) -> Exported:
    """Build a model with fixed weights and export its programs."""
    torch.manual_seed(0)
    return export_model(build_model(case.spec, **case.settings), case)


def export_model(model: nn.Module, case: Case) -> Exported:
    """Export a case's model, whatever became of it, as programs for a random batch."""
    rng = np.random.default_rng(0)
    shape = (case.batch, *case.input_shape)
    # Words are whole numbers.
    words = case.settings.get("vocabulary")
    drawn = rng.integers(0, words, shape) if words else rng.normal(size=shape)
    x = drawn.astype(np.float32)
    classes = model(torch.from_numpy(x)).shape[1]
    y = rng.integers(0, classes, case.batch)
    example = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
    train = capture(model, OBJECTIVES[OBJECTIVE], example)
    infer = capture(model, None, {"x": example["x"]})
    programs = {"train": train, "infer": infer}
    files = {_file(name): to_onnx(program, name=name) for name, program in programs.items()}
    files |= {_tflite(name): to_tflite({name: program}) for name, program in programs.items()}
    return Exported(
        module=model,
        captured=train,
        manifest=_manifest(model, programs, case, classes),
        files=files,
        x=x,
        y=y,
    )


def _manifest(
    model: nn.Module, programs: Mapping[str, CapturedProgram], case: Case, classes: int
) -> Manifest:
    tensors = model_tensors(model)
    params = _packed(tensors.params)
    return Manifest(
        format=FORMAT_VERSION,
        name=case.spec,
        created="2026-01-01T00:00:00Z",
        layout_hash=params.layout.hash,
        params=_declared(params),
        state=_declared(_packed(tensors.buffers)),
        programs={
            name: Program(
                file=_file(name),
                tflite=_tflite(name),
                inputs=program.inputs,
                outputs=program.outputs,
                objective=None if program.objective is None else program.objective.name,
            )
            for name, program in programs.items()
        },
        preprocessing=Preprocessing(input_shape=case.input_shape),
        classes=tuple(f"class {number}" for number in range(classes)),
        strategy=StrategyDecl(name="fedali" if "alp" in case.spec else "fedavg", settings={}),
        provenance={"model": case.spec},
        files={},
    )


def _file(program: str) -> str:
    return f"programs/{program}.onnx"


def _tflite(program: str) -> str:
    return f"programs/{program}.tflite"


def _packed(tensors: Mapping[str, torch.Tensor]) -> TensorMap:
    return TensorMap.pack({name: value.detach().numpy() for name, value in tensors.items()})


def _declared(tensors: TensorMap) -> tuple[TensorDecl, ...]:
    return tuple(TensorDecl(name=n, shape=s) for n, s in tensors.layout.shapes.items())
