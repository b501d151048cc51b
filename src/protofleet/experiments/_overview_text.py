"""The page of all methods on several data sets: Markdown, the same bytes for the same results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from textwrap import fill
from typing import Any

import msgspec

from protofleet.experiments.claim_text import diverged_with
from protofleet.experiments.config import Section
from protofleet.experiments.decisions import (
    SITUATIONS,
    Advice,
    Candidate,
    Situation,
    advise,
    groups,
    left_out,
)
from protofleet.experiments.overview import (
    MOST_FREQUENT,
    DataSet,
    Entry,
    Measure,
    Overview,
    Place,
    by_score,
)
from protofleet.printable import shell_word
from protofleet.strategies.tasks import METRICS
from protofleet.units import NOTHING

_MOST_NAMED = 4
_WIDE = 140
_TOO_NARROW = (
    f"Its table takes {_WIDE} columns of a terminal; `--markdown` or `--page FILE` writes it."
)
_MEASURES: tuple[Measure, ...] = ("rounds", "bytes")
"""What the tables show."""
_TITLES: dict[Measure, str] = {
    "rounds": "equal rounds",
    "bytes": "equal bytes",
    "tenth": "a tenth of these bytes",
}
_OWN_MODEL, _EARLY, _FITTED, _OPTIMISER, _MORE_STEPS, _CLOSE = "°", "†", "‡", "§", "¶", "**"
_COSTS = {
    "mb": "bytes a round",
    "train_ms": "processor time a round",
    "kept_mb": "bytes kept between rounds",
    "peak_mb": "memory",
}
_DIVISIONS = {"natural": "by person"}

_TITLE = "Which method should I take?"
_INTRODUCTION = (
    "Every [method](algorithms.md) that fits, on small data sets, with one small "
    "model and one optimiser for each; a sign marks methods with others, or with more steps. All "
    "figures are measured, and words that name a method are computed from them: `{command}`."
)
_FIRST = """
- *A good model, and few labels of each owner*: [a head alone](device.md#with-a-few-labels) takes a
  second, no federation and no method, and is used only where it helps.
- *Few people with few examples each*: see the column *few* of [what the defaults do for
  owners](outcome.md), ten people with 20 windows each. Most methods end there near training
  alone, and each harms some owners. [The gate](gate.md) serves the personal model only where it
  helps; [`baseline`](rounds.md#who-would-do-better-alone) tells who would do better alone.
- *Few devices*: an average of few [tells a good deal of each](privacy.md), and noise that promises
  something needs hundreds.
- *Nothing known*: who harmed the fewest owners with nothing set stands [there](outcome.md), too;
  the table below tells who reached the best score."""
_READING = """
- *What to take*: within the limit methods are ranked anew on each data set. Bold is, of those that
  ran on all of the column's, as good as the best, within the noise, on most of them, and of those
  the fewest points behind on average; where none is as good on any, the fewest points behind stand,
  not bold. Bytes are those of all rounds; training alone moves none. {own}: what is better may
  be the model, not the method: the rows of FedAvg on that model tell. Left out: what another
  data set has, but not that one; its note says why, unless a reason is given.
- *Equal rounds*: the score after as many rounds as FedAvg has. *Equal bytes*: after the last whole
  round within the bytes that a client of FedAvg moves in its rounds, up and down; cheaper methods
  have more rounds where a row says so, dearer ones fewer; what is sent for a
  final fit is not counted.
- *Personalisation*: each device's own model, after its training in the round, on its own test part;
  *generalisation*: the same models on all devices' test parts together, or so many examples of
  them as the table below says; *global*: the server's model there. *{floor}*: what needs no
  training, the class that is most frequent in a device's own training part.
- {marks}"""
_MADE = """
- Noise: {noise} Such a method is printed **bold**, and methods that are bold together are not
  ranked apart. The best of many is flattered by its luck: a difference that matters deserves more
  seeds.
- Settings: each data set has the settings of all, then those that a method has of its own; the
  rest are defaults, which [all methods](algorithms.md) lists. Some were chosen after a look at
  scores, as the notes of the data sets say. SCAFFOLD corrects plain gradient steps: it has no
  momentum, but the highest learning rate of twice and a half, five and ten times that of gradient
  steps by which it did not diverge with seed 1. {small}
- Time: processor time of a device's local training in a round, without evaluation and without the
  first round. Kept: what a device stores between rounds. Memory: the peak of a device's process in
  one round, Python and runtime included."""

_MARKS = (
    f"± is the standard deviation over the seeds. {_OWN_MODEL}: the method has a model of its "
    f"own, and what it costs is its model's cost too. {_EARLY}: as in its paper, each device's "
    "model is scored as it arrives, before the training in the round. "
    f"{_FITTED}: the method ends with a final fit; a score with that sign is one before it. "
    f"{_OPTIMISER}: another optimiser than the data set's moves its model, or a part of it. "
    f"{_MORE_STEPS}: by its settings it makes more steps a round than FedAvg; what else a "
    "method computes shows in its time alone."
)
_PAIRED = (
    "a method is as good as the best unless the 95 % interval of their differences, seed by "
    "seed, is above 0 (Student's t)."
)
_ADVICE = (
    "Each column is a kind of data, each row a wish or a limit. **Bold**: take that; in brackets "
    "how many points it is behind the best on average, and on how many of the data sets it is as "
    "good. Then others that are as good, and which of all moved the fewest bytes. Where training "
    "alone (Local) is among them, a federation has gained nothing that these figures show."
)
_MEAN = "Mean: over the data sets that the method was run on."
_PICTURE = (
    "Each method after each of its rounds, with a circle at its end. Named and joined: those that "
    "no other method that federates beats with fewer bytes; training alone is the dashed line. "
    "Red: FedAvg, and its bytes."
)
_UNPAIRED = (
    "a method is as good as the best unless it is further behind than the 95 % intervals over the "
    "clients of both together (root of the sum of squares), which is wide: clients differ much "
    "more than methods. The server's model is one: its interval is that of its accuracy over the "
    "pooled examples, for macro-F1 too."
)


def page(found: Overview, command: str, picture: str | None, *, columns: int | None = None) -> str:
    """All of it, for a terminal.

    Args:
        found: with at least one data set.
        command: that makes the page.
        picture: path of the picture of scores over bytes, as seen from the page.
        columns: of a terminal, which may be too narrow for the table of a data set; None: none is.
    """
    data_sets = found.data_sets
    links = {one.name: f"#{_anchor(one.title)}" for one in data_sets}
    parts = _summary(found, command, picture, links)
    parts += ["## How the figures are made", _points(_MADE, data_sets)]
    parts += ["## All data sets together", *_together(data_sets, level=3)]
    narrow = columns is not None and columns < _WIDE
    for one in data_sets:
        parts += [f"## {one.title}", *_about(one), *([_TOO_NARROW] if narrow else _tables(one))]
    return _joined(parts)


def pages(found: Overview, command: str, picture: str | None, name: str) -> dict[str, str]:
    """The same as a summary of one page, and a page for each data set and for all together.

    Args:
        found: with at least one data set.
        command: that makes the pages.
        picture: as seen from the summary.
        name: of the summary's file, without its ending.

    Returns:
        Texts by path, as seen from the summary's folder.
    """
    data_sets = found.data_sets
    links = {one.name: f"results/{name}-{_slug(one)}.md" for one in data_sets}
    together = f"results/{name}-all.md"
    summary = _summary(found, command, picture, links)
    summary.append(
        f"[All data sets together]({together}) has every method behind the best, and how the "
        "figures are made: noise, settings, times."
    )
    back = f"Part of [{_TITLE}](../{name}.md), which says what the signs mean."
    return {
        f"{name}.md": _joined(summary),
        together: _joined(
            [
                "# All data sets together",
                back,
                "## How the figures are made",
                _points(_MADE, data_sets).replace("](", "](../"),
                *_together(data_sets, level=2),
            ]
        ),
        **{links[one.name]: _joined([f"# {one.title}", back, *_parts(one)]) for one in data_sets},
    }


def _parts(one: DataSet) -> list[str]:
    """Of a page of its own: headings a level higher."""
    return [text.replace("### ", "## ", 1) for text in (*_about(one), *_tables(one))]


def _slug(one: DataSet) -> str:
    return one.name.rpartition("/")[2]


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _summary(
    found: Overview, command: str, picture: str | None, links: Mapping[str, str]
) -> list[str]:
    """What to take first, then what it rests on."""
    data_sets = found.data_sets
    parts = [f"# {_TITLE}", _wrapped(_INTRODUCTION.format(command=command))]
    parts += ["## Before you choose", _points(_FIRST, data_sets)]
    parts += ["## What to take", _decisions(data_sets), "## How to read it"]
    parts += [_points(_READING, data_sets), "## The data sets", _setting(data_sets, links)]
    if found.missing:
        parts.append(f"Not yet run: {', '.join(f'`{name}`' for name in found.missing)}.")
    if picture is not None:
        parts += [
            f"![Score over the bytes that a client moves, a panel for each data set]({picture})",
            _wrapped(_PICTURE),
        ]
    return parts


def _together(data_sets: Sequence[DataSet], *, level: int) -> list[str]:
    """Tables of points behind the best, with headings of that level."""
    sections = dict.fromkeys(section for one in data_sets for section in one.sections)
    parts = []
    for section in sections:
        for measure in _MEASURES:
            title = f"{section.capitalize()}, {_TITLES[measure]}: points behind the best"
            parts.append(f"{'#' * level} {title}")
            parts.append(f"{_overview(data_sets, section, measure)}\n\n{_MEAN}")
    return parts


def _points(text: str, data_sets: Sequence[DataSet]) -> str:
    """A list, with what depends on the data sets filled in."""
    fewest = min(len(one.seeds) for one in data_sets)
    most = max(len(one.seeds) for one in data_sets)
    seeds = str(fewest) if fewest == most else f"{fewest} to {most}"
    noise = [_PAIRED] if fewest > 2 else [_UNPAIRED]
    if fewest <= 2 < most:
        noise = [f"with three seeds or more {_PAIRED}", f"With fewer, {_UNPAIRED}"]
    small = (
        f"Few examples, few rounds, {seeds} seed{'' if seeds == '1' else 's'}: this orders methods "
        "on data like these, and is no measure of what they reach."
    )
    values = {"noise": " ".join(noise), "small": small, "marks": _MARKS, "floor": MOST_FREQUENT}
    values["own"] = _OWN_MODEL
    return "\n".join(
        _wrapped(f"- {' '.join(one.split())}", "  ")
        for one in text.format(**values).split("\n- ")[1:]
    )


def _setting(data_sets: Sequence[DataSet], links: Mapping[str, str]) -> str:
    head = ["data set", "divided", "clients", "model", "score", "pooled examples",
            "FedAvg's rounds", "MB a client moves in them", "seeds"]  # fmt: skip
    return _rows(
        head,
        [
            [
                f"[{one.table}]({links[one.name]})",
                _DIVISIONS.get(one.partition, one.partition),
                str(one.clients),
                f"`{one.model}`",
                METRICS[one.metric].label,
                _range(one.pooled),
                str(one.rounds),
                f"{one.mb:.3g}",
                f"{len(one.seeds)} of {one.asked}",
            ]
            for one in data_sets
        ],
    )


def _overview(data_sets: Sequence[DataSet], section: Section, measure: Measure) -> str:
    """Rows by the mean over the data sets; those that lack some below."""
    places: dict[str, list[Place | None]] = {}
    for number, one in enumerate(data_sets):
        for entry in one.entries:
            place = entry.places.get(measure, {}).get(section)
            if place is not None and not entry.bound:
                places.setdefault(entry.label, [None for _ in data_sets])[number] = place
    lines = sorted((_rank(columns), label) for label, columns in places.items())
    return _rows(
        ["method", *(one.table for one in data_sets), "mean"],
        [
            [label, *map(_behind, places[label]), f"{_mean_behind(places[label]):.1f}"]
            for _, label in lines
        ],
    )


def _rank(columns: Sequence[Place | None]) -> tuple[int, float]:
    """First those that ran on every data set; then by points behind."""
    return columns.count(None), _mean_behind(columns)


def _mean_behind(columns: Sequence[Place | None]) -> float:
    known = [one.behind for one in columns if one is not None and one.behind is not None]
    return statistics.fmean(known)


def _behind(place: Place | None) -> str:
    if place is None or place.behind is None:
        return NOTHING
    return _bold(f"{place.behind:.1f}", place)


def _about(one: DataSet) -> list[str]:
    text = f"`protofleet experiment run {shell_word(one.name)}`"
    if one.missing:
        text += f". Not run: {', '.join(label + _divergence(one, label) for label in one.missing)}"
    for label in [label for label in one.diverged if label not in one.missing]:
        text += f". {label} {diverged_with(one.diverged[label])}: no figures are of that"
    parts = [text + "."]
    if one.note.strip():
        parts.append(_wrapped(" ".join(one.note.split())))
    if one.training:
        parts.append(f"All methods: `{_settings(one.training)}`.")
    own = {entry.label: entry.own_settings for entry in one.entries if entry.own_settings}
    if own:
        lines = [[label, f"`{_settings(own[label])}`"] for label in sorted(own)]
        parts.append(_rows(["method", "its own settings"], lines))
    return parts


def _divergence(one: DataSet, label: str) -> str:
    """In brackets with which seeds a method diverged, if it did."""
    return f" ({diverged_with(one.diverged[label])})" if label in one.diverged else ""


def _settings(values: Mapping[str, Any]) -> str:
    """As in a file, in one line."""
    return ", ".join(f"{name} = {_toml(value)}" for name, value in values.items())


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{_settings(value)}}}"
    return msgspec.json.encode(value).decode()


def _tables(one: DataSet) -> list[str]:
    parts = []
    for measure in _MEASURES:
        entries = [entry for entry in one.entries if measure in entry.places]
        first = one.sections[0]
        entries.sort(key=partial(by_score, section=first, measures=[measure]))
        head = ["method", *one.sections, *(["rounds"] if measure == "bytes" else [])]
        lines = [_scores(one, entry, measure) for entry in entries]
        parts += [f"### {one.table}, {_TITLES[measure]}", _rows(head, lines)]
    head = ["method", "MB a round", "÷ FedAvg", "time ÷ FedAvg", "kept MB", "memory MB", "÷ FedAvg"]
    lines = [_costs(entry) for entry in one.entries if not entry.floor]
    return [*parts, f"### {one.table}, costs", _rows(head, lines)]


def _scores(one: DataSet, entry: Entry, measure: Measure) -> list[str]:
    places = entry.places[measure]
    rounds = f"{next(iter(places.values())).rounds:g}"
    return [
        _marked(entry),
        *(_score(places.get(section)) for section in one.sections),
        *([rounds] if measure == "bytes" else []),
    ]


def _costs(entry: Entry) -> list[str]:
    costs, ratios = entry.costs, entry.ratios
    return [
        _marked(entry),
        _number(costs.mb, ".3g"),
        _number(ratios.get("mb"), ".2f"),
        _number(ratios.get("train_ms"), ".2f"),
        _number(costs.kept_mb, ".3g"),
        _number(costs.peak_mb, ".0f"),
        _number(ratios.get("peak_mb"), ".2f"),
    ]


def _marked(*entries: Entry) -> str:
    """The label, with a sign for what holds on any of its rows."""
    signs = {
        _OWN_MODEL: any(one.own_model for one in entries),
        _EARLY: any(one.early for one in entries),
        _FITTED: any(one.fitted for one in entries),
        _OPTIMISER: any(one.other_optimiser for one in entries),
        _MORE_STEPS: any(one.more_steps for one in entries),
    }
    return entries[0].label + "".join(sign for sign, holds in signs.items() if holds)


def _score(place: Place | None) -> str:
    if place is None:
        return NOTHING
    spread = "" if place.std is None else f" ± {place.std:.1f}"
    return _bold(f"{place.mean:.1f}", place) + spread + (_FITTED if place.unfitted else "")


def _bold(text: str, place: Place) -> str:
    close = place.as_good or place.behind == 0
    return f"{_CLOSE}{text}{_CLOSE}" if close else text


def _decisions(data_sets: Sequence[DataSet]) -> str:
    kinds = groups(data_sets)
    head = ["you want, or have", *(_group_title(of) for of in kinds.values())]
    lines = [
        [_wish(one), *(_advice(advise(one, of)) for of in kinds.values())] for one in SITUATIONS
    ]
    left = ["Left out", *(_left_out(of, data_sets) for of in kinds.values())]
    return f"{_wrapped(_ADVICE)}\n\n{_rows(head, [*lines, left])}"


def _left_out(data_sets: Sequence[DataSet], every: Sequence[DataSet]) -> str:
    """Methods that data sets of a group lack, with the reason."""
    lacking = left_out(data_sets, every)
    found = []
    for one in data_sets:
        if labels := lacking.get(one.name):
            named = "; ".join(label + _reason(one, label) for label in labels)
            found.append(f"{one.table}: {named}")
    return ". ".join(found) or NOTHING


def _reason(one: DataSet, label: str) -> str:
    """In brackets why a method has no row; empty where the file lacks it."""
    return _divergence(one, label) or (" (not finished)" if label in one.missing else "")


def _group_title(data_sets: Sequence[DataSet]) -> str:
    return "; ".join(one.table for one in data_sets)


def _wish(one: Situation) -> str:
    if one.cost is None:
        return f"{one.wish} ({one.section}, {_TITLES[one.measure]})"
    return f"{one.wish}: at most {one.most:g} times FedAvg's {_COSTS[one.cost]} ({one.section})"


def _advice(advice: Advice) -> str:
    if not advice.candidates:
        return NOTHING
    first, *others = advice.equals
    if not first.good_on:
        return f"{_named(first)} ({first.behind:.1f}; none is as good as the best)"
    on = f"{first.good_on} of {advice.data_sets}"
    text = f"{_CLOSE}{_named(first)}{_CLOSE} ({first.behind:.1f}; {on})"
    if others:
        named = ", ".join(f"{_named(one)} ({one.behind:.1f})" for one in others[:_MOST_NAMED])
        more = len(others) - _MOST_NAMED
        text += f"; as good: {named}" + (f" and {more} more" if more > 0 else "")
    light = advice.lightest
    if light is not None and others:
        text += f"; fewest bytes: {_named(light)} ({light.bytes_ratio:.2g} times FedAvg's)"
    return text


def _named(one: Candidate) -> str:
    return _marked(*one.entries)


def _range(values: Sequence[int]) -> str:
    if not values:
        return NOTHING
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _anchor(title: str) -> str:
    """GitHub's anchor of a heading."""
    kept = [c for c in title.lower() if c.isalnum() or c in " -_"]
    return "".join(kept).replace(" ", "-")


def _wrapped(text: str, indent: str = "") -> str:
    return fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _rows(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in (head, rule, *lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)
