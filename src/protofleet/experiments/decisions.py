"""Which method for which situation: computed from the figures of ``overview``, by one rule.

Data sets that are divided alike and use one model make a group. In a situation, the methods within
its budget are ranked again on each data set. Advised is, of those that have a score on all of them,
the method that is as good as the best, within the noise, on the largest number of data sets; among
equals the one that is fewest points behind on average. So the best on a data set may be one that is
not advised.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from protofleet.experiments.config import Section
from protofleet.experiments.overview import DataSet, Entry, Measure, Place
from protofleet.experiments.standings import ranked

CostName = Literal["mb", "train_ms", "kept_mb", "peak_mb"]


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for.

    Attributes:
        wish: for people.
        section, measure: by which score.
        cost, most: what is scarce, and what a method may use of it, in FedAvg's; None: nothing.
    """

    wish: str
    section: Section = "personalisation"
    measure: Measure = "rounds"
    cost: CostName | None = None
    most: float = 1.0


SITUATIONS = (
    Situation(wish="Each device its own best model, whatever it costs"),
    Situation(wish="The same, with FedAvg's bytes in all", measure="bytes"),
    Situation(wish="A slow or dear link", measure="tenth"),
    Situation(wish="Weak processor", cost="train_ms", most=1.25),
    Situation(wish="Little storage", cost="kept_mb", most=1.05),
    Situation(wish="Little memory", cost="peak_mb", most=1.05),
    Situation(wish="Each device's model is to know everybody's data", section="generalisation"),
    Situation(wish="One model, also for those who come later", section="global"),
)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A method within a situation's budget.

    Attributes:
        label: of the method.
        behind: points behind the best on each data set, the mean over them.
        good_on: on how many it is as good as the best, within the noise.
        bytes_ratio: of the rounds to its score to FedAvg's in all of its own, the mean over the
            data sets; without what is sent for a final fit.
        alone: whether it is training without a federation.
        entries: its rows.
    """

    label: str
    behind: float
    good_on: int
    bytes_ratio: float | None
    alone: bool
    entries: tuple[Entry, ...]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """For a situation and a group.

    Attributes:
        data_sets: how many of the group tell.
        candidates: best first; empty: no method is within the budget, or it was not measured.
    """

    data_sets: int
    candidates: tuple[Candidate, ...]

    @property
    def equals(self) -> tuple[Candidate, ...]:
        """Those that are as good as the best on as many data sets as the first, which may be 0."""
        most = self.candidates[0].good_on if self.candidates else 0
        if most == 0:
            return self.candidates[:1]
        return tuple(one for one in self.candidates if one.good_on == most)

    @property
    def lightest(self) -> Candidate | None:
        """Of the equals that federate, the one that has moved the fewest bytes, to two digits."""
        known = [
            (float(f"{one.bytes_ratio:.2g}"), number, one)
            for number, one in enumerate(self.equals)
            if one.bytes_ratio is not None and not one.alone
        ]
        return min(known)[2] if known else None


Group = tuple[str, str]
"""Kind of division, and model."""


def groups(data_sets: Sequence[DataSet]) -> dict[Group, list[DataSet]]:
    """Data sets that are divided alike and use one model, in their order."""
    found: dict[Group, list[DataSet]] = {}
    for one in data_sets:
        found.setdefault((one.partition, one.model), []).append(one)
    return found


def advise(situation: Situation, data_sets: Sequence[DataSet]) -> Advice:
    """What to take in a situation, by the data sets of one group."""
    tables = [dict(_allowed(situation, one)) for one in data_sets]
    common = set.intersection(*(set(table) for table in tables)) if tables else set()
    rankings = [
        ranked({label: place.by_seed for label, (_, place) in sorted(table.items())})
        for table in tables
    ]
    candidates = [
        Candidate(
            label=label,
            behind=statistics.fmean(ranking[label][0] for ranking in rankings),
            good_on=sum(ranking[label][1] is True for ranking in rankings),
            bytes_ratio=_mean(
                [_moved(*table[label], one) for table, one in zip(tables, data_sets, strict=True)]
            ),
            alone=tables[0][label][0].alone,
            entries=tuple(table[label][0] for table in tables),
        )
        for label in common
    ]
    order = sorted(candidates, key=lambda one: (-one.good_on, one.behind, one.label))
    return Advice(data_sets=len(data_sets), candidates=tuple(order))


def left_out(data_sets: Sequence[DataSet], every: Sequence[DataSet]) -> dict[str, list[str]]:
    """Which methods the data sets of a group lack, though any data set of the page has them.

    Args:
        data_sets: of the group.
        every: of the page.

    Returns:
        Labels by the name of the data set, which is absent where it lacks none.
    """
    known = {label for one in every for label in (*_with_a_row(one), *one.missing)}
    lacking = {one.name: sorted(known - _with_a_row(one)) for one in data_sets}
    return {name: labels for name, labels in lacking.items() if labels}


def _with_a_row(one: DataSet) -> set[str]:
    return {entry.label for entry in one.entries if entry.ranked}


def _allowed(situation: Situation, one: DataSet) -> Iterator[tuple[str, tuple[Entry, Place]]]:
    for entry in one.entries:
        place = entry.places.get(situation.measure, {}).get(situation.section)
        if not entry.ranked or place is None or not _within(situation, entry):
            continue
        yield entry.label, (entry, place)


def _within(situation: Situation, entry: Entry) -> bool:
    if situation.cost is None:
        return True
    used = entry.ratios.get(situation.cost)
    return used is not None and used <= situation.most


def _moved(entry: Entry, place: Place, one: DataSet) -> float | None:
    ratio = entry.ratios.get("mb")
    return None if ratio is None else ratio * place.rounds / one.rounds


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None
