"""The thread in which a device trains, so that its link is served meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from protofleet.edge.learning.training import Learner, TrainingCancelledError
from protofleet.federation.client import (
    ClientMemory,
    ReceivedPayload,
    RoundConfig,
    TrainedRound,
    open_payload,
    train_round,
)
from protofleet.federation.outcomes.gate import ComparedExamples
from protofleet.federation.randomness import server_rng
from protofleet.strategies.strategy import Strategy
from protofleet.tensors import blobs

_Result = TypeVar("_Result")


class TrainingThread:
    """One local round at a time in a thread of its own, so that the link is served meanwhile.

    Args:
        learner: what trains.
        wake: called in that thread when a round is done.
    """

    def __init__(self, learner: Learner, wake: Callable[[], None]) -> None:
        self._learner = learner
        self._wake = wake
        self._worker = ThreadPoolExecutor(1, "training")
        self._warm_up: Future[None] | None = None
        self._running: Future[TrainedRound] | None = None
        self._trial: Future[TrainedRound] | None = None
        self._round: tuple[Strategy, ReceivedPayload] | None = None
        self._fold: Future[ComparedExamples] | None = None
        self._held = False

    def warm_up(self) -> None:
        """Prepare programs and kernels, before the first round if there is time."""
        self._warm_up = self._worker.submit(self._learner.warm_up)

    def start(self, strategy: Strategy, memory: ClientMemory, received: ReceivedPayload) -> None:
        """Begin to train."""
        self._round = strategy, received
        self._running = self._submit(partial(self._trained, strategy, memory, received))

    def hold_out(self, fold: int | None) -> None:
        """Begin to compare a model of the round that was taken, trained without a fold.

        The next round waits for the end of that; nobody is woken by it. None: none is held out.
        """
        last, self._round = self._round, None
        if last is None or fold is None:
            return
        strategy, received = last
        if received.payload.final:
            return  # in which a strategy need not train
        self._fold = self._worker.submit(
            partial(
                self._learner.hold_out,
                strategy,
                received.payload,
                fold=fold,
                seed=received.order.seed,
            )
        )

    def try_rates(self, strategy: Strategy, order: RoundConfig) -> None:
        """Begin to try the learning rates of an order; no round may be running."""
        self._trial = self._submit(partial(self._tried, strategy, order))

    def _submit(self, job: Callable[[], TrainedRound]) -> Future[TrainedRound]:
        self._learner.cancelled.clear()
        self.hold(self._held)
        submitted = self._worker.submit(job)
        submitted.add_done_callback(lambda _: self._wake())
        return submitted

    def _trained(
        self, strategy: Strategy, memory: ClientMemory, received: ReceivedPayload
    ) -> TrainedRound:
        learner = self._learner
        costs = partial(learner.take_costs, strategy)
        trained = train_round(learner, strategy, memory, received, costs=costs)
        return replace(trained, evidence=learner.compare(strategy, trained.state))

    def _tried(self, strategy: Strategy, order: RoundConfig) -> TrainedRound:
        """From the payload that the server's first state gives, which so need not travel."""
        learner = self._learner
        server = strategy.server_init(learner.model, server_rng(order.seed, 0))
        payload = strategy.downlink(server, learner.device_id)
        received = open_payload(blobs.encode(payload.tensors), order, strategy.payload)
        costs = partial(learner.take_costs, strategy)
        return train_round(learner, strategy, ClientMemory(), received, costs=costs)

    def hold(self, held: bool) -> None:  # noqa: FBT001 - what is to hold from now on
        """Let the running round, and those after it, wait before its next step; or go on."""
        self._held = held
        if held and not self._learner.cancelled.is_set():
            self._learner.free.clear()
        else:
            self._learner.free.set()

    def cancel(self) -> None:
        """Give the running round up at its next step, a held one too."""
        self._learner.cancelled.set()
        self._learner.free.set()

    def finished(self) -> bool:
        """Whether a round is done and waits for ``take``; raises what the warm-up raised."""
        if self._warm_up is not None and self._warm_up.done():
            self._warm_up.result()
            self._warm_up = None
        return self._running is not None and self._running.done()

    def take(self) -> TrainedRound | None:
        """The finished round's result, or what it raised; None if it was cancelled."""
        running, self._running = self._running, None
        return _result(running)

    def take_fold(self) -> ComparedExamples | None:
        """What came of the fold that was held out; None: it is not done, or was cancelled."""
        if self._fold is None or not self._fold.done():
            return None
        fold, self._fold = self._fold, None
        return _result(fold)

    def tried(self) -> bool:
        """Whether rates have been tried, and ``take_trial`` has what came of it."""
        return self._trial is not None and self._trial.done()

    def take_trial(self) -> TrainedRound | None:
        """An update of ratios, or what trying raised; None if it was cancelled."""
        trial, self._trial = self._trial, None
        return _result(trial)

    def close(self) -> None:
        """Cancel and wait for the thread."""
        self.cancel()
        self._worker.shutdown(wait=True, cancel_futures=True)


def _result(done: Future[_Result] | None) -> _Result | None:
    if done is None:
        return None
    try:
        return done.result()
    except TrainingCancelledError:
        return None
