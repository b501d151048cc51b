"""Programs against PyTorch, eager and compiled: the same threads, taken in turns in the same run.

Two calls of every model: inference of one example, and a training step. A step is one forward and
backward pass over a batch that lies in memory, with dropout noise drawn anew on every side; no
side's optimiser runs. Inference is the call that a device makes, checks of the input included.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from protofleet.benchmarks._models import CASES, OBJECTIVE, Case, Exported, export_case, matching
from protofleet.benchmarks._rows import Row, paired_row
from protofleet.benchmarks._timing import Sample, in_turns
from protofleet.export.parity import check_parity, device_runner
from protofleet.runtime import Kernels, open_classifier, open_programs
from protofleet.runtime.programs import Programs
from protofleet.strategies.types import Batch

_SAMPLE_S = 0.05  # a sample of a fast call is the mean of as many as fit in this

_EAGER, _COMPILED = "PyTorch eager", "torch.compile"
_SIDES: Mapping[str, tuple[Literal["onnx", "litert"], Kernels]] = {
    "ONNX": ("onnx", "auto"),
    "ONNX, plain graph": ("onnx", "graph"),
    "LiteRT": ("litert", "graph"),
}
"""Backend and kernels by name in the table."""

_FIXED: Mapping[str, Literal["onnx", "litert"]] = {
    "ONNX, fixed values": "onnx",
    "LiteRT, fixed values": "litert",
}
"""Programs with the model inside, for inference alone."""

Sides = dict[str, Callable[[], object]]


def run(*, quick: bool, only: Sequence[str] = ()) -> Iterator[list[Row]]:
    """Each model's rows at one and two threads.

    Args:
        quick: the first model, few samples, and nothing that has to compile.
        only: models with one of these in their names; empty: all.

    Raises:
        InputError: there is no such model.
    """
    repeats = 5 if quick else 15
    compiles = not quick and compiler() is not None
    names = matching((case.spec for case in CASES), only)
    cases = [case for case in CASES if case.spec in names]
    return (_case(case, repeats, compiles=compiles) for case in (cases[:1] if quick else cases))


def compiler() -> str | None:
    """The C++ compiler that torch.compile would call; None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def _case(case: Case, repeats: int, *, compiles: bool) -> list[Row]:
    exported = export_case(case)
    own = exported.model()
    device = device_runner("train", exported.manifest, exported.files, (own.params, own.buffers))
    parity = check_parity(
        exported.module, exported.captured, exported.train, name="train", runners={"device": device}
    )
    facts = Row(
        bench="programs",
        case=f"{case.name}: parameters and worst difference",
        details={
            "params": own.params.layout.size,
            "worst_relative_error": parity.worst_error,
            "torch_compile": float(compiles),
        },
    )
    return [
        facts,
        *(
            row
            for threads in (1, 2)
            for program in ("infer", "train")
            for row in measured(
                (case.name, program), exported, threads, repeats=repeats, compiles=compiles
            )
        ),
    ]


def measured(
    case: tuple[str, str], exported: Exported, threads: int, *, repeats: int, compiles: bool
) -> list[Row]:
    """A row for every way to run one program, each against PyTorch eager.

    Args:
        case: the model's name and ``infer`` or ``train``.
        exported: the model.
        threads: of every side.
        repeats: samples of each side.
        compiles: whether torch.compile takes part.
    """
    torch.set_num_threads(threads)
    name, program = case
    call = _CALLS[program]
    sides: Sides = {
        side: call[0](exported, open_programs(exported, threads=threads, kernels=k, backend=b))
        for side, (b, k) in _SIDES.items()
        if side != "ONNX, plain graph" or b"Alp" in exported.train
    }
    if program == "infer":
        sides |= {side: _fixed_window(exported, b, threads) for side, b in _FIXED.items()}
    sides[_EAGER] = call[1](exported, exported.module)
    if compiles:
        torch.compiler.reset()
        sides[_COMPILED] = call[1](exported, torch.compile(exported.module))
    (once,) = in_turns({_EAGER: sides[_EAGER]}, repeats=1)[_EAGER]
    calls = max(1, round(_SAMPLE_S / once.wall_s))
    samples = in_turns(sides, repeats=repeats, calls=calls)
    return [
        _row((f"{name}: {program}", side), threads, samples, _kilobytes(exported, program, side))
        for side in sides
        if side != _EAGER
    ]


def _row(
    case: tuple[str, str],
    threads: int,
    samples: Mapping[str, list[Sample]],
    facts: Mapping[str, float],
) -> Row:
    title, side = case
    row = paired_row(
        ("programs", f"{title}, {side}"),
        threads,
        samples[side],
        baseline=_EAGER,
        theirs=samples[_EAGER],
    )
    row.details.update(facts)
    if _COMPILED in samples and side != _COMPILED:
        pairs = zip(samples[side], samples[_COMPILED], strict=True)
        ratio = statistics.median(ours.wall_s / theirs.wall_s for ours, theirs in pairs)
        row.details["ratio_to_compiled"] = round(ratio, 3)
    return row


def _kilobytes(exported: Exported, program: str, side: str) -> dict[str, float]:
    if side not in _SIDES:
        return {}
    return {"program_kb": round(exported.file_bytes(program, _SIDES[side][0]) / 1e3, 1)}


def _our_step(exported: Exported, programs: Programs) -> Callable[[], object]:
    grad_fn = programs.grad_fns[OBJECTIVE]
    network = exported.model().network
    batch: Batch = {"x": exported.x, "y": exported.y}
    rng = np.random.default_rng(0)
    return lambda: grad_fn(network, batch, rng)


def _our_window(exported: Exported, programs: Programs) -> Callable[[], object]:
    network, window = exported.model().network, exported.x[:1]
    return lambda: programs.predict(network, window, batch_size=1)


def _fixed_window(
    exported: Exported, backend: Literal["onnx", "litert"], threads: int
) -> Callable[[], object]:
    classifier, window = open_classifier(exported, backend=backend, threads=threads), exported.x[:1]
    return lambda: classifier.predict(window)


def _their_step(exported: Exported, forward: Callable[..., Any]) -> Callable[[], object]:
    model = exported.module
    x, y = torch.from_numpy(exported.x), torch.from_numpy(exported.y)
    params = [value for value in model.parameters() if value.requires_grad]

    def step() -> object:
        _set_training(model, training=True)
        loss = functional.cross_entropy(forward(x), y)
        return torch.autograd.grad(loss, params)

    return step


def _their_window(exported: Exported, forward: Callable[..., Any]) -> Callable[[], object]:
    model, window = exported.module, torch.from_numpy(exported.x[:1])

    def infer() -> object:
        _set_training(model, training=False)
        with torch.inference_mode():
            return forward(window)

    return infer


def _set_training(model: nn.Module, *, training: bool) -> None:
    """Switching visits every module: only where it changes something."""
    if model.training != training:
        model.train(training)


_CALLS: Mapping[str, tuple[Callable[..., Callable[[], object]], ...]] = {
    "infer": (_our_window, _their_window),
    "train": (_our_step, _their_step),
}
"""Our call and PyTorch's by program."""
