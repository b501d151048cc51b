"""A router that forgets idle connections, and a device that gets other addresses."""

from __future__ import annotations

import json

import pytest
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.datasets import DeviceData

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=15)]


def _start_fleet(federation, link):
    (x_train, y_train), (x_test, y_test) = tiny_data(1, 30), tiny_data(2, 20)
    classes = ("class0", "class1", "class2")
    DeviceData(
        x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=classes
    ).save(federation.folder / "device0.npz")
    file = federation.folder / "fleet.toml"
    file.write_text(
        f'federation = "home"\nbroker = "{federation.url}"\nbundle = "{federation.bundle}"\n'
        'folder = "fleet"\n[[devices]]\nid = "device0"\nprofile = "moving"\ndata = "device0.npz"\n'
        f"[profiles.moving]\nlink = {link}\njoin = {{keepalive_s = 1}}\n"
    )
    return federation._start(["fleet", "run", str(file), "--json"], "fleet")


@pytest.mark.parametrize("link", ["{nat_timeout_s = 0.5}", "{roams_every_s = 3}"])
def test_a_device_whose_connection_is_forgotten_takes_part_in_every_round(
    make_federation, tmp_path, key, link
):
    """It is silent for longer than the router remembers; nobody tells it or the broker."""
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 1)
    federation.write(rounds=4, extra="[round]\nevery_s = 3.0\n")
    coordinator = federation.start_coordinator()
    fleet = _start_fleet(federation, link)
    assert coordinator.finish(90) == 0, coordinator.log
    assert fleet.finish(30) == 0, fleet.log
    result = json.loads((federation.run_dir / "result.json").read_text())
    assert [one["participants"] for one in result["rounds"]] == [1] * 4
    said = (federation.folder / "fleet" / "device0" / "log.txt").read_text()
    assert said.count("connection lost: Keep alive timeout; trying again") >= 2
