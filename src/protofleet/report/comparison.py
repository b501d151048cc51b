"""Methods beside each other: what a demonstration adds to ``result.json``."""

from __future__ import annotations

import msgspec

from protofleet.federation.outcomes.outcome import Outcome
from protofleet.federation.records import RunRecord, Scores


class ComparedMethod(msgspec.Struct, frozen=True, kw_only=True):
    """One method on the same data, with the same seed and as many rounds as the others.

    Attributes:
        label: its name, for people.
        strategy: key in ``protofleet.strategies.STRATEGIES``.
        network: what it trains, in words; methods of one network start from the same values.
        trained: where it was trained, in a few words.
        start: before the first round, of the pretrained model that its devices start from.
        rounds: after each round.
        last: as each section was scored last; the best round is not chosen, because it would be
            chosen on the test parts.
        outcome: what it has done for the owners; None: not told.
    """

    label: str
    strategy: str
    network: str
    trained: str
    start: Scores
    rounds: tuple[Scores, ...]
    last: Scores
    outcome: Outcome | None = None


class ComparedRecord(RunRecord, frozen=True, kw_only=True):
    """``result.json`` of a demonstration; a coordinator's reads as one that compares nothing.

    Attributes:
        comparison: the run's own method and others, in the order in which they are shown.
        columns: what the scores' sections are in the words of the data; empty: their names.
        untrained_head: the central training has seen no labels, so that what devices start from
            names classes by chance.
    """

    comparison: tuple[ComparedMethod, ...] = ()
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    untrained_head: bool = False

    def starts(self) -> dict[str, ComparedMethod]:
        """Of each network one method, which starts from the same values as the network's others.

        By what to call the row of these values: ``start``, or of a network that one method alone
        has, with that method's name.
        """
        networks: dict[str, list[ComparedMethod]] = {}
        for one in self.comparison:
            networks.setdefault(one.network, []).append(one)
        alone = len(networks) > 1
        return {
            f"start of {own[0].label}" if alone and len(own) == 1 else "start": own[0]
            for own in networks.values()
        }
