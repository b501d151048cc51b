"""Results as a table: the rounds of one or several runs in pandas.

    pip install pandas
    python results_in_pandas.py asynchronous/buffered asynchronous/synchronous

A run's folder is that of a ``protofleet.Federation``, of a demonstration, of an experiment's method
and seed, or the ``run_dir`` of a coordinator. Without pandas the same rows are written as CSV.
"""

from __future__ import annotations

import argparse
import csv
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import protofleet as pf

SCORE = "personalisation.macro_f1"


def rows_of(folders: list[Path]) -> list[dict[str, Any]]:
    """A row for each round of each run; bytes and seconds are also added up over the rounds."""
    rows = []
    for folder in folders:
        results = pf.read_results(folder)
        seconds, sent = 0.0, 0
        for row in results.to_records():
            seconds, sent = seconds + row["seconds"], sent + row["bytes_up"]
            about = {"run": folder.name, "strategy": results.strategy}
            rows.append({**about, **row, "seconds_so_far": seconds, "bytes_up_so_far": sent})
    return rows


def in_pandas(rows: list[dict[str, Any]]) -> Any:
    """The best round of each run, and what it took to get there."""
    import pandas as pd  # noqa: PLC0415 - the rows are of use without it

    table = pd.DataFrame(rows).set_index(["run", "round"])
    best = table.loc[table.groupby("run")[SCORE].idxmax()]
    return best[["strategy", SCORE, f"{SCORE}.std", "seconds_so_far", "bytes_up_so_far"]]


def main(folders: list[Path]) -> list[dict[str, Any]]:
    """Print the table, or the rows."""
    rows = rows_of(folders)
    if find_spec("pandas"):
        print(in_pandas(rows).to_string(float_format="%.3f"))
        return rows
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN")
    main(parser.parse_args().folders)
