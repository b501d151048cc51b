"""Times native ONNX Runtime for ``src/web/bench/steps.ts``, one request after the other.

``native_steps.py BUNDLE BATCH`` opens a bundle on one thread, without kernels of our own, and
answers every line of standard input, ``step N`` or ``train N``, with the mean milliseconds of N
calls of the training program, or of N training steps with the optimiser.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from protofleet.bundle import Bundle
from protofleet.runtime import open_programs
from protofleet.strategies.training import Trainer, Training
from protofleet.strategies.types import TASK_LOSS, TrainTools


def _calls(path: Path, batch: int) -> dict[str, Callable[[], object]]:
    bundle = Bundle.open(path, any_signer=True)
    programs = open_programs(bundle, kernels="graph")
    rng = np.random.default_rng(0)
    shape = (batch, *bundle.manifest.preprocessing.input_shape)
    x = rng.standard_normal(shape, dtype=np.float32)
    y = rng.integers(0, len(bundle.manifest.classes), batch)
    tools = TrainTools(name="bench", x=x, y=y, grad_fns=programs.grad_fns, rng=rng)
    network, grad_fn = bundle.model().network, programs.grad_fns[TASK_LOSS]
    trainer, rows = Trainer(network.copy(), tools, Training()), np.arange(batch)
    return {
        "step": lambda: grad_fn(network, {"x": x, "y": y}, rng),
        "train": lambda: trainer.step(rows),
    }


def _main() -> None:
    calls = _calls(Path(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin:
        name, count = line.split()
        began = time.perf_counter()
        for _ in range(int(count)):
            calls[name]()
        sys.stdout.write(f"{(time.perf_counter() - began) * 1e3 / int(count)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
