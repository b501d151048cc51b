"""Data of the demonstration: who gets what, which model, what is trained centrally before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData
from protofleet.demo.methods import Network, is_shown
from protofleet.demo.settings import DemoSettings
from protofleet.errors import InputError
from protofleet.firmware_sim.imu import ImuProfile
from protofleet.firmware_sim.link_proxy import LinkProfile
from protofleet.firmware_sim.motion import Motion, join_recordings, synthesise
from protofleet.firmware_sim.profile import DeviceProfile, VirtualDevice
from protofleet.firmware_sim.recordings import record_device_data, record_windows

PROFILES = {
    "pi": DeviceProfile(imu=ImuProfile(rate_hz=200.0, noise_g=0.005, noise_rad_s=0.005)),
    "phone": DeviceProfile(
        link=LinkProfile(up_kbit_s=20_000, down_kbit_s=50_000, delay_ms=10),
        imu=ImuProfile(rate_hz=100.0, noise_g=0.01, noise_rad_s=0.01, bias_g=0.01, jitter_s=0.001),
    ),
    "wearable": DeviceProfile(
        memory_mb=2048,
        link=LinkProfile(up_kbit_s=8_000, down_kbit_s=16_000, delay_ms=25),
        imu=ImuProfile(
            rate_hz=50.0, noise_g=0.02, noise_rad_s=0.02, bias_g=0.02, gap_every_s=300.0
        ),
    ),
}
"""Three kinds of device, dealt out in turn: a wired Pi, a phone on Wi-Fi, a wearable."""

Backend = Literal["auto", "onnx", "litert"]

FLEET_SEED = 0
"""Seed of the sensors' faults: the same people carry the same sensors whatever is trained."""

_UNALIGNED = {"beta": 0.0}
"""Of the aligned network before the first round.

FedAli's own first round is without a share of the prototypes, whatever the bundle holds, and would
throw away what the central training has fitted with one; the strategy sets the share by round.
"""

_DIGITS_PUBLIC = 0.05
"""Share of the digits that the central training may see: ninety, so that there is much to gain."""
_DIGITS_ALPHA = 0.5
_TEST_FRACTION = 0.3
_SYNTHETIC_PEOPLE = 12
_SYNTHETIC_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel:
    """A model as ``protofleet pretrain`` and ``export`` are told of it: its name and settings."""

    name: str
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DemoData:
    """Files and facts with which a demonstration goes on.

    Attributes:
        title: the data in words.
        devices: the fleet.
        own: ``.npz`` of ``DeviceData`` by device: what it has, or will have found, of its owner.
        pooled: ``.npz`` with the union of all test parts.
        central: ``.npz`` for the central training.
        pretrain: options of ``protofleet pretrain``.
        models: by network.
        classes: class names.
        preprocessing: what the bundle tells about its input.
        columns: what the scores' sections are in this data's words.
        strategy_settings: where the demonstration differs from the strategies' defaults.
        labelled: whether the central training sees labels.
    """

    title: str
    devices: tuple[VirtualDevice, ...]
    own: dict[str, Path]
    pooled: Path
    central: Path
    pretrain: tuple[str, ...]
    models: dict[Network, DemoModel]
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    columns: dict[str, str] = field(default_factory=dict)
    strategy_settings: dict[str, Any] = field(default_factory=dict)
    labelled: bool = True


def settings_of(strategy: str, prepared: DemoData) -> dict[str, Any]:
    """Of a method that is always shown the demonstration's, of another one its defaults."""
    return prepared.strategy_settings if is_shown(strategy) else {}


def dealt_backends(
    backend: Literal["auto", "onnx", "litert", "mixed"], devices: Sequence[VirtualDevice]
) -> tuple[dict[str, DeviceProfile], tuple[VirtualDevice, ...]]:
    """Profiles that say who runs programs, and the devices with theirs; ``mixed`` takes turns."""
    turns: tuple[Backend, ...] = ("onnx", "litert") if backend == "mixed" else (backend,)
    profiles: dict[str, DeviceProfile] = {}
    dealt: list[VirtualDevice] = []
    for number, device in enumerate(devices):
        turn = turns[number % len(turns)]
        name = f"{device.profile}-{turn}"
        plain = PROFILES.get(device.profile, DeviceProfile())
        profiles[name] = msgspec.structs.replace(plain, backend=turn)
        dealt.append(msgspec.structs.replace(device, profile=name))
    return profiles, tuple(dealt)


def prepare_digits(settings: DemoSettings, folder: Path) -> DemoData:
    """Digits: ninety are public, the rest is divided among the devices by a Dirichlet draw."""
    from protofleet.datasets import digits  # noqa: PLC0415 - scikit-learn is slow to load
    from protofleet.datasets.partition import dirichlet, stratified_split  # noqa: PLC0415 - as above

    images, labels = digits.load_digits()
    rng = np.random.default_rng(settings.seed)
    private, public = stratified_split(labels, test_fraction=_DIGITS_PUBLIC, rng=rng)
    parts = dirichlet(labels[private], settings.participants, alpha=_DIGITS_ALPHA, rng=rng)
    data = {}
    for number, part in enumerate(parts, 1):
        mine = private[part]
        train, test = stratified_split(labels[mine], test_fraction=_TEST_FRACTION, rng=rng)
        data[f"device-{number:02d}"] = DeviceData(
            x_train=images[mine[train]],
            y_train=labels[mine[train]],
            x_test=images[mine[test]],
            y_test=labels[mine[test]],
            classes=digits.CLASSES,
        )
    central = _save_central(folder, images[public], labels[public], digits.CLASSES)
    own = _save_own(folder, data)
    return DemoData(
        title=f"scikit-learn's digits, Dirichlet({_DIGITS_ALPHA}) over {len(data)} devices",
        devices=_ready_devices(own),
        own=own,
        pooled=_save_pooled(folder, list(data.values())),
        central=central,
        # Of ninety digits none is spared for a validation part that would say little.
        pretrain=("--epochs=25", "--lr=0.002", "--batch-size=32", "--validation=0"),
        models={
            "aligned": DemoModel(name="vit_digits", settings=_UNALIGNED),
            "plain": DemoModel(name="vit_digits", settings={"prototypes": []}),
        },
        classes=digits.CLASSES,
        preprocessing=Preprocessing(input_shape=(1, 8, 8)),
        columns=_columns("writes"),
        strategy_settings={"optimiser": {"kind": "adam", "lr": 0.002}},
    )


def _columns(verb: str) -> dict[str, str]:
    return {
        "personalisation": f"on what its owner {verb}",
        "generalisation": f"on what everybody {verb}",
        "global": "the shared model",
    }


def prepare_uci_har(settings: DemoSettings, folder: Path) -> DemoData:
    """UCI-HAR: every device is one person; people without a device are the central data.

    Raises:
        InputError: no folder of data was given, or there are more devices than people.
    """
    from protofleet.datasets import ucihar  # noqa: PLC0415 - only where used
    from protofleet.datasets.windows import normalise, split_in_time  # noqa: PLC0415 - as above

    people = ucihar.load_ucihar(_uci_har_root(settings))
    mean, std = ucihar.normalisation(people.windows)
    preprocessing = _uci_har_preprocessing(mean, std)
    order = np.random.default_rng(settings.seed).permutation(np.arange(1, 31)).tolist()
    owners = {f"person-{s:02d}": people.of(s) for s in sorted(order[: settings.participants])}
    if settings.sensors == "published":
        data = {
            name: split_in_time(normalise(windows, mean, std), ucihar.CLASSES)
            for name, windows in owners.items()
        }
        own = _save_own(folder, data)
        devices = _ready_devices(own)
    else:
        motions = {
            name: join_recordings(ucihar.recordings(windows), ucihar.RATE_HZ)
            for name, windows in owners.items()
        }
        devices, data = _moving_devices(folder, motions, preprocessing, ucihar.CLASSES)
        own = _save_own(folder, data)
    central = [normalise(people.of(s), mean, std).x for s in order[settings.participants :]]
    return DemoData(
        title=f"UCI-HAR, {settings.participants} people ({settings.sensors} windows)",
        devices=devices,
        own=own,
        pooled=_save_pooled(folder, list(data.values())),
        central=_save_central(folder, np.concatenate(central or _synthetic(preprocessing))),
        pretrain=("--objective=mae", "--epochs=6", "--lr=0.0005"),
        models={
            "aligned": DemoModel(name="hart_alp", settings={"pretrained": True, **_UNALIGNED}),
            "plain": DemoModel(name="hart", settings={"pretrained": True}),
        },
        classes=ucihar.CLASSES,
        preprocessing=preprocessing,
        columns=_columns("does"),
        strategy_settings={"optimiser": {"kind": "adam", "lr": 1e-4}, "batch_size": 64},
        labelled=False,
    )


def _uci_har_root(settings: DemoSettings) -> Path:
    """The folder of data, if UCI-HAR can be shown as asked."""
    if settings.data_root is None:
        raise InputError("--data uci-har: give --data-root, the folder with 'ucihar/' in it")
    if settings.participants > 30:
        raise InputError(f"--devices: UCI-HAR has 30 people, got {settings.participants}")
    if settings.browsers and settings.sensors != "published":
        raise InputError("--browsers with --data uci-har: give --sensors published, too")
    return settings.data_root


def _uci_har_preprocessing(mean: tuple[float, ...], std: tuple[float, ...]) -> Preprocessing:
    from protofleet.datasets import ucihar  # noqa: PLC0415 - only where used

    return Preprocessing(
        input_shape=(ucihar.WINDOW, len(ucihar.CHANNELS)),
        rate_hz=ucihar.RATE_HZ,
        window=ucihar.WINDOW,
        hop=ucihar.HOP,
        channels=ucihar.CHANNELS,
        mean=mean,
        std=std,
    )


RECIPES = {"digits": prepare_digits, "uci-har": prepare_uci_har}


def _synthetic(preprocessing: Preprocessing) -> list[NDArray[np.float32]]:
    """Windows of synthesised people, for masked pretraining when every real person is a device."""
    imu = PROFILES["phone"].imu
    found = []
    for person in range(_SYNTHETIC_PEOPLE):
        rng = np.random.default_rng((person, _SYNTHETIC_PEOPLE))
        found.append(record_windows(synthesise(_SYNTHETIC_S, rng), imu, preprocessing, rng).x)
    return found


def _moving_devices(
    folder: Path,
    motions: dict[str, Motion],
    preprocessing: Preprocessing,
    classes: tuple[str, ...],
) -> tuple[tuple[VirtualDevice, ...], dict[str, DeviceData]]:
    """Devices that play motion back, and the windows that each of them will find."""
    devices, data = [], {}
    for number, (name, motion) in enumerate(motions.items()):
        path = folder / "data" / f"{name}.motion.npz"
        path.parent.mkdir(exist_ok=True)
        motion.save(path)
        device = VirtualDevice(id=name, motion=path, profile=_profile(number))
        imu = PROFILES[device.profile].imu
        data[name] = record_device_data(motion, imu, preprocessing, classes, (FLEET_SEED, number))
        devices.append(device)
    return tuple(devices), data


def _profile(number: int) -> str:
    return list(PROFILES)[number % len(PROFILES)]


def _save_own(folder: Path, data: dict[str, DeviceData]) -> dict[str, Path]:
    own = {name: folder / "data" / f"{name}.npz" for name in data}
    (folder / "data").mkdir(exist_ok=True)
    for name, one in data.items():
        one.save(own[name])
    return own


def _ready_devices(own: dict[str, Path]) -> tuple[VirtualDevice, ...]:
    return tuple(
        VirtualDevice(id=name, data=path, profile=_profile(number))
        for number, (name, path) in enumerate(own.items())
    )


def _save_pooled(folder: Path, data: Sequence[DeviceData]) -> Path:
    path = folder / "data" / "pooled.npz"
    x = np.concatenate([one.x_test for one in data])
    with path.open("wb") as file:
        np.savez(file, x_test=x, y_test=np.concatenate([one.y_test for one in data]))
    return path


def _save_central(
    folder: Path,
    x: NDArray[np.float32],
    y: NDArray[np.int64] | None = None,
    classes: tuple[str, ...] = (),
) -> Path:
    path = folder / "data" / "central.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        if y is None:
            np.savez(file, x=x)
        else:
            np.savez(file, x=x, y=y, classes=np.array(classes))
    return path
