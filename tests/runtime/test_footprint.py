"""Memory that was needed to get ready goes back, and nothing breaks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from protofleet.runtime import _footprint

SCRIPT = """
import re
from pathlib import Path
import numpy as np
import onnxruntime
from protofleet.runtime import release, return_large_blocks

def resident(kind):
    found = re.search(kind + r":\\s+(\\d+)", Path("/proc/self/status").read_text())
    return int(found[1])

return_large_blocks()
a = np.random.default_rng(0).random((300, 300))
before = resident("RssFile")
release()
after = resident("RssFile")
inverse = np.linalg.inv(a)
assert np.allclose(a @ inverse, np.eye(300))
assert onnxruntime.get_available_providers()
print(before, after)
"""


def test_where_the_system_tells_no_mappings_nothing_happens(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(_footprint, "_SMAPS", tmp_path / "absent")
    _footprint.release()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_released_code_is_read_back_when_it_runs_again() -> None:
    """Most of the libraries' pages leave memory, and the libraries go on working."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120
    )
    before, after = map(int, re.findall(r"\d+", done.stdout))
    assert after < before / 2


def test_a_mapping_with_changed_pages_is_left_alone() -> None:
    """The pages of this process that a linker has written are in none of the ranges."""
    if not Path("/proc/self/smaps").exists():
        pytest.skip("no /proc")
    from protofleet.runtime._footprint import _unwritten  # noqa: PLC0415 only Linux has it

    ranges = list(_unwritten())
    assert ranges
    start = stop = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            start, stop = int(found[1], 16), int(found[2], 16)
        elif line.startswith("Anonymous:") and int(line.split()[1]):
            assert all(stop <= low or high <= start for low, high in ranges)
