"""What platforms tell: files as Linux writes them, answers as busctl and Termux:API print them."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from dbus_service import bus, service

from protofleet.edge.owner.conditions import PlatformReader, local_minute, run_program
from protofleet.edge.owner.policy import ASKABLE, Platform

_STAT = "cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n"


@pytest.fixture
def linux(tmp_path):
    """Writes files below a root."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def _read(root, asked=ASKABLE, answers=None):
    told = answers or {}
    return PlatformReader(root, lambda command: told.get(" ".join(command), "")).read(
        frozenset(asked)
    )


def _supply(name, **files):
    return {f"sys/class/power_supply/{name}/{key}": f"{text}\n" for key, text in files.items()}


def test_a_machine_that_tells_nothing_is_unknown(tmp_path):
    assert _read(tmp_path) == Platform()


@pytest.mark.parametrize(
    ("supplies", "charging", "percent"),
    [
        (_supply("BAT0", type="Battery", status="Discharging", capacity="71"), False, 71.0),
        (_supply("BAT0", type="Battery", status="Charging", capacity="5"), True, 5.0),
        (_supply("BAT0", type="Battery", status="Not charging", capacity="80"), True, 80.0),
        (_supply("BAT0", type="Battery", status="Unknown", capacity="80"), None, 80.0),
        (_supply("AC", type="Mains", online="1"), True, None),
        (_supply("AC", type="Mains", online="0"), False, None),
        (
            _supply("AC", type="Mains", online="0")
            | _supply("usb", type="USB", online="1")
            | _supply("BAT0", type="Battery", status="Discharging", capacity="40"),
            True,
            40.0,
        ),
        (
            _supply("hidpp", type="Battery", scope="Device", status="Discharging", capacity="9"),
            None,
            None,
        ),
        (_supply("BAT0", type="Battery", status="?", capacity="lots"), None, None),
    ],
)
def test_power_is_read_from_the_kernel(linux, supplies, charging, percent):
    told = _read(linux(supplies), {"charging", "battery"})
    assert (told.charging, told.battery_percent) == (charging, percent)


def test_the_hottest_plausible_zone_counts(linux):
    zones = {"0": "41500", "1": "67250", "2": "-273150", "3": "65535000", "4": "soon", "5": "0"}
    files = {f"sys/class/thermal/thermal_zone{n}/temp": text for n, text in zones.items()}
    assert _read(linux(files), {"temperature"}).temperature_c == 67.25


_NM = (
    "busctl --system get-property org.freedesktop.NetworkManager /org/freedesktop/NetworkManager "
    "org.freedesktop.NetworkManager Metered"
)
_ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
    "{0}\t00000000\t0102A8C0\t0003\t0\t0\t{1}\t00000000\n"
    "eth9\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"
)


@pytest.mark.parametrize(
    ("answer", "unmetered"),
    [("u 1", False), ("u 2", True), ("u 3", False), ("u 4", True), ("u 0", None), ("s x", None)],
)
def test_network_manager_tells_whether_the_network_is_metered(tmp_path, answer, unmetered):
    assert _read(tmp_path, {"network"}, {_NM: f"{answer}\n"}).unmetered is unmetered


def test_a_modem_is_metered_and_a_cable_is_not_known(linux):
    assert _read(linux({"proc/net/route": _ROUTES.format("wwan0", 700)})).unmetered is False
    assert _read(linux({"proc/net/route": _ROUTES.format("eth0", 100)})).unmetered is None


_BATTERY = """{
  "health": "GOOD",
  "percentage": 64,
  "plugged": "%s",
  "status": "%s",
  "temperature": 31.299999237060547,
  "current": 255
}"""


def test_a_phone_tells_by_termux(tmp_path):
    answers = {
        "termux-battery-status": _BATTERY % ("PLUGGED_AC", "CHARGING"),
        "termux-wifi-connectioninfo": '{"supplicant_state": "COMPLETED", "ssid": "home"}',
    }
    told = _read(tmp_path, answers=answers)
    assert told == Platform(
        charging=True, battery_percent=64.0, temperature_c=pytest.approx(31.3), unmetered=True
    )
    answers = {
        "termux-battery-status": _BATTERY % ("UNPLUGGED", "DISCHARGING"),
        "termux-wifi-connectioninfo": '{"supplicant_state": "DISCONNECTED"}',
    }
    told = _read(tmp_path, answers=answers)
    assert (told.charging, told.unmetered) == (False, False)


_UPOWER = "busctl --system get-property org.freedesktop.UPower /org/freedesktop/UPower"
_DISPLAY = f"{_UPOWER}/devices/DisplayDevice org.freedesktop.UPower.Device"


def test_upower_tells_where_the_kernel_does_not(tmp_path):
    answers = {
        f"{_UPOWER} org.freedesktop.UPower OnBattery": "b true\n",
        f"{_DISPLAY} IsPresent": "b true\n",
        f"{_DISPLAY} Percentage": "d 37\n",
    }
    told = _read(tmp_path, answers=answers)
    assert (told.charging, told.battery_percent) == (False, 37.0)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "[]",
        "null",
        "{",
        "[" * 10_000,
        '{"plugged": 3, "percentage": "x", "temperature": [1]}',
        '{"percentage": 1e400, "temperature": true, "plugged": null}',
        "Error: no permission",
    ],
)
def test_an_answer_that_is_not_what_it_should_be_tells_nothing(tmp_path, answer):
    answers = dict.fromkeys(("termux-battery-status", "termux-wifi-connectioninfo", _NM), answer)
    told = _read(tmp_path, {"charging", "battery", "temperature"}, answers)
    assert (told.charging, told.battery_percent, told.temperature_c) == (None, None, None)


def test_only_what_is_asked_for_is_looked_at(tmp_path):
    asked = []
    reader = PlatformReader(tmp_path, lambda command: asked.append(command) or "")
    assert reader.read(frozenset()) == Platform()
    assert asked == []


def test_idle_is_what_others_leave_over(linux):
    """The device's own training does not count against it."""
    own = [0.0]
    hertz = os.sysconf("SC_CLK_TCK")
    reader = PlatformReader(
        linux(
            {"proc/stat": _STAT.format(busy=0, idle=0), "proc/loadavg": "0.02 0.1 0.2 1/100 7\n"}
        ),
        lambda _: "",
        lambda: own[0],
    )
    assert reader.read(frozenset({"idle"})).idle is True
    linux({"proc/stat": _STAT.format(busy=10 * hertz, idle=10 * hertz)})
    own[0] = 9.0  # of the ten busy seconds
    assert reader.read(frozenset({"idle"})).idle is True
    linux({"proc/stat": _STAT.format(busy=20 * hertz, idle=20 * hertz)})
    assert reader.read(frozenset({"idle"})).idle is False
    linux({"proc/stat": "cpu x\n"})
    assert reader.read(frozenset({"idle"})).idle is None


def test_this_machine_is_read_without_an_error():
    told = PlatformReader().read(ASKABLE)
    assert told.idle in (True, False, None)
    assert 0 <= local_minute(time.localtime()) < 24 * 60


def test_a_program_that_is_not_there_or_fails_says_nothing():
    assert run_program(("no-such-program-at-all",)) == ""
    assert run_program(("false",)) == ""
    assert run_program(("echo", "yes")) == "yes\n"


@pytest.mark.skipif(
    not (shutil.which("busctl") and shutil.which("dbus-daemon")), reason="no D-Bus here"
)
def test_busctl_asks_a_real_bus(tmp_path, monkeypatch):
    """UPower and NetworkManager are played by a service; bus and busctl are the real ones."""
    told = {
        ("org.freedesktop.UPower", "OnBattery"): ("b", 0),
        ("org.freedesktop.UPower.Device", "IsPresent"): ("b", 1),
        ("org.freedesktop.UPower.Device", "Percentage"): ("d", 81.5),
        ("org.freedesktop.NetworkManager", "Metered"): ("u", 4),
    }
    names = ("org.freedesktop.UPower", "org.freedesktop.NetworkManager")
    with bus() as address, service(address, names, told):
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        reader = PlatformReader(tmp_path)
        found = reader.read(frozenset({"charging", "battery", "network"}))
    assert found == Platform(charging=True, battery_percent=81.5, unmetered=True)
