"""Claims for people: in the terminal, and as the page of them all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from protofleet.experiments.claim_registry import MeasureName
from protofleet.experiments.claim_results import DIVISION, TEST_PARTS, ClaimResult, Progress
from protofleet.experiments.comparisons import CONFIDENCE, Compared, Estimate, Verdict
from protofleet.experiments.table import LOSS
from protofleet.strategies.tasks import METRICS
from protofleet.units import NOTHING, byte_text, duration_text

_COMMAND = "protofleet experiment claims"
_WHERE: dict[MeasureName, str] = {
    "last": "last round",
    "best": "best round",
    "recovery": "mean since classes come back",
    "equal_bytes": "equal bytes",
    "rounds_to": "rounds to",
    "uplink": "bytes up",
    "bytes": "bytes up and down",
}
_PAGE_LINK = re.compile(r"\]\(([\w-]+\.md)")
_PLACES = {None: "", True: " (inside)", False: " (outside)"}
_WORDS: dict[Verdict, str] = {"reproduced": "yes", "refuted": "no"}
_INTRO = """\
# The papers' claims, measured here

A row for each claim: the figures of the first of its main comparisons, and the seeds and the
verdict of all of them. A claim's name leads to its setting and all of its comparisons;
`protofleet experiment claims NAME` runs it. {figures}."""
_OUTRO = """\
This page is made, not written:
`protofleet experiment claims --markdown docs/claims.md --json docs/claims.json
--pictures docs/images`.
Claims, settings and remarks stand in `src/protofleet/experiments/claims/papers/`, the experiments
that measure them in the folder above, every seed's figures in `docs/claims.json`; how to add one:
[tables.md](tables.md#claims)."""
_ABOUT = "How the figures are made, and what a verdict means"
_FIGURES = """\
**Figures.** Of each seed both methods get the same division of the data. Their scores are
subtracted seed by seed (percentage points; a loss, of which less is better, as it is; where a row
says *relative*, in per cent of the other's), bytes and rounds divided. What stands
here is the mean over the seeds, of ratios the geometric one, with its 95 % interval: Student's t of
the differences, or of the ratios' logarithms. Where a run never reaches a target, the ratio of
rounds is known by bounds alone; then it is the median, with an interval from order statistics.
*Both* are the two methods' own figures, means over the seeds, of rounds medians.

**Best round.** Of a run it is the one in which the clients' own models have the highest accuracy on
their own test parts, the mean over the clients, whatever score is printed of it; a final fit is one
of the rounds. So the best round's macro-F1 or accuracy over all samples may be below the last
round's. The server's model has a best round of its own.

**Methods.** *FedAvg-C* is FedAvg whose last model every client trains once more on its own data and
is scored with. *Local* and *SOLO*: every client trains alone. *β = 0* is FedAli whose alignment
layers only normalise. *ALA*: adaptive local aggregation, FedALA's way to mix models.

**Verdicts.** *Reproduced* (in the table of all claims *yes*): the whole interval is on the claimed
side, beyond the figure in the column *claimed*. *Refuted* (*no*): the whole interval is on the
other side. *Not decided*: it holds that figure; then the verdict says which effect is excluded all
the same. All three are about the setting here, which is smaller than the
paper's; whether the paper's own figure lies *inside* or *outside* of our interval is told beside
it. *So far*: seeds are missing.

That table's verdict is of a claim's main comparisons together. *Yes*: all of them say so.
*Partly*: some of them do. *No*: none of them does, and at least one says no. *Not decided*: none
says yes or no. How many of several say what is told behind it.

**Main comparisons.** One 95 % interval in twenty misses by chance: a claim rests on its main
comparisons, which stand in bold, the others are details. Most were fixed before the first run."""
_CHANGED = "These claims have some that were fixed later, when results were known, as told below:"
_SEEDS = """\
**Seeds.** Every seed has initial values and an order of the examples of its own. An interval covers
what the seeds vary and nothing else: where they do not divide the data anew, it does not tell how
other people or other test parts would do. By seed are drawn:"""


def show(results: Sequence[ClaimResult], console: Console) -> None:
    """Print every claim with the comparisons of the first table."""
    for result in results:
        console.print(f"[bold]{escape(result.id)}[/bold]: {escape(result.claim)}", highlight=False)
        for one in _headlines(result):
            told = f"  {label_of(one)} {claimed_text(one)} ({_seeds(one)} seeds): "
            told += verdict_text(one) if one.estimate is None else _figure(one)
            if one.paper is not None:
                told += f"; the paper {_paper(one)}"
            console.print(told, markup=False, highlight=False)
            if one.estimate is not None:
                console.print(f"  {verdict_text(one)}", style="bold", markup=False, highlight=False)


def show_progress(found: Mapping[str, Progress], console: Console) -> None:
    """Print how far each experiment is."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("experiment", no_wrap=True)
    for title in ("seeds", "rounds left", "about"):
        grid.add_column(title, justify="right")
    for name, one in found.items():
        grid.add_row(*map(escape, (name, _done(one), str(one.rounds_left), _duration(one))))
    console.print(grid)
    for name, one in found.items():
        if missing := _missing(one):
            told = f"{name} lacks seeds {'; '.join(missing)}"
            console.print(told, style="dim", markup=False, highlight=False)
        if gone := {label: seeds for label, seeds in one.diverged.items() if seeds}:
            told = f"{name}{_diverged(gone)}"
            console.print(told, style="dim", markup=False, highlight=False)
        if one.other:
            runs = "1 run" if one.other == 1 else f"{one.other} runs"
            told = f"{name}: {runs} of other settings or rounds than the file's: not counted"
            console.print(told, style="dim", markup=False, highlight=False)


def pages(results: Sequence[ClaimResult], pictures: Mapping[str, str], name: str) -> dict[str, str]:
    """All of it as GitHub's Markdown, the same bytes for the same results.

    Args:
        results: in order.
        pictures: id → path of its picture as seen from the first page.
        name: of the first page's file, without its ending.

    Returns:
        Texts by path, as seen from the first page's folder: the table of all claims, a page of how
        its figures are made, and one for each paper's claims.
    """
    papers: dict[str, list[ClaimResult]] = {}
    for result in results:
        papers.setdefault(_paper_of(result), []).append(result)
    figures = f"results/{name}-figures.md"
    places = {one.id: f"{name}-{_paper_of(one)}.md#{one.id}" for one in results}
    head = ["claim", "the paper", "here [95 % interval]", "seeds", "verdict"]
    lines = [head, ["---"] * len(head)]
    lines += [_summary(result, f"results/{places[result.id]}") for result in results]
    back = f"Part of [the papers' claims](../{name}.md)"
    intro = _INTRO.format(figures=f"[{_ABOUT}]({figures})")
    found = {
        f"{name}.md": [intro, _rows(lines), _OUTRO],
        figures: [
            f"# {_ABOUT}",
            f"{back}.",
            _FIGURES + _changed(results, places),
            _drawn(results, places),
        ],
    }
    for paper, own in papers.items():
        sections = [_section(one, _from_inside(pictures.get(one.id))) for one in own]
        about = f"{back}, which has their verdicts. Main comparisons are bold: [{_ABOUT}]"
        title = f"# The claims of {paper}"
        found[f"results/{name}-{paper}.md"] = [title, f"{about}({name}-figures.md).", *sections]
    return {path: "\n\n".join(parts) + "\n" for path, parts in found.items()}


def _paper_of(result: ClaimResult) -> str:
    """E.g. ``fedali`` of ``fedali-generalisation``."""
    return result.id.partition("-")[0]


def _from_inside(picture: str | None) -> str | None:
    return None if picture is None else f"../{picture}"


def label_of(one: Compared) -> str:
    """What is compared, e.g. ``A - B, global, last round``."""
    pair = _pair(one)
    if one.measure == "rounds_to":
        return f"{pair}, rounds to {100 * (one.target or 0):g} % {one.section}"
    where = _WHERE[one.measure]
    return f"{pair}, {where}" if one.section is None else f"{pair}, {one.section}, {where}"


def _pair(one: Compared) -> str:
    sign = "÷" if one.is_ratio else "-"
    return f"{one.method} {sign} {one.against}{', relative' if one.relative else ''}"


def claimed_text(one: Compared) -> str:
    """Where the claim has the figure, e.g. ``> 0``."""
    sign = ">" if one.expect == "greater" else "<"
    return f"{sign} {one.threshold:g}{' %' if one.relative else ''}"


def verdict_text(one: Compared) -> str:
    """The verdict, what an undecided one excludes, which seeds diverged or are still missing."""
    if one.estimate is None:
        return f"{one.verdict}{_no_round(one)}{_diverged(one.diverged)}"
    so_far = "so far " if _lacks_seeds(one) else ""
    return f"{so_far}{one.verdict}{_excluded(one, one.estimate)}{_diverged(one.diverged)}"


def diverged_with(seeds: Sequence[int]) -> str:
    """Seeds 1, 2 and 5 → ``diverged with seeds 1-2, 5``."""
    return f"diverged with seed{'s' if len(seeds) > 1 else ''} {_ranges(seeds)}"


def _lacks_seeds(one: Compared) -> bool:
    ended = len(one.pairs) + len({seed for seeds in one.diverged.values() for seed in seeds})
    return ended < one.asked


def number(one: Compared, value: float | None) -> str:
    """A difference with its sign, or a ratio."""
    if value is None:
        return "no bound"
    if not one.is_ratio:
        return f"{value:+.{_digits(one)}f}{' %' if one.relative else ''}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _no_round(one: Compared) -> str:
    """Which method is too dear for a comparison at equal bytes."""
    for place, label in enumerate((one.method, one.against)):
        if any(pair.rounds[place] == 0 for pair in one.pairs):
            return f": not even one round of {label} is within the other's bytes"
    return ""


def _diverged(found: Mapping[str, Sequence[int]]) -> str:
    return "".join(f"; {label} {diverged_with(seeds)}" for label, seeds in found.items())


def _is_level(one: Compared) -> bool:
    """Whether the interval has no width in the digits that are printed."""
    if one.estimate is None:
        return False
    shown = {number(one, value) for value in (one.estimate.low, one.estimate.high)}
    return shown == {number(one, one.estimate.value)}


def _excluded(one: Compared, estimate: Estimate) -> str:
    if one.verdict != "not decided" or _is_level(one):
        return ""
    if estimate.confidence < CONFIDENCE:
        return f": an interval of {len(one.pairs)} seeds holds {100 * estimate.confidence:.1f} %"
    end = estimate.high if one.expect == "greater" else estimate.low
    if end is None or (one.is_ratio and end == 0):
        return ""
    return f"; {'above' if one.expect == 'greater' else 'below'} {number(one, end)} is excluded"


def _digits(one: Compared) -> int:
    return 3 if one.section == LOSS and not one.relative else 2


def _figure(one: Compared) -> str:
    if one.estimate is None:
        return NOTHING
    if _is_level(one):
        return f"{number(one, one.estimate.value)}, the same in all seeds"
    low, high = number(one, one.estimate.low), number(one, one.estimate.high)
    return f"{number(one, one.estimate.value)} [{low}, {high}]"


def _paper(one: Compared) -> str:
    """Every printed figure, and whether it lies in the interval where that has any width."""
    printed = {} if one.paper is None else {"": one.paper}
    told = [
        f"{name} {number(one, value)}{'' if _is_level(one) else _PLACES[one.holds(value)]}".strip()
        for name, value in (printed | one.elsewhere).items()
    ]
    return "; ".join(told) or NOTHING


def _seeds(one: Compared) -> str:
    return f"{len(one.pairs)}/{one.asked}"


def _averages(one: Compared) -> str:
    """Of both methods; at equal bytes with the rounds that those are."""
    if not one.pairs:
        return NOTHING
    text = " / ".join(_average(one, value) for value in one.averages)
    if one.measure == "equal_bytes":
        rounds = [f"{median(pair.rounds[place] for pair in one.pairs):g}" for place in (0, 1)]
        text += f" (rounds {' / '.join(rounds)})"
    return text


def _average(one: Compared, value: float | None) -> str:
    if one.measure == "rounds_to":
        return "never" if value is None else f"{value:g}"
    if value is None:
        return NOTHING
    return byte_text(value) if one.is_ratio else f"{value:.{3 if one.section == LOSS else 2}f}"


def _headlines(result: ClaimResult) -> list[Compared]:
    return [one for one in result.outcomes if not one.detail]


def _summary(result: ClaimResult, place: str) -> list[str]:
    """A claim's line: figures of its first main comparison, seeds and verdict of all of them."""
    main = _headlines(result)
    first = main[0]
    return [
        f"[{result.id}]({place}): {result.claim}",
        _paper(first),
        f"{_pair(first)} {claimed_text(first)}: {_figure(first)}",
        _seeds_of(main),
        _verdict_of(main),
    ]


def _seeds_of(outcomes: Sequence[Compared]) -> str:
    """E.g. ``0 to 2 of 3``, where comparisons have not the same number of seeds."""
    return f"{_span([len(one.pairs) for one in outcomes])} of {outcomes[0].asked}"


def _verdict_of(main: Sequence[Compared]) -> str:
    """What a claim's main comparisons say together, and how many of several say what."""
    words = Counter(_WORDS.get(one.verdict, one.verdict) for one in main)
    together = min(words, key=_rank)
    if together == "yes" and len(words) > 1:
        together = "partly"
    begun = any(one.estimate is not None for one in main)
    so_far = "so far " if begun and any(map(_lacks_seeds, main)) else ""
    diverged: dict[str, set[int]] = {}
    for one in main:
        for label, seeds in one.diverged.items():
            diverged.setdefault(label, set()).update(seeds)
    notes = _diverged({label: sorted(seeds) for label, seeds in diverged.items()})
    return f"{so_far}{together}{_counted(words)}{notes}"


def _counted(words: Counter[str]) -> str:
    """E.g. ``: 1 of 3 yes, 2 not decided``; nothing of a single comparison."""
    total = words.total()
    if total == 1:
        return ""
    if len(words) == 1:
        return f": all {total}"
    (first, count), *others = ((word, words[word]) for word in sorted(words, key=_rank))
    more = "".join(f", {count} {word}" for word, count in others)
    return f": {count} of {total} {first}{more}"


def _rank(word: str) -> tuple[int, str]:
    """Which of several verdicts is told first."""
    told = ("yes", "no", "not decided")
    return told.index(word) if word in told else len(told), word


def _drawn(results: Sequence[ClaimResult], places: Mapping[str, str]) -> str:
    """Which claims draw what of the data by seed."""
    found: dict[str, list[str]] = {}
    for result in results:
        drawn = [what for what in result.varies if what in {DIVISION, TEST_PARTS}]
        names = found.setdefault(" and ".join(drawn) or "nothing of the data", [])
        names.append(f"[{result.id}]({places[result.id]})")
    lines = [f"- {what}: {', '.join(names)}" for what, names in found.items()]
    return "\n".join([_SEEDS, "", *lines])


def _changed(results: Sequence[ClaimResult], places: Mapping[str, str]) -> str:
    """Which claims have comparisons that were not fixed before all results."""
    names = [f"[{one.id}]({places[one.id]})" for one in results if one.changed]
    return f"\n{_CHANGED}\n{', '.join(names)}." if names else ""


def _section(result: ClaimResult, picture: str | None) -> str:
    metric = METRICS[result.metric].label
    about = [
        f"## {result.id}",
        f"**{result.claim}** {result.reference}.",
        "\n".join(
            [
                f"- The paper: {result.printed}",
                f"- Here: {result.setting}. Scores are {metric} in per cent.",
                f"- `{_COMMAND} {result.id}` runs `{result.experiment}`.",
                f"- Seeds: {_seeds_of(result.outcomes)}.",
                f"- By seed differ {', '.join(result.varies)}.",
                *([f"- Fixed later: {result.changed}"] if result.changed else []),
            ]
        ),
    ]
    if result.remarks:
        # Remarks are written beside docs/, their section is a folder below.
        about.append(_PAGE_LINK.sub(r"](../\1", result.remarks))
    if picture is not None:
        about.append(f"![Differences over the seeds, and curves: {result.id}]({picture})")
    head = ["comparison", "claimed", "both", "here [95 % interval]", "the paper", "seeds",
            "verdict"]  # fmt: skip
    lines = [head, ["---", "---", "---:", "---:", "---:", "---:", "---"]]
    for one in result.outcomes:
        label = label_of(one) if one.detail else f"**{label_of(one)}**"
        cells = (_averages(one), _figure(one), _paper(one), _seeds(one), verdict_text(one))
        lines.append([label, claimed_text(one), *cells])
    return "\n\n".join([*about, _rows(lines)])


def _rows(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def _done(one: Progress) -> str:
    return f"{_span([len(seeds) for seeds in one.done.values()])} of {len(one.asked)}"


def _span(counts: Sequence[int]) -> str:
    fewest, most = min(counts), max(counts)
    return str(fewest) if fewest == most else f"{fewest} to {most}"


def _missing(one: Progress) -> list[str]:
    """Which seeds of which methods; those that lack the same ones together."""
    lacking: dict[str, list[str]] = {}
    for label, seeds in one.done.items():
        ended = {*seeds, *one.diverged[label]}
        if left := [seed for seed in one.asked if seed not in ended]:
            lacking.setdefault(_ranges(left), []).append(label)
    return [
        f"{seeds} ({'every method' if len(labels) == len(one.done) else ', '.join(labels)})"
        for seeds, labels in lacking.items()
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 5 → ``1-3, 5``."""
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _duration(one: Progress) -> str:
    return "?" if one.seconds_left is None else duration_text(round(one.seconds_left))
