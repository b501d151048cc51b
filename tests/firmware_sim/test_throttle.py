from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from protofleet.errors import InputError
from protofleet.firmware_sim.profile import DeviceProfile
from protofleet.firmware_sim.throttle import Throttle


def _state(process):
    """T: stopped."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no /proc to look into")
def test_a_process_is_stopped_in_turn_and_goes_on_at_the_end():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        throttle = Throttle(process, 4.0)
        throttle.start()
        seen, until = set(), time.monotonic() + 60
        while not {"T", "R"} <= seen and time.monotonic() < until:
            seen.add(_state(process))
        throttle.end()
        assert {"T", "R"} <= seen
        assert _state(process) != "T"
    finally:
        process.kill()
        process.wait()


def test_it_ends_with_its_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    throttle = Throttle(process, 2.0)
    throttle.start()
    process.wait()
    throttle.join(30)
    assert not throttle.is_alive()


@pytest.mark.parametrize("slowdown", [0.5, 101.0])
def test_a_profile_s_slowdown_has_bounds(slowdown):
    with pytest.raises(InputError, match=r"profile.slowdown: expected 1 to 100"):
        DeviceProfile(slowdown=slowdown)
