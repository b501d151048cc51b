"""Proves one case: exported, compared with PyTorch, and trained in each runtime beside PyTorch."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn
from torch.nn import functional

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.errors import ExportError
from protofleet.export.build import BundleSpec, ExportReport, export_bundle
from protofleet.export.capture.noise import Distribution, explicit_noise
from protofleet.export.formats import FORMATS, Format
from protofleet.export.sweep.cases import CLASSES, SweepCase, classifier
from protofleet.runtime import open_programs
from protofleet.strategies.training import REWRITTEN
from protofleet.strategies.types import Batch, GradFn
from protofleet.tensors import Network

_BACKENDS: Mapping[Format, Literal["onnx", "litert"]] = {"onnx": "onnx", "tflite": "litert"}
_RUNNERS: Mapping[Format, str] = {"onnx": "ONNX Runtime", "tflite": "LiteRT"}
_BATCH = 8
_STEPS = 5
_LARGEST_STEP = 0.1
# Rounding, fed back into the parameters at every step.
_SAME_LOSS = 1e-3
_TIMED_BATCH = 32
_TIMED_STEPS = 15
_REPOSITORY = f"{Path(__file__).resolve().parents[2]}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What holds in one format.

    Attributes:
        error: largest relative difference from PyTorch over programs, batch sizes and tensors.
        kilobytes: of the training program's file; TFLite has all programs in one.
        step: a training step's time as a multiple of PyTorch's; None where it is not measured.
    """

    error: float
    kilobytes: float
    step: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """A case's line of the table.

    Attributes:
        name, group: the case's.
        proofs: by format: what holds, or why it cannot be used.
        seconds: of the export with all its checks.
    """

    name: str
    group: str
    proofs: Mapping[Format, Proof | str]
    seconds: float = 0.0


def prove(case: SweepCase) -> SweepRow:
    """Export a case the way a user does, and train it; what fails is told in the row."""
    started = time.perf_counter()
    try:
        return _proved(case, None)
    except Exception as error:  # noqa: BLE001 - any failure is a finding
        failed = dict.fromkeys(FORMATS, _line(error))
        whole = SweepRow(name=case.name, group=case.group, proofs=failed)
    proofs: dict[Format, Proof | str] = {}
    for one in FORMATS:
        try:
            proofs[one] = _proved(case, (one,)).proofs[one]
        except Exception as error:  # noqa: BLE001 - as above
            proofs[one] = _line(error)
    return replace(whole, proofs=proofs, seconds=time.perf_counter() - started)


def _proved(case: SweepCase, formats: tuple[Format, ...] | None) -> SweepRow:
    model = classifier(case)
    spec = BundleSpec(
        name="sweep",
        strategy="fedavg",
        classes=tuple(map(str, range(CLASSES))),
        preprocessing=Preprocessing(input_shape=case.input_shape, tokens=case.tokens),
        formats=formats,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.pfb"
        started = time.perf_counter()
        report = export_bundle(model, spec, out=path, key=Ed25519PrivateKey.generate())
        seconds = time.perf_counter() - started
        bundle = Bundle.open(path, any_signer=True)
        written = [one for one in formats or FORMATS if one not in report.left_out]
        proofs: dict[Format, Proof | str] = {
            one: _trained(case, model, bundle, one, report) for one in written
        }
    left_out = {one: reason.replace(_REPOSITORY, "") for one, reason in report.left_out.items()}
    return SweepRow(name=case.name, group=case.group, proofs=proofs | left_out, seconds=seconds)


def _trained(
    case: SweepCase, model: nn.Module, bundle: Bundle, one: Format, report: ExportReport
) -> Proof:
    """Take a few steps in the runtime and in PyTorch.

    Raises:
        ExportError: the losses differ, or do not fall.
    """
    step = open_programs(bundle, backend=_BACKENDS[one]).grad_fns["cross_entropy"]
    initial = bundle.model()
    got = _losses(step, Network(params=initial.params, buffers=initial.buffers), _batch(case))
    expected = _pytorch_losses(model, _batch(case))
    far = max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(got, expected, strict=True))
    if not far <= _SAME_LOSS:
        raise ExportError(
            f"training in {_RUNNERS[one]}: expected PyTorch's losses {_shown(expected)}, "
            f"got {_shown(got)}"
        )
    if not got[-1] < got[0]:
        raise ExportError(
            f"training in {_RUNNERS[one]}: expected the loss to fall, got {_shown(got)}"
        )
    train = bundle.manifest.programs["train"]
    file = train.file if one == "onnx" else train.tflite
    return Proof(
        error=max(record.by_runner[_RUNNERS[one]] for record in report.parity),
        kilobytes=bundle.manifest.files[str(file)].bytes / 1000,
        step=_step_ratio(case, model, bundle, step) if case.whole else None,
    )


def _shown(losses: Sequence[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)


def _batch(case: SweepCase, size: int = _BATCH) -> Batch:
    rng = np.random.default_rng(0)
    shape = (size, *case.input_shape)
    x = (
        rng.standard_normal(shape, dtype=np.float32)
        if case.tokens is None
        else rng.integers(case.tokens, size=shape)
    )
    return {"x": x, "y": rng.integers(CLASSES, size=size)}


def _losses(step: GradFn, network: Network, batch: Batch) -> list[float]:
    """Of steps along the gradient, none longer than ``_LARGEST_STEP``, all with the same noise."""
    losses = []
    for _ in range(_STEPS):
        result = step(network, batch, np.random.default_rng(0))
        losses.append(result.loss)
        for name in network.params:
            if name + REWRITTEN in result.buffers:
                network.params[name][...] = result.buffers[name + REWRITTEN]
        length = float(np.linalg.norm(result.grads.buffer))
        network.params.buffer[:] -= _LARGEST_STEP / max(1.0, length) * result.grads.buffer
        network = Network(params=network.params, buffers=result.buffers)
    return losses


def _pytorch_losses(model: nn.Module, batch: Batch) -> list[float]:
    """The same steps of the module under PyTorch's own autograd, with the same noise."""
    losses = []
    model = copy.deepcopy(model).train()
    for _ in range(_STEPS):
        with explicit_noise(_drawn_from(np.random.default_rng(0))):
            loss = _backward(model, batch)
        losses.append(float(loss))
        grads = [value.grad for value in model.parameters() if value.grad is not None]
        length = float(torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads])))
        with torch.no_grad():
            for value in model.parameters():
                if value.grad is not None:
                    value.sub_(_LARGEST_STEP / max(1.0, length) * value.grad)
    return losses


def _backward(model: nn.Module, batch: Batch) -> Tensor:
    model.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(
        model(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"])
    )
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _drawn_from(rng: np.random.Generator) -> Callable[[Sequence[Any], Distribution], Tensor]:
    def draw(shape: Sequence[Any], distribution: Distribution) -> Tensor:
        sample = rng.random if distribution == "uniform" else rng.standard_normal
        return torch.from_numpy(np.asarray(sample(tuple(shape), dtype=np.float32)))

    return draw


def _step_ratio(case: SweepCase, model: nn.Module, bundle: Bundle, step: GradFn) -> float:
    """Median time of a training step over that of PyTorch's, one thread each, taken in turns."""
    batch, rng = _batch(case, _TIMED_BATCH), np.random.default_rng(0)
    initial = bundle.model()
    network = Network(params=initial.params, buffers=initial.buffers)
    eager = copy.deepcopy(model).train()
    times: list[tuple[float, float]] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(_TIMED_STEPS):
            started = time.perf_counter()
            step(network, batch, rng)
            between = time.perf_counter()
            _backward(eager, batch)
            times.append((between - started, time.perf_counter() - between))
    finally:
        torch.set_num_threads(threads)
    ours, theirs = (statistics.median(column) for column in zip(*times[2:], strict=True))
    return float(ours / theirs)


def _line(error: Exception) -> str:
    """The first line of a message, paths as seen from the repository."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text.replace(_REPOSITORY, "")
