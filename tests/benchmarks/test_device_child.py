"""What a measuring process writes about its phases."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from protofleet.benchmarks.device.child import Peak, Phases, _percentiles


def _lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_phase_is_called_as_often_as_asked_and_the_warm_up_does_not_count(capsys):
    calls = []
    phases = Phases()
    phases.repeat("infer", lambda: calls.append(time.sleep(0.002)), batch=4, least=7)
    _, first, second, ended = _lines(capsys)
    assert first == second == {"begin": "infer", "batch": 4}
    phase = ended["phase"]
    assert (phase["calls"], len(calls)) == (1, 4)  # ten times no seconds are over after one call
    phases.seconds = 1.0
    calls.clear()
    phases.seconds = 0.001
    phases.repeat("infer", lambda: calls.append(None), batch=4, least=7)
    phase = _lines(capsys)[-1]["phase"]
    assert phase["calls"] >= 7
    assert len(calls) == phase["calls"] + 3
    assert phase["ms"]["p50"] * phase["calls"] <= 2 * 1e3 * phase["seconds"]


def test_a_percentile_needs_calls_enough_to_tell_it():
    values = [float(n) for n in range(200)]
    assert _percentiles(values[:19]).keys() == {"p50"}
    assert _percentiles(values[:99]).keys() == {"p50", "p95"}
    expected = np.percentile(values, (50, 95, 99))
    assert list(_percentiles(values).values()) == pytest.approx(list(expected))


def test_the_peak_of_a_phase_is_not_the_one_before():
    """Memory that is given back before a phase is not in its peak, where the system allows it."""
    peak = Peak()
    if not peak.reset():
        assert "never falls" in peak.method
        return
    held = np.ones(20_000_000)
    high = peak.read()
    del held
    peak.reset()
    assert high - peak.read() > 100_000_000


def test_nothing_but_the_standard_library_is_loaded_before_the_first_phase():
    """Else imports would be missing from the time and the memory of loading."""
    code = (
        "import sys, protofleet.benchmarks.device.child\n"
        "print([m for m in ('numpy', 'msgspec', 'torch', 'onnxruntime') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
