"""A federation's settings: TOML → frozen records; ``docs/coordinator.md`` explains each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from protofleet.errors import InputError
from protofleet.federation.client import MOST_ROUNDS, MOST_SEED
from protofleet.federation.schedules.early_stopping import StopSettings
from protofleet.federation.schedules.schedule_settings import ScheduleSettings
from protofleet.federation.section import Amount
from protofleet.federation.section import Section as _Settings
from protofleet.federation.section import check as _check
from protofleet.federation.section import check_amount as _check_amount
from protofleet.settings import explain, read_toml
from protofleet.wire.codecs import DOWN, RAW, UP, ZLIB, Codec
from protofleet.wire.mqtt.broker_access import BrokerAccess, broker_as_table

Selection = Literal["random", "least_recent", "strategy"]
"""Who is invited where not all are; ``CohortSettings``."""
MOST_OVER_SELECTION = 10.0
MOST_CELLS = 1000


def _merged(defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides win; a table wins key by key, or as a whole where it names another ``kind``."""
    return {**defaults, **{key: _over(defaults.get(key), new) for key, new in overrides.items()}}


def _over(old: Any, new: Any) -> Any:
    both_tables = isinstance(old, Mapping) and isinstance(new, Mapping)
    return _merged(old, new) if both_tables and new.get("kind") in {None, old.get("kind")} else new


class StrategySettings(_Settings, frozen=True, kw_only=True):
    """``[strategy]``: the algorithm; what is left out comes from the bundle.

    Attributes:
        name: key in ``protofleet.strategies.STRATEGIES``; the bundle's own if absent.
        settings: overrides of the strategy's settings. The bundle's settings stay the defaults
            as long as the name is the bundle's; tables such as ``optimiser`` merge key by key
            unless they name another ``kind``.
    """

    name: str | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)

    def over(self, name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The settings in force where a bundle for the strategy ``name`` brings ``defaults``."""
        return _merged(defaults if self.name in {None, name} else {}, self.settings)


class AggregationSettings(_Settings, frozen=True, kw_only=True):
    """``[aggregation]``: the rule by which the clients' vectors become one.

    Attributes:
        kind: key in ``protofleet.strategies.aggregation.AGGREGATORS``.
        settings: of the rule.
        norm_clip: longest difference to the server's tensors, as a multiple of the round's median;
            0: any.
        most_examples: for how many examples a device counts at most, as a multiple of the round's
            median; 0: any.
    """

    kind: str = "mean"
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    norm_clip: float = 3.0
    most_examples: float = 10.0

    def __post_init__(self) -> None:
        clip = self.norm_clip
        _check("norm_clip", clip == 0 or 1 <= clip < math.inf, "a multiple from 1, or 0", clip)
        most = self.most_examples
        _check("most_examples", most == 0 or 1 <= most < math.inf, "a multiple from 1, or 0", most)

    @property
    def identity(self) -> str:
        """What a run's ledger keeps of it."""
        return msgspec.json.encode(self, order="sorted").decode()


class CohortSettings(_Settings, frozen=True, kw_only=True):
    """``[cohort]``: who is invited to a round.

    Attributes:
        size: ``"all"`` live devices, a fraction of them (float) or a count (integer).
        minimum: devices that must be live before a round opens.
        wait_s: how long the first round after a start still waits for more, once there are enough.
        over_selection: so many times ``size`` are invited, and the round closes when ``size``
            updates are in (Bonawitz et al., "Towards Federated Learning at Scale",
            arXiv:1902.01046).
        selection: ``random``; ``least_recent``: those whose last invitation is longest ago first;
            ``strategy``: in the order that the strategy gives them. Equals are drawn at random.
    """

    size: Literal["all"] | Amount = "all"
    minimum: int = 1
    wait_s: float = 0.0
    over_selection: float = 1.0
    selection: Selection = "random"

    def __post_init__(self) -> None:
        if self.size != "all":
            _check_amount("size", self.size)
        most, over = MOST_OVER_SELECTION, self.over_selection
        _check("over_selection", 1 <= over <= most, f"a factor of 1 to {most:g}", over)
        sampled = self.size != "all"
        fits = sampled or over == 1
        _check("over_selection", fits, 'a `size` other than "all" beside it', over)
        fits = sampled or self.selection == "random"
        _check("selection", fits, 'a `size` other than "all" beside it', self.selection)
        _check("minimum", self.minimum >= 1, "at least 1", self.minimum)
        _check("wait_s", self.wait_s >= 0, "seconds, not negative", self.wait_s)


class RoundSettings(_Settings, frozen=True, kw_only=True):
    """``[round]``: when a round ends.

    Attributes:
        deadline_s: how long a round waits for its cohort.
        quorum: updates that suffice at the deadline: a fraction of the cohort (float) or a count.
        every_s: a round opens so long after the one before at the earliest; 0: as soon as that is
            over. 86400 lets devices that charge at night each have their turn. A coordinator that
            is started again does not wait for it.
    """

    deadline_s: float = 600.0
    quorum: Amount = 0.5
    every_s: float = 0.0

    def __post_init__(self) -> None:
        _check("every_s", 0 <= self.every_s < math.inf, "seconds, not negative", self.every_s)
        _check("deadline_s", self.deadline_s > 0, "seconds above 0", self.deadline_s)
        _check_amount("quorum", self.quorum)


class StragglerSettings(_Settings, frozen=True, kw_only=True):
    """``[stragglers]``: slow devices do a part of their local training (FedProx, section 3.2).

    Attributes:
        budget_s: how long a device's local training is meant to take at most, by what its last
            round took; absent: every device does all of it.
        least_work: smallest share of the training that a device is asked for.
    """

    budget_s: float | None = None
    least_work: float = 0.1

    def __post_init__(self) -> None:
        budget, least = self.budget_s, self.least_work
        good = budget is None or 0 < budget < math.inf
        _check("budget_s", good, "seconds above 0", budget)
        _check("least_work", 0 < least <= 1, "a share above 0 up to 1.0", least)


class LimitSettings(_Settings, frozen=True, kw_only=True):
    """``[limits]``: what the coordinator takes from a device and keeps on disk.

    Attributes:
        update_bytes: largest update that is accepted; absent: a tenth and 2 MiB more than the
            tensors that the strategy expects.
        update_norm: largest Euclidean norm of a tensor in an accepted update, and of its
            difference to the payload before the rounds have shown how long those are.
        uploads: transfers per direction with chunks in flight; it keeps the broker's queue short.
        keep_states: committed server states that stay on disk.
        connections_per_s: that the broker takes; after its restart the devices come back over so
            long that half of it is reached in the mean.
        broadcast_from: a payload or bundle that so many devices or more get at once travels to all
            of them together; 0: to each by itself.
    """

    update_bytes: int | None = None
    update_norm: float = 1e6
    uploads: int = 32
    keep_states: int = 3
    connections_per_s: float = 400.0
    broadcast_from: int = 16

    def __post_init__(self) -> None:
        if self.update_bytes is not None:
            _check("update_bytes", self.update_bytes > 0, "bytes above 0", self.update_bytes)
        _check("update_norm", self.update_norm > 0, "a number above 0", self.update_norm)
        _check("uploads", self.uploads >= 1, "at least 1", self.uploads)
        _check("keep_states", self.keep_states >= 1, "at least 1", self.keep_states)
        rate = self.connections_per_s
        _check("connections_per_s", 0.1 <= rate <= 1e6, "0.1 to 1e6", rate)
        _check("broadcast_from", self.broadcast_from >= 0, "0 or more", self.broadcast_from)

    def broadcasts(self, devices: int) -> bool:
        """Whether what so many devices get travels to all of them together."""
        return 0 < self.broadcast_from <= devices


class EvaluationSettings(_Settings, frozen=True, kw_only=True):
    """``[evaluation]``: scoring of the server's own model, and what devices' are compared with.

    Attributes:
        pooled: ``.npz`` with the union of all test parts: ``x_test`` (n, …) float32 and
            ``y_test`` (n,) int64. Absent: the server's model is not scored.
        every: score after every so many rounds, and after the last.
        batch_size: examples per call; a model whose plan couples a batch depends on it.
        threads: threads of the runtime.
        baseline: ``local``: each device trains alone as well, for as many steps, so that results
            tell who would do better so; it doubles what a round costs a device. Phones do not.
    """

    pooled: Path | None = None
    every: int = 1
    batch_size: int = 32
    threads: int = 1
    baseline: Literal["local"] | None = None

    def __post_init__(self) -> None:
        for name in ("every", "batch_size", "threads"):
            _check(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))


class LivenessSettings(_Settings, frozen=True, kw_only=True):
    """``[liveness]``: who counts as present.

    Attributes:
        silent_after_s: a device that sent nothing for so long is taken for gone.
        grace_s: a cohort member that is gone for so long no longer keeps the round open.
        farewell_s: how long the end of a run waits for the devices' last heartbeats.
        lease_s: a coordinator that has not answered another one for so long is taken for dead.
    """

    silent_after_s: float = 150.0
    grace_s: float = 20.0
    farewell_s: float = 3.0
    lease_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("silent_after_s", "grace_s", "farewell_s"):
            _check(name, getattr(self, name) >= 0, "seconds, not negative", getattr(self, name))
        _check("lease_s", 1 <= self.lease_s <= 86_400, "1 to 86400 seconds", self.lease_s)


class CodecSettings(_Settings, frozen=True, kw_only=True):
    """``[codec]``: how tensors are encoded on the wire; see ``wire.codecs``.

    Attributes:
        up: of updates.
        down: of payloads.
        compression: behind either, unless it is ``raw``.
        keep: share of a parameter's entries that ``topk`` sends.
    """

    up: str = RAW
    down: str = RAW
    compression: Literal["zlib", "none"] = "zlib"
    keep: float = 0.1

    def __post_init__(self) -> None:
        _check("up", self.up in UP, f"one of {', '.join(UP)}", self.up)
        _check("down", self.down in DOWN, f"one of {', '.join(DOWN)}", self.down)
        _check("keep", 0 < self.keep <= 1, "a fraction above 0 up to 1.0", self.keep)

    @property
    def is_raw(self) -> bool:
        """Whether tensors travel bit for bit."""
        return self.up == self.down == RAW

    @property
    def identity(self) -> str:
        """What a run's ledger keeps of it."""
        return msgspec.json.encode(self, order="sorted").decode()

    @property
    def text(self) -> str:
        """For people: ``int8 / raw``, up before down."""
        plain = "" if self.compression == "zlib" or self.is_raw else ", not compressed"
        return f"{self.updates.text} / {self.payloads.text}{plain}"

    @property
    def updates(self) -> Codec:
        """What devices are asked for."""
        return self._codec(self.up)

    @property
    def payloads(self) -> Codec:
        """How payloads are encoded."""
        return self._codec(self.down)

    def _codec(self, name: str) -> Codec:
        end = ZLIB if self.compression == "zlib" else ""
        return Codec.of(name + end, keep=self.keep)


class AdaptiveClip(_Settings, frozen=True, kw_only=True):
    """``[privacy] clip`` that follows a quantile of the differences' norms.

    Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive
    Clipping" (arXiv:1905.03871): after a round the norm is multiplied by
    ``exp(rate · (quantile - share of the differences within it))``; that share is noised, too.

    Attributes:
        initial: norm of the first round.
        quantile: of the differences that are not to be clipped.
        rate: how fast the norm follows.
        budget: part of the noise's μ² that the noised share costs; the sum gets more noise for it.
    """

    initial: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    budget: float = 0.05

    def __post_init__(self) -> None:
        _check("clip.initial", 0 < self.initial < math.inf, "a number above 0", self.initial)
        _check("clip.quantile", 0 < self.quantile < 1, "a share between 0 and 1", self.quantile)
        _check("clip.rate", 0 < self.rate <= 10, "a number above 0 up to 10", self.rate)
        _check("clip.budget", 0 < self.budget < 1, "a share between 0 and 1", self.budget)


class PrivacySettings(_Settings, frozen=True, kw_only=True):
    """``[privacy]``: noise that hides a device's part, and what devices do not tell.

    Attributes:
        noise_multiplier: standard deviation of the noise on a round's sum, in clips; absent: none.
        clip: largest Euclidean norm of a device's whole difference to its payload.
        devices: by what the sum is divided: how many are expected in a round, whoever comes.
            Absent: ``cohort.size`` where that is a count.
        delta: at which ε is told; well below 1 / the number of devices.
        epsilon_budget: a run that would spend more is not begun.
        sampling: ``secret``: each live device is drawn by itself, with ``cohort.size`` (a fraction)
            as its probability, and nobody but the coordinator and the broker learns whom;
            ``public``: every invitation of a device counts in full.
        noise_seed: noise that can be repeated, for experiments; it hides nothing.
        scores: whether devices send scores, losses and costs; absent: only without noise.
        counts: whether devices send numbers of examples, in all and of classes; absent: only
            without noise, or where the strategy needs them.
    """

    noise_multiplier: float | None = None
    clip: float | AdaptiveClip = 1.0
    devices: int | None = None
    delta: float = 1e-5
    epsilon_budget: float | None = None
    sampling: Literal["public", "secret"] = "public"
    noise_seed: int | None = None
    scores: bool | None = None
    counts: bool | None = None

    def __post_init__(self) -> None:
        noise, budget, clip = self.noise_multiplier, self.epsilon_budget, self.clip
        _check("noise_multiplier", noise is None or 0.01 <= noise <= 1e6, "0.01 to 1e6", noise)
        if not isinstance(clip, AdaptiveClip):
            _check("clip", 0 < clip < math.inf, "a norm above 0, or a table", clip)
        _check("devices", self.devices is None or self.devices >= 1, "at least 1", self.devices)
        _check("delta", 0 < self.delta < 1, "a probability between 0 and 1", self.delta)
        _check("epsilon_budget", budget is None or budget > 0, "a number above 0", budget)
        seed = self.noise_seed
        _check("noise_seed", seed is None or seed >= 0, "not negative", seed)

    @property
    def identity(self) -> str:
        """What a run's ledger keeps of it; the budget may be raised with the rounds."""
        kept = msgspec.structs.replace(self, epsilon_budget=None)
        return msgspec.json.encode(kept, order="sorted").decode()


class CellSettings(_Settings, frozen=True, kw_only=True):
    """``[cells]``: several coordinators that share the devices; see ``federation.cells``.

    Attributes:
        count: how many.
        send: what they send the root of each round: the admitted ``updates``, or their exact
            ``sums``, where the strategy is a mean.
    """

    count: int
    send: Literal["updates", "sums"] = "updates"

    def __post_init__(self) -> None:
        _check("count", 1 <= self.count <= MOST_CELLS, f"1 to {MOST_CELLS}", self.count)


class FederationConfig(_Settings, frozen=True, kw_only=True):
    """A whole federation file.

    Attributes:
        federation: its name, a level of every topic.
        broker: which, and the coordinator's credentials; a file may say just the URL.
        bundle: the signed bundle, directory or single file.
        keys: the federation's folder, with its members; None: records travel without keys.
        trusted: public keys (hex) whose bundles are accepted; empty: the user's trust store.
        run_dir: folder of this run: ledger, spool, results.
        rounds: number of rounds to aggregate.
        seed: seed of the federation: cohorts and, with client and round, all local training.
        cells: coordinators that share its devices; None: one has all.
    """

    federation: str
    broker: BrokerAccess
    bundle: Path
    run_dir: Path
    rounds: int
    keys: Path | None = None
    trusted: tuple[str, ...] = ()
    seed: int = 0
    strategy: StrategySettings = StrategySettings()
    aggregation: AggregationSettings = AggregationSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    cohort: CohortSettings = CohortSettings()
    round: RoundSettings = RoundSettings()
    stop: StopSettings = StopSettings()
    stragglers: StragglerSettings = StragglerSettings()
    limits: LimitSettings = LimitSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    liveness: LivenessSettings = LivenessSettings()
    codec: CodecSettings = CodecSettings()
    privacy: PrivacySettings = PrivacySettings()
    cells: CellSettings | None = None

    def __post_init__(self) -> None:
        _check("rounds", 1 <= self.rounds <= MOST_ROUNDS, f"1 to {MOST_ROUNDS}", self.rounds)
        _check("seed", 0 <= self.seed <= MOST_SEED, f"0 to {MOST_SEED}", self.seed)


def load_config(path: Path) -> FederationConfig:
    """Read a federation file; relative paths in it start at the file's own folder.

    Raises:
        InputError: not readable, not TOML, an unknown key, or a value of the wrong kind.
    """
    try:
        values = broker_as_table(read_toml(path))
        config = msgspec.convert(values, FederationConfig, dec_hook=_to_path)
    except FileNotFoundError as error:
        raise InputError(
            f"federation file {path}: {error.strerror}; 'protofleet new NAME' writes one, with all "
            "that belongs to it"
        ) from error
    except OSError as error:
        raise InputError(f"federation file {path}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        wrong = explain(error, FederationConfig, values)
        raise InputError(f"federation file {path}: {wrong}; see docs/coordinator.md") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no text, expected a federation file (TOML)") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"federation file {path}: {error}; see docs/coordinator.md") from error
    except InputError as error:
        raise InputError(f"federation file {path}: {error}") from error
    return _resolve(config, path.resolve().parent)


def count_of(amount: Amount, total: int) -> int:
    """How many of ``total`` an amount means: at least 1, at most ``total`` (0 of 0).

    A fraction is rounded up, so that 0.5 of 3 are 2.
    """
    # The subtrahend undoes float noise: 0.7 of 10 are 7, although 0.7 * 10 > 7 in binary.
    wanted = math.ceil(amount * total - 1e-9) if isinstance(amount, float) else amount
    return min(max(wanted, 1), total)


def _resolve(config: FederationConfig, folder: Path) -> FederationConfig:
    pooled = config.evaluation.pooled
    evaluation = msgspec.structs.replace(
        config.evaluation, pooled=None if pooled is None else folder / pooled
    )
    return msgspec.structs.replace(
        config,
        bundle=folder / config.bundle,
        run_dir=folder / config.run_dir,
        keys=None if config.keys is None else folder / config.keys,
        broker=config.broker.under(folder),
        evaluation=evaluation,
    )


def _to_path(kind: type, value: object) -> Path:
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    raise ValueError(f"expected a path, got {value!r}")


SECTIONS: Mapping[str, str] = {
    "codec": CodecSettings().identity,
    "schedule": ScheduleSettings().identity,
    "aggregation": AggregationSettings().identity,
    "privacy": PrivacySettings().identity,
}
"""Of ``Plan.identity``, those that are a section of the file, at its defaults."""
