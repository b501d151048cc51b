"""Energy counters as files and texts of the platforms."""

from __future__ import annotations

import itertools
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from protofleet.benchmarks.device import energy
from protofleet.benchmarks.device.energy import (
    Found,
    PmicMeter,
    RaplMeter,
    idle_watts,
    open_meter,
    pmic_watts,
)
from protofleet.benchmarks.device.measure import _energy, _Listener
from protofleet.benchmarks.device.plan import Options
from protofleet.benchmarks.device.report import Combination, Energy
from protofleet.errors import UnavailableError

_PMIC = """   3V7_WL_SW_A current(0)=0.09759300A
   VDD_CORE_A current(7)=2.00000000A
  HDMI_A current(22)=0.01428570A
   3V7_WL_SW_V volt(8)=3.70000000V
   VDD_CORE_V volt(15)=0.72000000V
     EXT5V_V volt(24)=5.14580000V
      BATT_V volt(25)=0.00000000V
"""


def _zone(powercap, folder, name, energy_uj, largest=262_143_328_850):
    zone = powercap / folder
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{name}\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    (zone / "max_energy_range_uj").write_text(f"{largest}\n")
    return zone


def test_packages_are_added_up_and_their_parts_are_not(tmp_path):
    """Cores and memory lie inside a package, and MMIO shows a package a second time."""
    first = _zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = _zone(tmp_path, "intel-rapl:1", "package-1", 0)
    for folder, name in (("intel-rapl:0:0", "core"), ("intel-rapl-mmio:0", "package-0")):
        _zone(tmp_path, folder, name, 0)
    with open_meter(tmp_path) as found:
        before = found.meter.joules()
        (first / "energy_uj").write_text("3500000\n")
        (second / "energy_uj").write_text("500000\n")
        (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text("9000000\n")
        (tmp_path / "intel-rapl-mmio:0" / "energy_uj").write_text("9000000\n")
        assert found.meter.joules() - before == pytest.approx(3.0)
        assert "package-0, package-1" in found.meter.source


def test_a_counter_that_starts_anew_goes_on(tmp_path):
    zone = _zone(tmp_path, "intel-rapl:0", "package-0", 9_999_000, largest=9_999_999)
    meter = RaplMeter({"package-0": zone})
    (zone / "energy_uj").write_text("4000\n")
    assert meter.joules() == pytest.approx(0.005)


def test_a_machine_without_counters_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with open_meter(tmp_path) as found:
        assert found.meter is None
        assert "not exposed here" in found.reason


def test_a_counter_that_only_root_may_read_names_the_remedy(tmp_path, monkeypatch):
    """A folder in the file's place refuses to be read by anyone, root included."""
    monkeypatch.setenv("PATH", "")
    zone = _zone(tmp_path, "intel-rapl:0", "package-0", 0)
    (zone / "energy_uj").unlink()
    (zone / "energy_uj").mkdir()
    with open_meter(tmp_path) as found:
        assert found.meter is None
        assert "chmod a+r" in found.reason


def test_the_rails_that_tell_volts_and_amperes_are_added_up():
    assert pmic_watts(_PMIC) == pytest.approx(0.097593 * 3.7 + 2.0 * 0.72)


def test_a_board_without_rails_is_no_zero():
    with pytest.raises(UnavailableError, match="pmic_read_adc"):
        pmic_watts("error=1 error_msg=Command not registered")


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo error=1", "error=1"), ("exec sleep 30", "timed out"), (None, "Permission|format")],
)
def test_a_command_that_tells_nothing_is_the_reason(tmp_path, monkeypatch, script, words):
    command = tmp_path / "vcgencmd"
    command.write_text("\0" if script is None else f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(energy, "_PATIENCE_S", 0.2)
    with open_meter(tmp_path / "none") as found:
        assert found.meter is None
        assert re.search(f"not exposed here: vcgencmd.*({words})", found.reason)


def test_a_reading_that_fails_is_left_out_by_the_thread(monkeypatch):
    """The thread goes on, and later readings count."""
    monkeypatch.setattr(energy, "_INTERVAL_S", 0.001)
    again, calls = threading.Event(), itertools.count(1)

    def read():
        call = next(calls)
        if call > 2:
            again.set()
        return "no rails" if call == 2 else "X_A x=1.0A\nX_V x=2.0V\n"

    with energy._sampled(PmicMeter(read)):
        assert again.wait(10)


class _Silent:
    """A meter that answers so many times."""

    source = "test"

    def __init__(self, answers):
        self._answers = answers

    def joules(self):
        self._answers -= 1
        if self._answers < 0:
            raise UnavailableError("vcgencmd pmic_read_adc: timed out")
        return 1.0


@pytest.mark.parametrize("answers", [0, 1])
def test_a_meter_that_falls_silent_leaves_a_phase_without_energy(answers):
    meter, what = _Silent(answers), Combination(backend="onnx", precision="float32", threads=1)
    energy = Energy(source="test", idle_w=1.0)
    listener = _Listener(meter, energy, what, SimpleNamespace(at=lambda _text: None))
    listener.hear({"begin": "infer", "batch": 1})
    phase = {"name": "infer", "calls": 1, "ms": {}, "cpu_ms": 1.0, "seconds": 1.0}
    listener.hear({"phase": phase})
    assert listener.phases[0].energy_j is None


def test_without_idle_power_no_energy_is_told():
    energy = _energy(Options(bundle=Path("x"), seconds=0.001), Found(_Silent(1), ""))
    assert energy.source is None
    assert "timed out" in energy.reason


def test_power_over_time_is_energy():
    """Between two readings the mean of both holds."""
    texts = iter(["X_A x=1.0A\nX_V x=2.0V\n", "X_A x=3.0A\nX_V x=2.0V\n"])
    times = iter([0.0, 2.0])
    meter = PmicMeter(lambda: next(texts), clock=lambda: next(times))
    assert meter.joules() == pytest.approx((2 + 6) / 2 * 2)


def test_idle_power_is_joules_by_seconds(tmp_path):
    """A counter that stands still while the process sleeps took no power."""
    zone = _zone(tmp_path, "intel-rapl:0", "package-0", 5)
    assert idle_watts(RaplMeter({"package-0": zone}), 0.01) == 0
