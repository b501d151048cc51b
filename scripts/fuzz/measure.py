"""What the costliest inputs of one decoder cost without the fuzzer: ``measure.py TARGET FOLDER``.

The slowest and the largest that the fuzzer met, its corpora and the examples; prints JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from fuzz.target import Target
from fuzz.targets import TARGETS


def main() -> None:
    """Run each input three times; the least time counts, because others use the machine."""
    name, folder = sys.argv[1:]
    logging.disable()
    target = TARGETS[name]
    costly = [Path(folder, kept) for kept in ("slowest", "largest")]
    files = [*(path for path in costly if path.is_file()), *Path(folder, "found").iterdir()]
    inputs = [*target.examples, *target.kept(), *(path.read_bytes() for path in files)]
    print(
        json.dumps(
            {
                "largest_bytes": max(target.peak_bytes(data) for data in inputs),
                "slowest_ms": 1e3 * max(_seconds(target, data) for data in inputs),
            }
        )
    )


def _seconds(target: Target, data: bytes) -> float:
    found = []
    for _ in range(3):
        began = time.perf_counter()
        target.run(data)
        found.append(time.perf_counter() - began)
    return min(found)


if __name__ == "__main__":
    main()
