"""One local round in a process of its own, as a device runs it; prints its figures as JSON.

Run as ``python -m protofleet.benchmarks._local_round BUNDLE EXAMPLES BACKEND``.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import msgspec
import numpy as np

from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData
from protofleet.edge import LocalData
from protofleet.edge.join import open_learner
from protofleet.edge.learning.meter import peak_rss_bytes
from protofleet.runtime import BackendName


def main(path: Path, examples: int, backend: BackendName) -> dict[str, float]:
    """Train one epoch of the bundle's strategy and evaluate."""
    bundle = Bundle.open(path, any_signer=True)
    data = LocalData(own=_data(bundle, examples))
    opened = peak_rss_bytes()
    learner = open_learner(bundle, data, threads=1, device_id="bench", backend=backend)
    learner.warm_up()  # as a device does before its first round
    strategy = learner.strategy(bundle.manifest.strategy.name, {"epochs": 1, "batch_size": 64})
    payload = strategy.downlink(
        strategy.server_init(learner.model, np.random.default_rng(0)), "bench"
    )
    _, update = learner.train(strategy, None, payload, seed=0)
    steps = learner.meter.take().train_step_ms
    return {
        "imported_rss_mb": opened / 1e6,
        "peak_rss_mb": peak_rss_bytes() / 1e6,
        "train_step_ms": statistics.median(steps),
        "loss": update.loss,
    }


def _data(bundle: Bundle, examples: int) -> DeviceData:
    rng = np.random.default_rng(0)
    shape, classes = bundle.manifest.preprocessing.input_shape, bundle.manifest.classes

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(0, len(classes), n)

    (x_train, y_train), (x_test, y_test) = part(examples), part(examples // 4)
    return DeviceData(
        x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=classes
    )


def _backend(name: str) -> BackendName:
    backend: BackendName = msgspec.convert(name, BackendName)
    return backend


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), _backend(sys.argv[3]))))
