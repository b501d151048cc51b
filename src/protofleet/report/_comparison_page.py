"""Runs beside each other as one self-contained page: differences, settings, curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protofleet.durable import replace_whole
from protofleet.federation.records import RunRecord
from protofleet.report import _figures
from protofleet.report._compare import Difference, compare, differing_settings
from protofleet.report._page import KINDS, data_uri, template_environment
from protofleet.report.comparison import ComparedMethod
from protofleet.strategies.tasks import TASKS
from protofleet.units import NOTHING

_FOLDER = Path(__file__).parent
_MOST_CURVES = 6
_LONGEST = 20
"""Characters of a name in a legend."""


def write_comparison(runs: Sequence[tuple[str, Path, RunRecord]], page: Path) -> None:
    """Write a page about runs; curves are those of the first six.

    Args:
        runs: at least two, each its name, folder and record; differences are to the first.
        page: the file.

    Raises:
        InputError: a ledger is damaged.
    """
    (name, folder, first), *others = runs
    pairs = [
        {
            "names": (name, other_name),
            "rows": [_cells(one) for one in compare(first, other)],
            "settings": differing_settings((folder, first), (other_folder, other)),
        }
        for other_name, other_folder, other in others
    ]
    methods = [_method(_short(label), record) for label, _, record in runs[:_MOST_CURVES]]
    shown = TASKS[methods[0].last.task].headline
    curves = {
        kind: _figures.compared_by_round(methods, pick, shown) for kind, pick in KINDS.items()
    }
    text = (
        template_environment()
        .get_template("comparison.html.jinja2")
        .render(
            names=[one for one, _, _ in runs],
            pairs=pairs,
            curves={kind: data_uri(svg) for kind, svg in curves.items() if svg is not None},
            css=(_FOLDER / "report.css").read_text(encoding="utf-8"),
        )
    )
    replace_whole(page, text.encode(), shared=True)


def _short(name: str) -> str:
    """The end of a path, which tells more than its beginning."""
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"


def _method(label: str, record: RunRecord) -> ComparedMethod:
    return ComparedMethod(
        label=label,
        strategy=record.strategy,
        network="",
        trained="",
        start=record.start,
        rounds=tuple(one.scores for one in record.aggregated),
        last=record.last,
    )


def _cells(row: Difference) -> tuple[str, ...]:
    shown = [_number(value) for value in (row.first, row.second, row.ratio)]
    change = NOTHING if row.change is None else _number(row.change, "+")
    return (row.name, shown[0], shown[1], change, shown[2])


def _number(value: float | None, sign: str = "") -> str:
    if value is None:
        return NOTHING
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.4g}"
