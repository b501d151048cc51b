"""One combination of backend, precision and threads, measured phase by phase as on a device.

Run as ``python -m protofleet.benchmarks.device.child REQUEST``, a ``Request`` as JSON. Writes
lines of JSON: what begins, what was measured. Nothing but the standard library is loaded before the
first phase, and PyTorch never.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protofleet.benchmarks.device.request import ProgramInputs, Request
    from protofleet.bundle import Bundle
    from protofleet.runtime import Classifier

_FOR_P95, _FOR_P99 = 20, 100
_MOST_CALLS = 5000
_WARM_UP_CALLS = 3
_PATIENCE = 10
_RESET_PEAK = "5"  # proc(5), clear_refs: the peak of resident memory falls to what is in use


def main(text: str) -> None:
    """Measure what ``text`` asks for."""
    phases = Phases()
    with phases.once("import"):
        import protofleet.edge  # noqa: F401, PLC0415 what a device loads is what is measured
        from protofleet.benchmarks.device.request import (  # noqa: PLC0415 as above
            open_bundle,
            parse,
            take_examples,
        )
        from protofleet.runtime import open_classifier  # noqa: PLC0415 as above

    request = parse(text)
    phases.seconds = request.seconds
    with phases.once("verify"):
        bundle = open_bundle(request)
    examples = take_examples(request, bundle.manifest)
    what = request.what
    with phases.once("open"):
        classifier = open_classifier(
            bundle, precision=what.precision, backend=what.backend, threads=what.threads
        )
        classifier.predict(examples.windows(1), batch_size=1)
    _infer(phases, classifier, request, examples)
    del classifier  # a device that trains holds no second copy of the weights
    if what.precision == "float32" and request.batches:
        _train(phases, bundle, request, examples)


def _infer(
    phases: Phases, classifier: Classifier, request: Request, examples: ProgramInputs
) -> None:
    one, many = examples.windows(1), examples.windows(request.stream_batch)
    phases.repeat(
        "infer", lambda: classifier.predict(one, batch_size=1), batch=1, least=request.least_infer
    )
    phases.repeat(
        "stream",
        lambda: classifier.predict(many, batch_size=len(many)),
        batch=len(many),
        least=request.least,
    )
    if examples.test is None:
        return
    from protofleet.edge.learning.training import EVALUATION_BATCH  # noqa: PLC0415 after the first phase
    from protofleet.strategies.tasks import TASKS  # noqa: PLC0415 as above

    x, y = examples.test
    task = TASKS[examples.task]
    outputs = classifier.predict(x, batch_size=EVALUATION_BATCH)
    if task.kind == "classes":
        found = task.score(task.statistics(outputs, y, outputs.shape[-1]))
        say(score={**found, "examples": len(y)})


def _train(phases: Phases, bundle: Bundle, request: Request, examples: ProgramInputs) -> None:
    import numpy as np  # noqa: PLC0415 as above

    from protofleet.runtime import open_programs  # noqa: PLC0415 as above

    objective = request.objective
    with phases.once("open training"):
        programs = open_programs(bundle, threads=request.what.threads, backend=request.what.backend)
        network, rng = bundle.model().network, np.random.default_rng(request.seed)
        grad_fn = programs.grad_fns[objective]
        smallest = examples.batch(objective, min(request.batches))
        grad_fn(network, smallest, rng)
    say(training={"objective": objective, "uses_kernels": programs.uses_kernels})
    for size in request.batches:
        batch: dict[str, Any] = examples.batch(objective, size)
        phases.repeat(
            "train",
            lambda batch=batch: grad_fn(network, batch, rng),  # type: ignore[misc]
            batch=size,
            least=request.least,
        )


class Peak:
    """The largest resident memory of this process since the last ``reset``.

    Attributes:
        method: how it is taken, for the report.
    """

    def __init__(self) -> None:
        self._proc = Path("/proc/self")
        if self.reset():
            self.method = "VmHWM, set back before each phase"
        else:
            self.method = "ru_maxrss, which never falls: a phase shows the largest so far"

    def reset(self) -> bool:
        """Begin anew; False where the system does not allow it."""
        try:
            (self._proc / "clear_refs").write_text(_RESET_PEAK)
        except OSError:
            return False
        return True

    def read(self) -> int:
        """Bytes."""
        try:
            lines = (self._proc / "status").read_text().splitlines()
        except OSError:
            lines = []
        for line in lines:
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class Phases:
    """Runs phases and writes a line of JSON before and after each.

    Attributes:
        seconds: how long a phase of many calls takes, if that gives enough calls.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._peak = Peak()
        say(memory=self._peak.method)

    @contextmanager
    def once(self, name: str) -> Iterator[None]:
        """The block is a phase."""
        self._begin(name, None)
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        seconds = time.perf_counter() - wall
        self._end(name, None, [seconds], time.process_time() - cpu)

    def repeat(self, name: str, call: Callable[[], object], *, batch: int, least: int) -> None:
        """Call again and again for the seconds of a phase.

        Args:
            name: of the phase.
            call: one sample each.
            batch: examples in a call.
            least: calls, unless they take ten times as long as they should.
        """
        self._begin(name, batch)
        for _ in range(_WARM_UP_CALLS):
            call()
        samples: list[float] = []
        # The energy of the warm-up belongs to nobody.
        say(begin=name, batch=batch)
        cpu, began = time.process_time(), time.perf_counter()
        before = began
        while len(samples) < _MOST_CALLS:
            call()
            now = time.perf_counter()
            samples.append(now - before)
            before = now
            limit = self.seconds if len(samples) >= least else _PATIENCE * self.seconds
            if now - began > limit:
                break
        self._end(name, batch, samples, time.process_time() - cpu)

    def _begin(self, name: str, batch: int | None) -> None:
        self._peak.reset()
        say(begin=name, batch=batch)

    def _end(self, name: str, batch: int | None, samples: list[float], cpu_s: float) -> None:
        say(
            phase={
                "name": name,
                "batch": batch,
                "calls": len(samples),
                "ms": _percentiles([1e3 * sample for sample in samples]),
                "cpu_ms": round(1e3 * cpu_s / len(samples), 4),
                "seconds": round(sum(samples), 6),
                "peak_rss_bytes": self._peak.read(),
            }
        )


def say(**message: Any) -> None:
    """One line of JSON for the process that measures."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _percentiles(samples: list[float]) -> dict[str, float]:
    """Those that so many samples can tell, with linear interpolation."""
    ordered = sorted(samples)
    wanted = {"p50": (0.5, 1), "p95": (0.95, _FOR_P95), "p99": (0.99, _FOR_P99)}
    return {
        name: round(_at(ordered, share), 4)
        for name, (share, least) in wanted.items()
        if len(ordered) >= least
    }


def _at(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


if __name__ == "__main__":
    main(sys.argv[1])
