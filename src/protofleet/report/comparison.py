"""Methods beside each other: what a demonstration adds to ``result.json``."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

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
        owners_start: accuracy of the model at the start on each owner's own test part, by device.
        owners: the same of each owner's own model after the last round.
    """

    label: str
    strategy: str
    network: str
    trained: str
    start: Scores
    rounds: tuple[Scores, ...]
    last: Scores
    owners_start: dict[str, float] = {}
    owners: dict[str, float] = {}


class ComparedRecord(RunRecord, frozen=True, kw_only=True):
    """``result.json`` of a demonstration; a coordinator's reads as one that compares nothing.

    Attributes:
        comparison: the run's own method and others, in the order in which they are shown.
        columns: what the scores' sections are in the words of the data; empty: their names.
    """

    comparison: tuple[ComparedMethod, ...] = ()
    columns: dict[str, str] = msgspec.field(default_factory=dict)

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

    def better_off(self) -> str:
        """How many owners the run's own method serves better than the start, and than alone.

        Empty where no model of theirs was scored.
        """
        methods = {one.strategy: one for one in self.comparison}
        own, alone = methods.get(self.strategy), methods.get("local")
        if own is None or not own.owners:
            return ""
        found = [_counted(own.owners, own.owners_start, "before")]
        if alone and alone is not own and alone.owners:
            found.append(_counted(own.owners, alone.owners, "alone"))
        return f"{own.label}, of {len(own.owners)} owners: {'; '.join(found)}"


def _counted(now: Mapping[str, float], other: Mapping[str, float], what: str) -> str:
    """How many are better and worse off; equal scores are neither."""
    pairs = [(now[name], other[name]) for name in now if name in other]
    better, worse = (sum(a > b for a, b in pairs), sum(a < b for a, b in pairs))
    return f"{better} better off than {what}, {worse} worse"
