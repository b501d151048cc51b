"""The server's half of a round: admit an update, aggregate, score.

What a client gets is ``Strategy.downlink`` in the form that ``coding.PayloadEncoder`` gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from protofleet.errors import ProtofleetError
from protofleet.federation import client_limits
from protofleet.federation.admission import ExpectedUpdate, admit, expect_updates
from protofleet.federation.client_limits import Admitted, Limited, Norms
from protofleet.federation.coding import (
    DecodedUpdate,
    decode_update,
    to_evaluation,
    update_baseline,
)
from protofleet.federation.noise import Noise, SeedFn, new_seed
from protofleet.federation.outcomes.scores import round_scores
from protofleet.federation.plan import Plan
from protofleet.federation.records import EvaluationRecord, PrivacyRecord, Scores, UpdateRecord
from protofleet.federation.schedules.staleness import difference
from protofleet.federation.server_tools import Scorer, make_scorer, make_server_tools
from protofleet.strategies.aggregation import Clipped, clipped
from protofleet.strategies.types import ServerState, ServerTools, Updates
from protofleet.tensors import Tensors
from protofleet.wire.codecs import Coding

_NOT_EVALUATED = EvaluationRecord()
_MOST_LEFT_OUT = 8
"""Updates that are left out one after the other before a round is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """What a round's updates became.

    Attributes:
        state: after the round; the tensors from before it where nothing usable came out.
        limited: claims that were believed in part.
        fault: what was wrong with the state of all updates; empty: nothing.
        left_out: whose updates the state was made without, therefore.
        dropped: whether none of them was used.
    """

    state: ServerState
    limited: tuple[Limited, ...] = ()
    fault: str = ""
    left_out: tuple[str, ...] = ()
    dropped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server's half of a federation.

    Attributes:
        plan: bundle, strategy and settings.
        expected: what updates must look like.
        scorer: scores the server's model; None: nobody asked.
        tools: what the strategy's server half may use in a round.
    """

    plan: Plan
    expected: ExpectedUpdate
    scorer: Scorer | None
    tools: Callable[[int], ServerTools]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The server of a plan.

        Raises:
            InputError: the bundle lacks a program that the server needs, or the pooled test data
                do not fit.
        """
        return cls(
            plan=plan,
            expected=expect_updates(plan),
            scorer=make_scorer(plan.bundle, plan.strategy, plan.config.evaluation),
            tools=make_server_tools(
                plan.bundle,
                plan.strategy,
                seed=plan.config.seed,
                aggregator=plan.aggregator,
            ),
        )

    def admit(  # noqa: PLR0913 - what came and from whom, each named at the call
        self,
        blob: bytes | memoryview,
        coding: Coding,
        *,
        baseline: Tensors,
        client_id: str,
        round_id: int,
        class_counts: tuple[int, ...] | None,
        num_examples: int | None,
        bounds: Norms,
    ) -> DecodedUpdate:
        """Decode and check a complete update, once.

        Args:
            blob: as it arrived.
            coding: what its offer says.
            baseline: what it is compared with, also where it travelled raw.
            client_id: whose topic it came on.
            round_id: the round its offer names.
            class_counts: what its client has registered; None: nothing.
            num_examples: what its presence says; None: nothing is known.
            bounds: of its differences (``client_limits.learned_bounds``).

        Raises:
            RefusedError: a rule is broken; the update must not be used.

        Returns:
            The update without what devices were told not to send.
        """
        decoded = decode_update(
            blob,
            coding,
            baseline,
            max_bytes=self.expected.max_bytes,
            forms=self.expected.uplink,
            class_counts=class_counts if self.expected.class_counts else None,
        )
        norms = admit(
            decoded,
            self.expected,
            client_id=client_id,
            round_id=round_id,
            baseline=baseline,
        )
        client_limits.check_examples(decoded.record, num_examples)
        client_limits.check_differences(norms, baseline, bounds, most=self.expected.max_norm)
        return replace(decoded, norms=norms).told(self.plan.sends)

    def to_keep(self, decoded: DecodedUpdate, baseline: Tensors, round_id: int) -> DecodedUpdate:
        """An admitted update as it is kept until the round in which it counts is aggregated.

        Args:
            decoded: from ``admit``.
            baseline: what it was compared with there.
            round_id: of the round in which it counts.
        """
        mixing = self.plan.mixing
        if mixing is None or not mixing.keeps_difference(round_id - decoded.record.round_id):
            return decoded
        changed = difference(decoded.update.tensors, baseline)
        return replace(decoded, update=replace(decoded.update, tensors=changed), is_whole=False)

    def _present(self, state: ServerState, client_id: str) -> Tensors:
        payload = self.plan.strategy.downlink(state, client_id)
        return update_baseline(self.plan.model, payload.tensors)

    def aggregate(  # noqa: PLR0913 - what a round has, and how it is closed
        self,
        state: ServerState,
        round_id: int,
        updates: Updates,
        admitted: Sequence[Admitted],
        *,
        final: bool,
        noise_seed: SeedFn = new_seed,
    ) -> Aggregated:
        """The state after a round; done again after a crash, it gives the same bits.

        A state that no honest update could follow is not taken: the updates that moved farthest
        are left out, one after the other and less than half of them, and if that does not help
        the tensors stay as they were.

        After a final fit the tensors stay as they are.

        Args:
            state: before the round.
            round_id: the closing round.
            updates: the admitted ones, sorted by client_id; late ones as ``to_keep`` gave them.
            admitted: what was noted of each of them, in the same order.
            final: whether it is the final fit.
            noise_seed: of the round's noise, asked for if it has any.

        Raises:
            ProtofleetError: the strategy returned the state of another round.
        """
        if final:
            return Aggregated(state=replace(state, round_id=round_id, figures={}))
        if self.plan.privacy is not None:
            seed = self.plan.privacy.seed_of(round_id, noise_seed)
            return self._noised(state, round_id, updates, seed)
        if self.plan.mixing is not None:
            updates, admitted = self.plan.mixing.applied(
                updates, admitted, round_id, lambda client_id: self._present(state, client_id)
            )
        chosen = self.plan.config.aggregation
        believed, limited = client_limits.believed_examples(updates, admitted, chosen.most_examples)
        farthest, fault = client_limits.by_length(admitted), ""
        for count in range(min((len(farthest) - 1) // 2, _MOST_LEFT_OUT) + 1):
            left_out = tuple(sorted(farthest[:count]))
            some = client_limits.Without(believed, left_out) if left_out else believed
            ids = [one.record.client_id for one in admitted]
            new, long = self._aggregated(
                state, round_id, some, [one for one in ids if one not in left_out]
            )
            wrong = client_limits.state_fault(new.tensors, self.expected.max_norm)
            if not wrong:
                return Aggregated(
                    state=new, limited=(*limited, *long), fault=fault, left_out=left_out
                )
            fault = fault or wrong
        kept = replace(state, round_id=round_id, figures={})
        return Aggregated(state=kept, limited=limited, fault=fault, dropped=True)

    def _aggregated(
        self, state: ServerState, round_id: int, updates: Updates, clients: Sequence[str]
    ) -> tuple[ServerState, tuple[Limited, ...]]:
        """The strategy's new state, and whose differences were clipped."""
        strategy, tools = self.plan.strategy, self.tools(round_id)
        long: dict[int, Clipped] = {}

        def tell(one: Clipped) -> None:
            if one.position not in long or one.norm > long[one.position].norm:
                long[one.position] = one

        if strategy.description.takes_rule and self.plan.config.aggregation.norm_clip:
            multiple = self.plan.config.aggregation.norm_clip
            tools = replace(tools, aggregator=clipped(tools.aggregator, multiple, tell))
        return self._of_round(strategy.aggregate(state, updates, tools), round_id), tuple(
            Limited(
                client_id=clients[position], claim="difference", stated=one.norm, limit=one.limit
            )
            for position, one in sorted(long.items())
        )

    def _noised(
        self, state: ServerState, round_id: int, updates: Updates, seed: bytes
    ) -> Aggregated:
        """With noise nothing is left out or limited by what other updates are.

        That would let a device change what the others count for. The clip bounds each by itself.
        """
        tools = replace(self.tools(round_id), noise=Noise(seed))
        new = self._of_round(self.plan.strategy.aggregate(state, updates, tools), round_id)
        if fault := client_limits.state_fault(new.tensors, self.expected.max_norm):
            kept = replace(state, round_id=round_id, figures={})
            return Aggregated(state=kept, fault=fault, dropped=True)
        return Aggregated(state=new)

    def _of_round(self, state: ServerState, round_id: int) -> ServerState:
        if state.round_id != round_id:
            raise ProtofleetError(
                f"strategy '{self.plan.strategy.description.name}': expected the state of round "
                f"{round_id} from aggregate, got round {state.round_id}"
            )
        return state

    def spent(
        self, before: ServerState, participations: Callable[[], int], *, final: bool
    ) -> PrivacyRecord | None:
        """What a run has spent with the round that followed on ``before``; None without noise.

        Args:
            before: as the round began.
            participations: counts the rounds to which the device was invited that was to most.
            final: whether it was the final fit.
        """
        if final or self.plan.privacy is None:
            return None
        return self.plan.privacy.record(before, participations())

    def update_norms(self, admitted: Sequence[Admitted]) -> dict[str, float]:
        """What bounds the next rounds' differences (``RoundRecord.update_norms``).

        With noise there is none: it would tell of updates, and let them decide on others.
        """
        if self.plan.privacy is not None:
            return {}
        return client_limits.median_norms(one.norms for one in admitted)

    @staticmethod
    def figures(state: ServerState) -> dict[str, float]:
        """What the strategy tells of the round that made ``state`` (``RoundRecord.figures``)."""
        return {name: float(v) for name, v in state.figures.items() if math.isfinite(v)}

    def score(self, state: ServerState, records: Iterable[UpdateRecord], *, final: bool) -> Scores:
        """Scores of the round that made ``state``; after a final fit the clients' alone.

        Args:
            state: from ``aggregate``.
            records: of the admitted updates.
            final: whether it was the final fit.
        """
        scorer = self.scorer if not final and self._is_scored(state.round_id) else None
        evaluations = [
            to_evaluation(record.evaluation)
            for record in records
            if record.evaluation != _NOT_EVALUATED  # of thousands that say nothing
        ]
        return round_scores(
            evaluations,
            scorer(state) if scorer else None,
            task=self.plan.model.task,
            targets=self.plan.bundle.manifest.targets,
        )

    def _is_scored(self, round_id: int) -> bool:
        config = self.plan.config
        return round_id % config.evaluation.every == 0 or round_id == config.rounds
