"""The one place on a device that counts: time by phase, latencies, memory.

The device does one thing at a time, so its time is one line cut into phases: entering a phase ends
the one before it, and no second is counted twice. Only ``gate`` goes on beside them: a fold is held
out while the device sends and waits. Bytes are counted by the link and kept by the store, because
they must survive a restart.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.federation.records import MAX_SAMPLES, Costs
from protofleet.wire.mqtt.usage import DeviceUsage

PhaseName = Literal["idle", "receive", "train", "evaluate", "infer", "encode", "send", "gate"]

_WARM_UP_CALLS = 3
_MEASURED_CALLS = 30


class Meter:
    """What the device has spent since the last update.

    Args:
        wall: monotonic clock, seconds.
        cpu: CPU time of the process, seconds.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._wall, self._cpu = wall, cpu
        self._phase: PhaseName = "idle"
        self._since = wall(), cpu()
        self._wall_s: defaultdict[PhaseName, float] = defaultdict(float)
        self._cpu_s: defaultdict[PhaseName, float] = defaultdict(float)
        self._train_step_ms: list[float] = []
        self._infer_ms: list[float] = []

    def enter(self, phase: PhaseName) -> PhaseName:
        """Begin ``phase``; returns the one that ends."""
        now = self._wall(), self._cpu()
        self._wall_s[self._phase] += now[0] - self._since[0]
        self._cpu_s[self._phase] += now[1] - self._since[1]
        ended, self._phase, self._since = self._phase, phase, now
        return ended

    @contextmanager
    def phase(self, phase: PhaseName) -> Iterator[None]:
        """Be in ``phase`` within the block and in the outer one again behind it."""
        outer = self.enter(phase)
        try:
            yield
        finally:
            self.enter(outer)

    @contextmanager
    def train_step(self) -> Iterator[None]:
        """Time one call of a training program (forward and backward, without the optimiser)."""
        start = self._wall()
        yield
        self._train_step_ms.append(1e3 * (self._wall() - start))

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Time the inference of one window."""
        start = self._wall()
        yield
        self._infer_ms.append(1e3 * (self._wall() - start))

    def count(self, phase: PhaseName, spent: Costs) -> None:
        """Add what something has cost that went on beside the line of phases."""
        self._wall_s[phase] += sum(spent.phases_s.values())
        self._cpu_s[phase] += sum(spent.cpu_s.values())

    def take_cpu(self) -> dict[str, float]:
        """Seconds of processor time by phase since the last ``take``; the rest is forgotten."""
        self.enter(self._phase)
        spent = _rounded(self._cpu_s)
        self._forget()
        return spent

    def take(self) -> Costs:
        """Everything counted since the last ``take``.

        ``encode`` and ``send`` are of the round before: an update is complete before it is
        encoded and sent.
        """
        self.enter(self._phase)
        costs = Costs(
            train_step_ms=thinned(self._train_step_ms),
            infer_ms=thinned(self._infer_ms),
            phases_s=_rounded(self._wall_s),
            cpu_s=_rounded(self._cpu_s),
            peak_rss_bytes=peak_rss_bytes(),
        )
        self._forget()
        return costs

    def _forget(self) -> None:
        self._wall_s.clear()
        self._cpu_s.clear()
        self._train_step_ms.clear()
        self._infer_ms.clear()


def measure_windows(
    meter: Meter, scores: Callable[[NDArray[np.float32]], object], x: NDArray[np.float32]
) -> None:
    """Time ``scores`` as a device in use calls it: on single examples of ``x``, in turn."""
    for call in range(_WARM_UP_CALLS + _MEASURED_CALLS if len(x) else 0):
        window = x[call % len(x) : call % len(x) + 1]
        if call < _WARM_UP_CALLS:
            scores(window)
            continue
        with meter.inference():
            scores(window)


def thinned(samples: Sequence[float], most: int = MAX_SAMPLES) -> tuple[float, ...]:
    """At most ``most`` of the samples, evenly spaced in time, to the microsecond."""
    if len(samples) > most:
        samples = [samples[int(i)] for i in np.linspace(0, len(samples) - 1, most)]
    return tuple(round(sample, 3) for sample in samples)


def high_water_bytes(process: int | Literal["self"]) -> int | None:
    """Largest resident memory of a process so far; None where the system does not tell."""
    return _status_bytes(process, "VmHWM:")


def resident_bytes(process: int | Literal["self"]) -> int | None:
    """Resident memory of a process now; None where the system does not tell."""
    return _status_bytes(process, "VmRSS:")


def _status_bytes(process: int | Literal["self"], field: str) -> int | None:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith(field)]
    return 1024 * found[0] if found else None


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far."""
    # ru_maxrss of a child includes what its parent had before exec; VmHWM does not.
    known = high_water_bytes("self")
    if known is not None:
        return known
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def device_usage(bytes_up: int, bytes_down: int) -> DeviceUsage:
    """What a heartbeat tells; the bytes are those at the socket since the device joined."""
    return DeviceUsage(bytes_up=bytes_up, bytes_down=bytes_down, peak_rss_bytes=peak_rss_bytes())


def _rounded(seconds: Mapping[PhaseName, float]) -> dict[str, float]:
    return {phase: round(value, 6) for phase, value in seconds.items() if phase != "idle"}
