"""A trial of a bundle on a device's own data: which learning rate, and what a round costs.

It is the device's part of a calibration (``federation.outcomes.calibration``), of this device
alone. Nothing is sent or stored.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from protofleet.bundle import Bundle
from protofleet.edge.learning.meter import Meter, peak_rss_bytes
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.errors import InputError
from protofleet.federation.outcomes.calibration import AUTO, choose, try_rates
from protofleet.federation.records import Percentiles, percentiles
from protofleet.kernels import set_threads
from protofleet.runtime import BackendName, open_programs
from protofleet.strategies import build
from protofleet.strategies.optimisers import LADDERS, Adam, OptimiserKind, Sgd
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.training import Training
from protofleet.strategies.types import Payload
from protofleet.tensors import Model

Progress = Callable[[int, int], None]
"""Takes how many rates were tried, and how many there are at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of it.

    Attributes:
        strategy: whose client half trained.
        kind: of the optimiser.
        learning_rate: the advised one.
        ratios: by rate, what a local round makes of the loss on held-out examples, as a multiple
            of what it was; of rates that were not tried, as ``try_rates`` has it.
        tried: those of the rates that were.
        bundle_rate: the bundle's own, if it has one for this optimiser.
        examples, batch_size, epochs: of a round.
        held_out: of the examples, those that the trial did not train on.
        step_ms: forward and backward.
        round_s: a round's training, without transfer; by the median of the local rounds.
        peak_rss_bytes: of this process.
        backend: who ran the programs.
    """

    strategy: str
    kind: OptimiserKind
    learning_rate: float
    ratios: dict[float, float]
    tried: tuple[float, ...]
    bundle_rate: float | None
    examples: int
    batch_size: int
    epochs: int
    held_out: int
    step_ms: Percentiles
    round_s: float
    peak_rss_bytes: int
    backend: str


def try_bundle(  # noqa: PLR0913 - the command's options, each by its name
    bundle: Bundle,
    data: LocalData,
    *,
    optimiser: str | None,
    threads: int,
    backend: BackendName,
    progress: Progress,
) -> Trial:
    """Train some local rounds on a part of the data's training part, each with another rate.

    Args:
        bundle: verified.
        data: the device's own.
        optimiser: ``adam`` or ``sgd``; None: the bundle's, else the first that its strategy takes.
        threads: of the runtime and the kernels.
        backend: who runs the programs.
        progress: told after every rate.

    Raises:
        InputError: the data do not fit the bundle, have too few training examples, or no rate
            trains.
        ProvisionError: the backend cannot run the bundle.
    """
    set_threads(threads)
    programs = open_programs(bundle, threads=threads, backend=backend)
    meter = Meter()
    learner = Learner(bundle, programs, data, meter, "trial")
    training = training_of(bundle, learner.model, optimiser)
    kind, declared = _kind(training.optimiser), bundle.manifest.strategy
    own = _own_rate(bundle, training)
    given = {**declared.settings, "optimiser": msgspec.to_builtins(training.optimiser)}
    strategy = learner.strategy(declared.name, given)
    tester = learner.rate_tester(1)
    if tester is None:
        raise InputError(
            "device data: expected at least four training examples of a class, of which one is "
            f"held out, got {len(data.own.y_train)} in all"
        )
    tester.warm_up()
    meter.take()
    rates = tuple(sorted({*LADDERS[kind], *(() if own is None else (own,))}))
    watched = _Watched(tester, len(rates), progress)
    ratios = try_rates(watched, strategy, _first_payload(strategy, learner), seed=0, rates=rates)
    if ratios is None or ratios.min() >= 1:
        raise InputError(
            f"trial: no learning rate among {', '.join(f'{rate:g}' for rate in rates)} lowers the "
            "loss on held-out examples: check the data's scale and labels; if they are right, the "
            "bundle's model is as good for this device as it gets"
        )
    costs, kept = meter.take(), tester.num_examples(1)
    count = len(data.own.y_train)
    return Trial(
        strategy=declared.name,
        kind=kind,
        learning_rate=choose(kind, rates, [ratios], otherwise=rates[0]).lr,
        ratios={rate: round(float(one), 6) for rate, one in zip(rates, ratios, strict=True)},
        tried=tuple(rate for rate in rates if rate in watched.tried),
        bundle_rate=own,
        examples=count,
        batch_size=training.batch_size,
        epochs=training.epochs,
        held_out=count - kept,
        step_ms=percentiles(costs.train_step_ms, 50, 95),
        round_s=statistics.median(watched.seconds) * count / kept,
        peak_rss_bytes=peak_rss_bytes(),
        backend=programs.backend,
    )


class _Watched:
    """A learner that tells of every local round, and how long it took."""

    def __init__(self, tester: Learner, total: int, progress: Progress) -> None:
        self._tester, self._total, self._progress = tester, total, progress
        self.seconds: list[float] = []
        self.tried: set[float] = set()
        self.model, self.strategy, self.evaluate = tester.model, tester.strategy, tester.evaluate

    def train(self, strategy: Strategy, *args: Any, **more: Any) -> Any:
        """As of ``Learner``."""
        started = time.perf_counter()
        self.tried.add(msgspec.to_builtins(strategy.settings)["optimiser"]["lr"])
        try:
            return self._tester.train(strategy, *args, **more)
        finally:
            self.seconds.append(time.perf_counter() - started)
            self._progress(len(self.tried), self._total)


def _first_payload(strategy: Strategy, learner: Learner) -> Payload:
    server = strategy.server_init(learner.model, np.random.default_rng(0))
    return strategy.downlink(server, learner.device_id)


def training_of(bundle: Bundle, model: Model, optimiser: str | None) -> Training:
    """The bundle's settings of local training, with an optimiser that its strategy takes.

    Raises:
        InputError: the strategy takes none of that kind.
    """
    declared = bundle.manifest.strategy
    known: Mapping[str, Any] = declared.settings
    own = {key: known[key] for key in Training.__struct_fields__ if key in known}
    own.pop("optimiser", None)
    given = _declared_optimiser(bundle)
    kinds = [optimiser] if optimiser else list(dict.fromkeys((given.get("kind"), "adam", "sgd")))
    for kind in filter(None, kinds):
        table = given if kind == given.get("kind") else {"kind": kind}
        try:
            build(declared.name, {**known, "optimiser": table}, model)
        except InputError as error:
            refused = error
            continue
        return msgspec.convert({**own, "optimiser": table}, Training)
    raise refused


def _declared_optimiser(bundle: Bundle) -> dict[str, Any]:
    """Of the bundle's settings; a rate that is left to a calibration is none."""
    given = dict(bundle.manifest.strategy.settings.get("optimiser") or {})
    if given.get("lr") == AUTO:
        del given["lr"]
    return given


def _own_rate(bundle: Bundle, training: Training) -> float | None:
    given = _declared_optimiser(bundle)
    same = given.get("kind") == _kind(training.optimiser)
    return float(given["lr"]) if same and "lr" in given else None


def _kind(optimiser: Adam | Sgd) -> OptimiserKind:
    kind: OptimiserKind = "adam" if isinstance(optimiser, Adam) else "sgd"
    return kind
