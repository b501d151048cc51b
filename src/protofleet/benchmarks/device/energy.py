"""Joules that a machine tells of: RAPL's counters, or the rails of the Raspberry Pi 5's PMIC."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from protofleet.errors import UnavailableError

_POWERCAP = Path("/sys/class/powercap")
_INTERVAL_S = 0.2
_PATIENCE_S = 10.0
_RAIL = re.compile(r"^\s*(\w+)_([AV])\b[^=]*=\s*([0-9.]+)[AV]\s*$", re.MULTILINE)
_NOT_HERE = (
    "not exposed here: no readable RAPL counter in /sys/class/powercap and no 'vcgencmd "
    "pmic_read_adc' (Raspberry Pi 5); virtual machines and older boards have neither, a USB power "
    "meter helps"
)


class EnergyMeter(Protocol):
    """Counts joules.

    Attributes:
        source: what counts, and what belongs to it.
    """

    source: str

    def joules(self) -> float:
        """Since the meter was made; only differences mean something.

        Raises:
            UnavailableError: the source does not answer.
        """


class Found(NamedTuple):
    """A meter, or why there is none."""

    meter: EnergyMeter | None
    reason: str


class RaplMeter:
    """The energy counters of the processor packages (powercap of Linux, Intel and AMD).

    Args:
        zones: folders with ``energy_uj`` and ``max_energy_range_uj``, by name.
    """

    def __init__(self, zones: Mapping[str, Path]) -> None:
        self.source = f"RAPL: {', '.join(sorted(zones))} (processor, without memory and board)"
        self._zones = zones
        self._ranges = {
            name: _integer(zone / "max_energy_range_uj") for name, zone in zones.items()
        }
        self._last = self._read()
        self._total = 0

    def joules(self) -> float:
        """A counter may have started anew once since the last call."""
        now = self._read()
        for name, value in now.items():
            self._total += (value - self._last[name]) % (self._ranges[name] + 1)
        self._last = now
        return self._total / 1e6

    def _read(self) -> dict[str, int]:
        return {name: _integer(zone / "energy_uj") for name, zone in self._zones.items()}


class PmicMeter:
    """The rails behind the Raspberry Pi 5's power chip, sampled by a thread while it is open.

    Args:
        read: the text of ``vcgencmd pmic_read_adc``.
        clock: seconds.
    """

    source = "PMIC: all rails of the board (without conversion losses and USB)"

    def __init__(
        self, read: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._total, self._watts, self._since = 0.0, pmic_watts(read()), clock()

    def joules(self) -> float:
        """Power since the last sample times the time, added up.

        Raises:
            UnavailableError: the command fails.
        """
        self.sample()
        return self._total

    def sample(self) -> None:
        """Read the rails; the mean of two readings holds between them."""
        with self._lock:
            watts, now = pmic_watts(self._read()), self._clock()
            self._total += (watts + self._watts) / 2 * (now - self._since)
            self._watts, self._since = watts, now


def pmic_watts(text: str) -> float:
    """Volts times amperes of every rail that tells both.

    Raises:
        UnavailableError: ``text`` has no such rail.
    """
    rails: dict[str, dict[str, float]] = {}
    for name, unit, value in _RAIL.findall(text):
        rails.setdefault(name, {})[unit] = float(value)
    both = [rail for rail in rails.values() if rail.keys() == {"A", "V"}]
    if not both:
        raise UnavailableError(f"vcgencmd pmic_read_adc: expected rails, got {text[:80]!r}")
    return sum(rail["A"] * rail["V"] for rail in both)


@contextlib.contextmanager
def open_meter(powercap: Path = _POWERCAP) -> Iterator[Found]:
    """The meter of this machine, or why there is none."""
    zones = _packages(powercap)
    unreadable = [zone for zone in zones.values() if not _readable(zone / "energy_uj")]
    if zones and not unreadable:
        yield Found(RaplMeter(zones), "")
        return
    pmic, reason = _pmic()
    if pmic is not None:
        with _sampled(pmic):
            yield Found(pmic, "")
        return
    yield Found(None, _root_only(unreadable[0]) if unreadable else reason)


def idle_watts(meter: EnergyMeter, seconds: float) -> float:
    """Mean power while this process sleeps.

    Raises:
        UnavailableError: the meter's source does not answer.
    """
    before, began = meter.joules(), time.monotonic()
    time.sleep(seconds)
    return (meter.joules() - before) / (time.monotonic() - began)


def _packages(powercap: Path) -> dict[str, Path]:
    """Zones of whole packages by name; one that is there twice (MSR and MMIO) counts once."""
    found: dict[str, Path] = {}
    for file in sorted(powercap.glob("intel-rapl*/name"), reverse=True):  # MSR before MMIO
        name = file.read_text().strip()
        if name.startswith("package"):
            found.setdefault(name, file.parent)
    return found


def _readable(file: Path) -> bool:
    try:
        _integer(file)
    except OSError:
        return False
    return True


def _root_only(zone: Path) -> str:
    return (
        f"not exposed here: '{zone / 'energy_uj'}' is for root alone; run as root, or once: "
        "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
    )


def _pmic() -> tuple[PmicMeter | None, str]:
    """The board's power chip, or None and why."""
    command = shutil.which("vcgencmd")
    if command is None:
        return None, _NOT_HERE
    try:
        return PmicMeter(lambda: _answer(command)), ""
    except UnavailableError as error:  # a board without that chip answers with an error
        return None, f"not exposed here: {error}; a USB power meter helps"


def _answer(command: str) -> str:
    try:
        done = subprocess.run(
            [command, "pmic_read_adc"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"vcgencmd pmic_read_adc: {error}") from error
    return done.stdout


@contextlib.contextmanager
def _sampled(meter: PmicMeter) -> Iterator[None]:
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(_INTERVAL_S):
            with contextlib.suppress(UnavailableError):  # the next sample bridges the gap
                meter.sample()

    thread = threading.Thread(target=sample, name="power", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _integer(file: Path) -> int:
    return int(file.read_text())
