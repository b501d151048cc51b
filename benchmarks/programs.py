"""Training steps in ONNX Runtime against PyTorch eager: the same threads, in the same run.

A step is one forward and backward pass over a batch that lies in memory, with dropout noise drawn
anew on either side; neither side's optimiser runs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from protofleet.benchmarks._models import CASES, OBJECTIVE, Case, Exported, export_case
from protofleet.benchmarks._rows import Row, paired_row
from protofleet.benchmarks._timing import in_turns
from protofleet.export.device_check import device_runner
from protofleet.export.parity import check_parity
from protofleet.runtime import Kernels, open_programs
from protofleet.strategies.types import Batch

_SAMPLE_S = 0.05  # a sample of a fast step is the mean of as many calls as fit in this


def run(*, quick: bool) -> list[Row]:
    """Rows of every model at one and two threads."""
    repeats = 5 if quick else 15
    cases = CASES[:1] if quick else CASES
    return [row for case in cases for row in _case(case, repeats)]


def _case(case: Case, repeats: int) -> list[Row]:
    exported = export_case(case)
    tensors = exported.tensors()
    device = device_runner("train", exported.manifest, exported.files, tensors)
    parity = check_parity(
        exported.model, exported.captured, exported.train, name="train", runners={"device": device}
    )
    facts = Row(
        bench="programs",
        case=f"{case.name}: training program",
        details={
            "program_kb": round(len(exported.train) / 1e3, 1),
            "params": tensors[0].layout.size,
            "worst_relative_error": parity.worst_error,
        },
    )
    return [facts, *(row for threads in (1, 2) for row in _times(case, exported, threads, repeats))]


def _times(case: Case, exported: Exported, threads: int, repeats: int) -> list[Row]:
    torch.set_num_threads(threads)
    sides = {
        "kernels": _ours(exported, "auto", threads),
        "graph": _ours(exported, "graph", threads),
        "torch": _eager(exported),
    }
    if b"AlpTrain" not in exported.train:
        del sides["graph"]
    (once,) = in_turns({"torch": sides["torch"]}, repeats=1)["torch"]
    calls = max(1, round(_SAMPLE_S / once.wall_s))
    samples = in_turns(sides, repeats=repeats, calls=calls)
    names = {"kernels": case.name, "graph": f"{case.name}, plain graph"}
    return [
        paired_row(
            ("programs", names[side]),
            threads,
            samples[side],
            baseline="PyTorch eager",
            theirs=samples["torch"],
        )
        for side in sides
        if side != "torch"
    ]


def _ours(exported: Exported, kernels: Kernels, threads: int) -> Callable[[], object]:
    grad_fn = open_programs(exported, threads=threads, kernels=kernels).grad_fns[OBJECTIVE]
    params, state = exported.tensors()
    batch: Batch = {"x": exported.x, "y": exported.y}
    rng = np.random.default_rng(0)
    return lambda: grad_fn(params, state, batch, rng)


def _eager(exported: Exported) -> Callable[[], object]:
    model = exported.model.train()
    x, y = torch.from_numpy(exported.x), torch.from_numpy(exported.y)
    params = [value for value in model.parameters() if value.requires_grad]

    def step() -> object:
        loss = functional.cross_entropy(model(x), y)
        return torch.autograd.grad(loss, params)

    return step
