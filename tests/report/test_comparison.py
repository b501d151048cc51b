"""How many owners a demonstration's method serves better."""

from __future__ import annotations

import msgspec
from report.fake_run import write_comparison, write_run

from protofleet.report import ComparedRecord


def _owners(folder, own, start, alone) -> ComparedRecord:
    result = write_comparison(folder)
    other, mine = result.comparison
    mine = msgspec.structs.replace(mine, owners=own, owners_start=start)
    other = msgspec.structs.replace(other, owners=alone)
    return msgspec.structs.replace(result, comparison=(other, mine))


def test_equal_scores_are_neither_better_nor_worse(tmp_path):
    start, alone = {"a": 0.5, "b": 0.9, "c": 0.7}, {"a": 0.8, "b": 0.8, "c": 0.8}
    result = _owners(write_run(tmp_path), {"a": 0.8, "b": 0.8, "c": 0.9}, start, alone)
    assert result.better_off() == (
        "FedAli, of 3 owners: 2 better off than before, 1 worse; 1 better off than alone, 0 worse"
    )


def test_who_sends_no_scores_is_not_counted(tmp_path):
    folder = write_run(tmp_path)
    assert _owners(folder, {}, {"a": 0.5}, {"a": 0.5}).better_off() == ""
    assert _owners(folder, {"a": 0.6, "b": 0.6}, {"a": 0.5}, {}).better_off() == (
        "FedAli, of 2 owners: 1 better off than before, 0 worse"
    )
