"""A federation over the broker that ``protofleet broker init`` sets up."""

from __future__ import annotations

import json

import pytest
from secured_broker import PASSWORD, let_in, secured
from tiny_bundle import tiny_bundle

pytestmark = pytest.mark.slow(seconds=4)


@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_a_federation_runs_under_the_access_list(kind, make_federation, tmp_path, key):
    """Its rules allow all that coordinator and devices need, and each device only its own."""
    with secured(kind, tmp_path / "broker") as running:
        folder = running.folder
        let_in(running, "device0", "device1")
        (tmp_path / "password").touch(mode=0o600)
        (tmp_path / "password").write_text(PASSWORD)
        federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
        federation.write(rounds=2)
        federation.file.write_text(
            federation.file.read_text().replace(
                f'broker = "{federation.url}"',
                f'broker = {{url = "{running.broker.url}", user = "coordinator", '
                f'ca_file = "{folder.ca}", password_file = "{folder.password_file}"}}',
            )
        )
        coordinator = federation.start_coordinator()
        devices = [
            federation.start_device(
                name,
                broker=running.broker.url.replace("mqtts://", f"mqtts://{name}@"),
                **{
                    "broker-ca": str(folder.ca),
                    "broker-password-file": str(tmp_path / "password"),
                },
            )
            for name in federation.devices
        ]
        assert coordinator.finish() == 0, coordinator.log
        assert [device.finish() for device in devices] == [0, 0], devices[0].log
    result = json.loads((federation.run_dir / "result.json").read_text())
    assert [round_["participants"] for round_ in result["rounds"]] == [2, 2]


def test_a_device_with_another_ones_name_is_stopped_by_the_access_list(
    make_federation, tmp_path, key
):
    """Its account is device0's: as device1 it may neither listen nor speak."""
    with secured("mosquitto", tmp_path / "broker") as running:
        let_in(running, "device0")
        (tmp_path / "password").touch(mode=0o600)
        (tmp_path / "password").write_text(PASSWORD)
        federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
        federation.write(rounds=1)
        device = federation.start_device(
            "device1",
            broker=running.broker.url.replace("mqtts://", "mqtts://device0@"),
            **{
                "broker-ca": str(running.folder.ca),
                "broker-password-file": str(tmp_path / "password"),
            },
        )
        assert device.finish(60) == 1
    assert "Not authorized" in device.log
