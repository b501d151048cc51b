"""What a run leaves and what a device reports: typed records, the same wherever they are read.

``result.json``, ``devices.json``, the ledger, the coordinator's events, reports and experiments all
use these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from protofleet.durable import replace_by_parts, replace_whole
from protofleet.errors import InputError, MissingDataError
from protofleet.federation.outcomes.calibration import Calibration
from protofleet.federation.outcomes.outcome import Outcome
from protofleet.federation.schedules.early_stopping import EarlyEnd
from protofleet.strategies.scores import MetricName, MetricValues
from protofleet.strategies.tasks import TASKS
from protofleet.tensors import TaskName
from protofleet.wire.mqtt.usage import DeviceUsage


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Mean and population standard deviation over so many devices.

    Attributes:
        n: how many; 0: not told.
    """

    mean: float
    std: float
    n: int = 0


Metrics = dict[MetricName, Spread]
"""One way of scoring the models: those of the task's metrics that are defined, in its order.

``sample_…`` is taken over all devices' test samples alike; of the own test parts only.
"""


class Scores(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was scored; None where nothing was measured or the strategy has no such model.

    Attributes:
        task: of the bundle; it says which metrics there are.
        personalisation: each device's model on its own test part.
        generalisation: each device's model on all devices' test parts together.
        own_loss: mean loss of each device's model on its own test part.
        more: further scores on the devices' own test parts, by the strategy's name for them.
        targets: of each target or label by name, over all devices' own test samples alike; empty
            where the task has classes.
        global_: the server's model on all devices' test parts together (``global`` in JSON).
    """

    task: TaskName = "classification"
    personalisation: Metrics | None = None
    generalisation: Metrics | None = None
    own_loss: Spread | None = None
    more: dict[str, Metrics] = {}
    targets: dict[str, MetricValues] = {}
    global_: Metrics | None = msgspec.field(default=None, name="global")

    @property
    def selecting(self) -> float | None:
        """Mean of the score that selects a best round: on own test parts, else the server's."""
        told = self.personalisation or self.global_
        found = None if told is None else told.get(TASKS[self.task].selects)
        return None if found is None else found.mean

    @property
    def loss(self) -> float | None:
        """Mean loss on own test parts."""
        return None if self.own_loss is None else self.own_loss.mean

    @property
    def sections(self) -> dict[str, Metrics]:
        """Metrics by the names that people use; no further score hides one of the three."""
        named = {
            "personalisation": self.personalisation,
            "generalisation": self.generalisation,
            "global": self.global_,
        }
        known = {name: found for name, found in named.items() if found is not None}
        return known | {name: found for name, found in self.more.items() if name not in named}


class PrivacyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the run has spent up to a round, that included.

    Attributes:
        epsilon, delta: of the device that was invited to most rounds.
        participations: to how many.
        clip: largest norm of a device's difference in the round.
        noise: standard deviation of the noise on each number of the released mean; rows of
            classes have their own.
        repeatable: the noise came from a seed in the file, so that it hid nothing.
    """

    epsilon: float
    delta: float
    participations: int
    clip: float
    noise: float
    repeatable: bool = False


class ClientCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a round cost a client, apart from its traffic; of several clients the mean.

    Attributes:
        train_s: processor time of training and of encoding the update, without evaluation.
        kept_bytes: what it keeps until its next round: the strategy's state, and what coding the
            update has left; None: not told.
    """

    train_s: float
    kept_bytes: float | None = None


class RoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One committed round.

    Attributes:
        round_id: from 1.
        final: the fit after the last round, from which nothing was aggregated.
        seconds: wall time from its opening to its commit.
        participants: clients whose update was accepted.
        bytes_up, bytes_down: of all clients: at the devices' sockets as heartbeats have reported
            so far, or the sizes of the blobs where there are no sockets.
        scores: of the participants' and the server's models.
        privacy: where noise was added.
        update_norms: medians of how far the updates differ from their payloads, by group of
            tensors (``claims.median_norms``).
        figures: what the strategy tells of how it aggregated, by its names
            (``types.ServerState.figures``); what is not finite is left out.
        costs: of the clients of an experiment; None: not told.
        staleness: by how many rounds the updates were late, on average.
        trained: of the participants, those that had examples to train on; None: not told. Where it
            is 0 nothing was learnt.
    """

    round_id: int
    final: bool = False
    seconds: float
    participants: int
    bytes_up: int
    bytes_down: int
    scores: Scores
    privacy: PrivacyRecord | None = None
    update_norms: dict[str, float] = {}
    figures: dict[str, float] = {}
    costs: ClientCosts | None = None
    staleness: float = 0.0
    trained: int | None = None


class Percentiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Milliseconds; None where nothing was measured."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


def percentiles(samples: Collection[float], *which: int) -> Percentiles:
    """Of these per cents (50, 95 or 99), with linear interpolation; empty without samples."""
    if not samples:
        return Percentiles()
    values = np.percentile(np.asarray(samples), which)
    found = {f"p{q}": round(float(value), 4) for q, value in zip(which, values, strict=True)}
    return Percentiles(**found)


class DeviceRecord(DeviceUsage, frozen=True):
    """One device's costs over the run."""

    id: str
    train_step_ms: Percentiles
    infer_ms: Percentiles


class CellRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a root knows of one of its cells: its devices so far, and its traffic with the root."""

    id: str
    devices: int
    bytes_up: int
    bytes_down: int


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``result.json``.

    Attributes:
        codec: how tensors travelled, updates / payloads.
        scores: of the best round, or of the final fit where there was one (``scores.run_scores``).
        last: as each section was scored last (``scores.last_scores``).
        start: of the server's model before the first round; empty where nobody measured it.
        switched_off: what devices were told not to send.
        outcome: what the run has done for its devices' owners; None: no owner has told, or the
            version that wrote this knew none.
        early_end: why it has fewer rounds than it was to have; None: it has them, or goes on.
        calibration: how its learning rate was chosen; None: the settings have one.
        device_troubles: what is wrong on devices (``outcomes.trouble``) → on which.
        cells: of a root; its rounds' bytes are those of the cells, and its devices' stand in the
            cells' own files.
    """

    strategy: str
    seed: int
    codec: str = "raw / raw"
    rounds: tuple[RoundRecord, ...]
    scores: Scores
    last: Scores = Scores()
    start: Scores = Scores()
    devices: tuple[DeviceRecord, ...]
    switched_off: str = ""
    outcome: Outcome | None = None
    early_end: EarlyEnd | None = None
    calibration: Calibration | None = None
    device_troubles: dict[str, tuple[str, ...]] = {}
    cells: tuple[CellRecord, ...] = ()

    @property
    def aggregated(self) -> tuple[RoundRecord, ...]:
        """The rounds without the final fit."""
        return tuple(item for item in self.rounds if not item.final)

    @property
    def privacy(self) -> PrivacyRecord | None:
        """What the run has spent; None: no noise was added."""
        return next((one.privacy for one in reversed(self.rounds) if one.privacy), None)


_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
MAX_SAMPLES, MAX_PHASES = 200, 32
"""Of the latencies, and of the phases, that travel with an update."""
_Samples = Annotated[tuple[_Amount, ...], msgspec.Meta(max_length=MAX_SAMPLES)]
_Phase = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_-]{1,32}\Z")]
_Seconds = Annotated[dict[_Phase, _Amount], msgspec.Meta(max_length=MAX_PHASES)]
_Backend = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,32}\Z")]
_FLOAT32 = 3.5e38
"""Beyond every float32."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What a round cost its device.

    Attributes:
        train_step_ms: samples of the time of one training step.
        infer_ms: samples of the latency of one inference.
        phases_s: wall time by phase, e.g. ``receive``, ``train``, ``evaluate``, ``encode``.
        cpu_s: CPU time by phase.
        peak_rss_bytes: largest resident memory of the process so far.
        backend: who ran the bundle's programs: ``onnx``, ``litert``, ``onnx-web`` of a browser;
            absent: not told.
    """

    train_step_ms: _Samples = ()
    infer_ms: _Samples = ()
    phases_s: _Seconds = {}
    cpu_s: _Seconds = {}
    peak_rss_bytes: int = 0
    backend: _Backend | msgspec.UnsetType = msgspec.UNSET

    @property
    def backend_name(self) -> str:
        """The backend; empty: not told."""
        return "" if self.backend is msgspec.UNSET else self.backend


StatisticRows = tuple[tuple[int | float, ...], ...]
"""Statistics of a model on a test part, in the form of the task: of a classifier confusion counts,
rows true and columns predicted class."""


class EvaluationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Statistics as they travel; fields as in ``strategies.types.Evaluation``."""

    own: StatisticRows | None = None
    pooled: StatisticRows | None = None
    own_loss: float | None = None
    start: StatisticRows | None = None
    more: dict[str, StatisticRows] = {}


class HeldOutGain(msgspec.Struct, frozen=True, kw_only=True):
    """What personal models do for their owner on training examples that they have not seen.

    Attributes:
        examples: how many were held out so far (``outcomes.gate``), at least 1.
        gain: mean difference to the bundle's model: a share of them, or of the error that there
            was.
    """

    examples: Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
    gain: Annotated[float, msgspec.Meta(ge=-1, le=1)]


class UpdateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of an update but its tensors; ``loss`` is None where nothing was trained.

    ``work``: the share of the local training that was done; absent: all of it. ``held_out``:
    absent: nothing was.
    """

    client_id: str
    round_id: int
    num_examples: int
    loss: Annotated[float, msgspec.Meta(ge=-_FLOAT32, le=_FLOAT32)] | None = None
    evaluation: EvaluationRecord = EvaluationRecord()
    costs: Costs = Costs()
    work: Annotated[float, msgspec.Meta(gt=0, le=1)] | msgspec.UnsetType = msgspec.UNSET
    held_out: HeldOutGain | msgspec.UnsetType = msgspec.UNSET

    @property
    def share_of_work(self) -> float:
        """How much of its local training the client did."""
        return 1.0 if self.work is msgspec.UNSET else self.work


class Sends(msgspec.Struct, frozen=True, kw_only=True):
    """What devices tell beside their tensors.

    Attributes:
        scores: statistics of their models on their test parts, what held-out examples show,
            losses, costs.
        counts: numbers of examples, in all and of each class; else an update says 1 or 0.
    """

    scores: bool = True
    counts: bool = True

    @property
    def switched_off(self) -> str:
        """What they do not tell, for people; empty: nothing."""
        told = {"scores, losses and costs": self.scores, "numbers of examples": self.counts}
        return ", and ".join(name for name, on in told.items() if not on)

    def both(self, other: Sends) -> Sends:
        """What two parties both allow."""
        return Sends(scores=self.scores and other.scores, counts=self.counts and other.counts)

    def count(self, num_examples: int) -> int:
        """What is told of a number of examples."""
        return num_examples if self.counts else min(num_examples, 1)

    def of_record(self, record: UpdateRecord) -> UpdateRecord:
        """A record with nothing else in it."""
        if not self.scores:
            record = msgspec.structs.replace(
                record,
                loss=None,
                evaluation=EvaluationRecord(),
                costs=Costs(),
            )
        if not (self.scores and self.counts):
            record = msgspec.structs.replace(record, held_out=msgspec.UNSET)
        return msgspec.structs.replace(record, num_examples=self.count(record.num_examples))


class RoundBytes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one device sent and received in a round; round 0 is what it cost to join."""

    round_id: int
    bytes_up: int
    bytes_down: int


class DeviceDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one device beyond ``DeviceRecord``; its last round's unless said otherwise.

    Attributes:
        rounds: how many rounds used its update.
        evaluation: statistics of its model.
        train_step_ms, infer_ms: samples over the run, the latest some thousand.
        phases_s, cpu_s: wall and CPU time by phase.
        backend: who ran the bundle's programs; empty: not told.
    """

    id: str
    num_examples: int
    rounds: int
    bytes_by_round: tuple[RoundBytes, ...] = ()
    evaluation: EvaluationRecord = EvaluationRecord()
    train_step_ms: tuple[float, ...] = ()
    infer_ms: tuple[float, ...] = ()
    phases_s: dict[str, float] = {}
    cpu_s: dict[str, float] = {}
    peak_rss_bytes: int = 0
    backend: str = ""


class FleetDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``devices.json``.

    Attributes:
        task: of the bundle; it says what form the devices' statistics have.
        outputs: names of classes, targets or labels, in the order of the statistics' rows.
        devices: by id.
    """

    task: TaskName = "classification"
    outputs: tuple[str, ...] = ()
    devices: tuple[DeviceDetails, ...]


_T = TypeVar("_T")


def load_record(path: Path, kind: type[_T]) -> _T:
    """Read a JSON file as ``kind``.

    Raises:
        MissingDataError: there is no such file.
        InputError: a field is missing or of a wrong type; the message names it.
    """
    if not path.is_file():
        raise MissingDataError(f"'{path}': no such file; expected the folder of a run")
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"'{path}': {error}") from error


def save_record(record: Any, path: Path) -> None:
    """Write a record as indented JSON, whole or not at all."""
    replace_whole(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def save_by_device(
    record: RunRecord | FleetDetails,
    devices: Iterable[DeviceRecord] | Iterable[DeviceDetails],
    path: Path,
) -> None:
    """Write a record as ``save_record`` does, with its devices at the end, a line for each.

    Args:
        record: without its devices.
        devices: by id; taken one by one, since those of a large fleet are large together.
        path: the file.
    """
    names = [name for name in record.__struct_fields__ if name != "devices"]
    fields = msgspec.json.encode({name: getattr(record, name) for name in names})
    head = msgspec.json.format(fields, indent=1).removesuffix(b"\n}")

    def parts() -> Iterator[bytes]:
        yield head + b',\n "devices": ['
        between = b"\n  "
        for device in devices:
            yield between + msgspec.json.encode(device)
            between = b",\n  "
        yield b"\n ]\n}\n"

    replace_by_parts(path, parts())
