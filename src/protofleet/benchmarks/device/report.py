"""What ``protofleet bench device`` measures, as records; docs/benchmarks.md has the JSON form."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from protofleet.bundle.manifest import Precision
from protofleet.errors import InputError

SCHEMA = 1
RANDOM = "random"
"""In place of data: numbers of the declared shape."""

Backend = Literal["onnx", "litert"]


class Phase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a process did, once or many times.

    Attributes:
        name: ``import``, ``verify``, ``open``, ``infer``, ``stream``, ``open training`` or
            ``train``.
        batch: examples in a call; None where there are none.
        calls: how many were measured.
        ms: wall time of a call by percentile: ``p50``, from 20 calls on ``p95``, from 100 on
            ``p99``.
        cpu_ms: mean processor time of a call, all threads together.
        seconds: wall time of all calls.
        peak_rss_bytes: largest resident memory of the process in the phase, with what was loaded
            before; None where the system does not tell.
        energy_j: of a call, of everything that the source counts; None where it is not exposed.
        net_energy_j: the same less what the idle machine takes in that time.
    """

    name: str
    batch: int | None = None
    calls: int
    ms: dict[str, float]
    cpu_ms: float
    seconds: float
    peak_rss_bytes: int | None = None
    energy_j: float | None = None
    net_energy_j: float | None = None

    @property
    def key(self) -> str:
        """The name with the batch where several differ by it."""
        return f"{self.name} {self.batch}" if self.name == "train" else self.name

    @property
    def per_s(self) -> float | None:
        """Examples in a second."""
        return self.batch * self.calls / self.seconds if self.batch and self.seconds else None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How well the bundle's own values classify the test part of the given data."""

    macro_f1: float
    accuracy: float
    examples: int


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measures."""

    backend: Backend
    precision: Precision
    threads: int

    @property
    def label(self) -> str:
        """In words."""
        return f"{self.backend} {self.precision}, {_counted(self.threads, 'thread')}"


class DeviceRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One combination, measured in a process of its own.

    Attributes:
        status: ``absent``: bundle or machine lack it; ``failed``: its process ended early, the
            phases before that stand.
        reason: why it is absent or failed, and what helps.
        phases: in the order of the process.
        uses_kernels: whether ``protofleet.kernels`` compute ALP nodes of the training steps.
        objective: of the training steps; None where none was measured.
        no_training: why there are no training steps.
        memory: how peaks were taken.
        program_bytes: of the program files that inference and training need, by file.
        weight_bytes: of the files of parameters and state beside them; 0 where the program holds
            them.
        score: None without data.
    """

    what: Combination
    status: Literal["measured", "absent", "failed"]
    reason: str = ""
    phases: tuple[Phase, ...] = ()
    uses_kernels: bool = False
    objective: str | None = None
    no_training: str = ""
    memory: str = ""
    program_bytes: dict[str, int] = {}
    weight_bytes: int = 0
    score: Score | None = None

    def phase(self, key: str) -> Phase | None:
        """The phase of that key."""
        return next((one for one in self.phases if one.key == key), None)

    @property
    def load_ms(self) -> float | None:
        """From the first import to the first inferred window; None before that."""
        parts = [self.phase(name) for name in ("import", "verify", "open")]
        if any(part is None for part in parts):
            return None
        return sum(part.ms["p50"] for part in parts if part is not None)


class StrategyTraffic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes of one device in one round of a strategy, as blobs; MQTT adds about 1 %.

    Attributes:
        codec: of the wire, both ways; ``raw`` is the tensors as they are. ``topk / int4`` is
            ``topk`` for the update and ``int4`` for the payload, which cannot be ``topk``.
        down_bytes, up_bytes: the payload and the update; None where there is a reason.
        reason: why the bundle cannot run the strategy.
    """

    strategy: str
    codec: str
    down_bytes: int | None = None
    up_bytes: int | None = None
    reason: str = ""

    @property
    def total(self) -> int | None:
        """Both ways."""
        if self.down_bytes is None or self.up_bytes is None:
            return None
        return self.down_bytes + self.up_bytes


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Where joules come from.

    Attributes:
        source: what counts, and what belongs to it; None where the machine exposes nothing.
        reason: why not, and what helps.
        idle_w: power before the first run.
    """

    source: str | None
    reason: str = ""
    idle_w: float | None = None


class BundleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Which bundle was measured."""

    name: str
    digest: str
    strategy: str
    params: int
    state: int
    bytes: int


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How it was measured.

    Attributes:
        seconds: of a phase of many calls.
        seed: of random examples, noise and strategies.
        quick: few calls.
        stream_batch: examples in a call when they stream.
        traffic_examples: most examples of the rounds whose bytes are counted.
    """

    seconds: float
    seed: int
    quick: bool
    stream_batch: int
    traffic_examples: int


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of one call of ``protofleet bench device``.

    Attributes:
        kind, schema: tell this file from others and from later versions.
        data: where the examples come from, or ``RANDOM``.
        load_average: processes that wanted a core in the minute before; 0 on a quiet machine.
    """

    kind: Literal["device"] = "device"
    schema: int = SCHEMA
    machine: dict[str, str]
    bundle: BundleFacts
    settings: Settings
    load_average: float
    data: str
    energy: Energy
    runs: list[DeviceRun]
    traffic: list[StrategyTraffic]

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def is_device_report(data: bytes) -> bool:
    """Whether a JSON file calls itself one of these."""
    try:
        return msgspec.json.decode(data, type=_Kind).kind == "device"
    except msgspec.MsgspecError:
        return False


def read_report(path: Path, data: bytes) -> DeviceReport:
    """The report in ``data``, the content of ``path``.

    Raises:
        InputError: of another version, or a field is missing or wrong.
    """
    try:
        schema = msgspec.json.decode(data, type=_Kind).schema
        if schema == SCHEMA:
            return msgspec.json.decode(data, type=DeviceReport)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"benchmark file '{path}': expected what 'protofleet bench device --json' writes: "
            f"{error}"
        ) from error
    raise InputError(
        f"benchmark file '{path}': expected schema {SCHEMA}, got {schema}; measure again with this "
        "version"
    )


class _Kind(msgspec.Struct):
    kind: str = ""
    schema: int = 0


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
