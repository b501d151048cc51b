"""One combination of backend, precision and threads, measured as a device would run it.

Run as ``python -m protofleet.benchmarks._device_child REQUEST``, a ``Request`` as JSON. Writes
lines of JSON: what begins, what was measured. Nothing but the standard library is loaded before the
first phase, and PyTorch never.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from protofleet.benchmarks._device_phases import Phases, say

if TYPE_CHECKING:
    from protofleet.benchmarks._device_request import Examples, Request
    from protofleet.bundle import Bundle
    from protofleet.runtime import Classifier


def main(text: str) -> None:
    """Measure what ``text`` asks for."""
    phases = Phases()
    with phases.once("import"):
        import protofleet.edge  # noqa: F401, PLC0415 what a device loads is what is measured
        from protofleet.benchmarks._device_request import (  # noqa: PLC0415 as above
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


def _infer(phases: Phases, classifier: Classifier, request: Request, examples: Examples) -> None:
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
    from protofleet.edge.training import EVALUATION_BATCH  # noqa: PLC0415 after the first phase
    from protofleet.strategies.scores import confusion, score  # noqa: PLC0415 as above

    x, y = examples.test
    logits = classifier.predict(x, batch_size=EVALUATION_BATCH)
    counts = confusion(y, logits.argmax(axis=1), logits.shape[1])
    say(score={**score(counts), "examples": len(y)})


def _train(phases: Phases, bundle: Bundle, request: Request, examples: Examples) -> None:
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


if __name__ == "__main__":
    main(sys.argv[1])
