"""The report and the comparison of runs in the system's Chromium: every control, themes, widths."""

from __future__ import annotations

import json
import shutil

import pytest
from report.fake_run import write_comparison as add_methods
from report.fake_run import write_run
from web.node import skip

from protofleet.federation.records import RunRecord, load_record
from protofleet.report import write_comparison, write_report


@pytest.mark.slow(seconds=10)
@pytest.mark.timeout(180)
def test_a_reader_uses_all_that_the_pages_offer(node, tmp_path):
    if shutil.which("chromium") is None:
        skip("needs Chromium: apt install chromium")
    folders = [write_run(tmp_path / f"seed-{seed}", devices=5, seed=seed) for seed in (0, 1)]
    add_methods(folders[0])
    report, comparison = write_report(folders[0]), tmp_path / "comparison.html"
    runs = [(one.name, one, load_record(one / "result.json", RunRecord)) for one in folders]
    write_comparison(runs, comparison)
    pages = [str(report), str(comparison)]
    told = node.run("node", "--import", "tsx", "e2e/report.ts", str(tmp_path), *pages)
    used = json.loads(told.splitlines()[-1])
    assert used["chosen"] == 5
    assert used["pressed"] >= 5
    assert len(list(tmp_path.glob("*.png"))) == 8
