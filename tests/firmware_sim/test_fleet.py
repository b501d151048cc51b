"""Fleet files, and virtual devices as real processes."""

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from brokers import wait_until
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets.windows import Windows
from protofleet.edge.join import JoinSettings
from protofleet.errors import InputError
from protofleet.federation.records import Sends
from protofleet.firmware_sim import virtual_device
from protofleet.firmware_sim.fleet import Fleet
from protofleet.firmware_sim.imu import ImuProfile
from protofleet.firmware_sim.motion import ACTIVITIES, synthesise
from protofleet.firmware_sim.profile import DeviceProfile, FleetFile, VirtualDevice, load_fleet
from protofleet.firmware_sim.recordings import record_device_data, record_windows
from protofleet.wire.mqtt.broker_access import BrokerAccess

WINDOWS = Preprocessing(
    input_shape=(128, 6), rate_hz=50.0, window=128, hop=64, channels=tuple("abcdef"),
    mean=(0.0,) * 6, std=(1.0,) * 6,
)  # fmt: skip

FLEET = """
federation = "study"
broker = "mqtt://127.0.0.1:1"
bundle = "bundle.pfb"
folder = "fleet"
{extra}
[profiles.watch]
threads = 2
[profiles.watch.imu]
rate_hz = 26
[profiles.watch.link]
down_trace = "train.trace"
[profiles.watch.join]
stays = true
[profiles.watch.join.sends]
scores = false
[[devices]]
id = "a"
profile = "watch"
motion = "a.npz"
[[devices]]
id = "b"
"""


def test_fleet_file_is_read_and_paths_start_at_its_folder(tmp_path):
    (tmp_path / "fleet.toml").write_text(FLEET.format(extra="seed = 3"))
    fleet = load_fleet(tmp_path / "fleet.toml")
    assert fleet.bundle == tmp_path / "bundle.pfb"
    assert fleet.devices[0].motion == tmp_path / "a.npz"
    watch = fleet.profile_of(fleet.devices[0])
    assert watch.imu.rate_hz == 26
    assert watch.link.down_trace == tmp_path / "train.trace"
    assert watch.join == JoinSettings(stays=True, sends=Sends(scores=False))
    assert fleet.profile_of(fleet.devices[1]) == DeviceProfile()
    assert fleet.seed == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FLEET.format(extra="sead = 3"), "sead"),
        (FLEET.format(extra="").replace('profile = "watch"', 'profile = "clock"'), "clock"),
        (FLEET.format(extra="").replace('id = "b"', 'id = "a"'), "occurs twice"),
        (FLEET.format(extra="").replace("threads = 2", "threads = 0"), "threads"),
        ("not toml", "fleet"),
    ],
)
def test_wrong_fleet_files_are_named(tmp_path, text, message):
    (tmp_path / "fleet.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_fleet(tmp_path / "fleet.toml")


def test_sensed_windows_are_labelled_and_split_without_overlap():
    motion = synthesise(30.0, np.random.default_rng(2), rate_hz=100.0)
    imu = ImuProfile(rate_hz=104.0, noise_g=0.01, jitter_s=0.0005)
    windows = record_windows(motion, imu, WINDOWS, np.random.default_rng(0))
    assert isinstance(windows, Windows)
    assert set(windows.y.tolist()) == set(range(len(ACTIVITIES)))
    data = record_device_data(motion, imu, WINDOWS, ACTIVITIES, (0, 1))
    halves = {half.tobytes() for x in data.x_train for half in (x[:64], x[64:])}
    assert not any(half.tobytes() in halves for x in data.x_test for half in (x[:64], x[64:]))
    again = record_device_data(motion, imu, WINDOWS, ACTIVITIES, (0, 1))
    assert np.array_equal(again.x_train, data.x_train)


def test_device_that_cannot_start_says_why(tmp_path):
    """A process whose bundle is absent ends with a clear last line, and no process stays."""
    file = FleetFile(
        federation="study",
        broker=BrokerAccess(url="mqtt://127.0.0.1:1"),
        bundle=tmp_path / "nowhere.pfb",
        folder=tmp_path / "fleet",
        devices=(VirtualDevice(id="a"),),
    )
    with Fleet(file) as fleet:
        wait_until(lambda: not fleet.running(), 60.0)
        (ended,) = fleet.ended()
    assert ended.status == 1
    assert "nowhere.pfb" in ended.last_words
    spec = json.loads((fleet.folder("a") / "device.json").read_text())
    assert spec["device"]["id"] == "a"


def test_a_password_in_a_fleet_files_url_reaches_devices_and_no_file(tmp_path):
    file = FleetFile(
        federation="study",
        broker=BrokerAccess(url="mqtt://anna:open-sesame@127.0.0.1:1"),
        bundle=tmp_path / "nowhere.pfb",
        folder=tmp_path / "fleet",
        devices=(VirtualDevice(id="a"),),
    )
    with Fleet(file) as fleet:
        environment = Path(f"/proc/{fleet.pid('a')}/environ")
        # Empty for a moment, while the process becomes another program.
        wait_until(lambda: b"PROTOFLEET_BROKER_PASSWORD=open-sesame\0" in environment.read_bytes())
    written = {path: path.read_bytes() for path in file.folder.rglob("*") if path.is_file()}
    assert b"anna@127.0.0.1" in written[fleet.folder("a") / "device.json"]
    assert not any(b"open-sesame" in content for content in written.values())


def test_a_fleet_behind_proxies_needs_tls_as_any_device(tmp_path):
    file = FleetFile(
        federation="study",
        broker=BrokerAccess(url="mqtt://192.0.2.1"),
        bundle=tmp_path / "nowhere.pfb",
        folder=tmp_path / "fleet",
        devices=(VirtualDevice(id="a"),),
    )
    with pytest.raises(InputError, match="--insecure"):
        Fleet(file)


def test_device_with_wrong_labels_says_so(tmp_path):
    x, y = tiny_data(0)
    names = ["class0", "class1", "class2"]
    data = tmp_path / "a.npz"
    np.savez(data, x_train=x, y_train=0.7 * (y + 1), x_test=x, y_test=y, classes=names)
    file = FleetFile(
        federation="study",
        broker=BrokerAccess(url="mqtt://127.0.0.1:1"),
        bundle=tiny_bundle(tmp_path / "tiny.pfb", Ed25519PrivateKey.generate()),
        folder=tmp_path / "fleet",
        devices=(VirtualDevice(id="a", data=data),),
    )
    with Fleet(file) as fleet:
        wait_until(lambda: not fleet.running(), 60.0)
        (ended,) = fleet.ended()
    assert ended.status == 1
    assert "40 of 40 that are not whole, such as 0.7" in ended.last_words


def test_device_over_its_memory_cap_says_so(tmp_path):
    """Ten minutes of every activity do not fit into a process of 120 MiB."""
    tiny_bundle(tmp_path / "tiny.pfb", Ed25519PrivateKey.generate())
    file = FleetFile(
        federation="study",
        broker=BrokerAccess(url="mqtt://127.0.0.1:1"),
        bundle=tmp_path / "tiny.pfb",
        folder=tmp_path / "fleet",
        devices=(VirtualDevice(id="a", profile="small", synthesise_s=600.0),),
        profiles={"small": DeviceProfile(memory_mb=120)},
    )
    with Fleet(file) as fleet:
        wait_until(lambda: not fleet.running(), 60.0)
        (ended,) = fleet.ended()
    assert ended.status == 1
    assert "profile.memory_mb = 120" in ended.last_words


def test_motion_and_data_exclude_each_other(tmp_path):
    with pytest.raises(InputError, match="not both"):
        VirtualDevice(id="a", data=tmp_path, motion=tmp_path)
    assert msgspec.structs.replace(VirtualDevice(id="a"), data=tmp_path).data == tmp_path


def test_played_motion_is_refused_for_a_bundle_without_classes():
    spec = SimpleNamespace(device=SimpleNamespace(id="wrist", data=None))
    manifest = SimpleNamespace(task="regression")
    with pytest.raises(InputError, match=r"'wrist': recorded motion is labelled .* regression"):
        virtual_device._own_data(spec, manifest)
