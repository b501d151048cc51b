"""The page that shows what came out of a run and what it cost.

``write_report`` imports matplotlib and jinja2 when it is called; the records need neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protofleet.federation.records import RunRecord
from protofleet.report._compare import Difference, compare, differing_settings
from protofleet.report.comparison import ComparedMethod, ComparedRecord
from protofleet.report.details import (
    Confusion,
    Details,
    Latencies,
    Prototypes,
    details_of_folder,
    details_of_run,
    load_details,
    missing_parts,
    save_details,
    to_prototypes,
)
from protofleet.report.device_scores import RoundScore

__all__ = [
    "ComparedMethod",
    "ComparedRecord",
    "Confusion",
    "Details",
    "Difference",
    "Latencies",
    "Prototypes",
    "RoundScore",
    "compare",
    "details_of_folder",
    "details_of_run",
    "differing_settings",
    "load_details",
    "missing_parts",
    "save_details",
    "to_prototypes",
    "write_comparison",
    "write_report",
]


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run's folder: a coordinator's ``run_dir`` or a demonstration's.

    Raises:
        MissingDataError: nothing of a run is there.
        InputError: a field is missing or of a wrong type.
    """
    from protofleet.report._page import write_report as write  # noqa: PLC0415 - heavy imports

    return write(run_dir)


def write_comparison(runs: Sequence[tuple[str, Path, RunRecord]], page: Path) -> None:
    """Write a page about runs (each a name, its folder, its record), differences to the first.

    Raises:
        InputError: a ledger is damaged.
    """
    from protofleet.report._comparison_page import (  # noqa: PLC0415 - heavy imports
        write_comparison as write,
    )

    write(runs, page)
