"""A rehearsal written down: devices, what each can do, and the federation they join."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from protofleet.edge.join import JoinSettings
from protofleet.errors import InputError
from protofleet.firmware_sim.imu import ImuProfile
from protofleet.firmware_sim.link_proxy import LinkProfile
from protofleet.settings import explain, read_toml
from protofleet.wire.mqtt.broker_access import BrokerAccess, broker_as_table

MOST_SLOWDOWN = 100.0


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What kind of device it is.

    Attributes:
        threads: threads of the runtime and the kernels.
        backend: who runs the bundle's programs; ``auto`` as in ``device join``.
        memory_mb: limit of the process's data (MiB); beyond it allocation fails; 0: none.
        numba: False imitates a device without Numba.
        slowdown: how many times longer everything takes: the process runs a part of the time.
        link: the way to the broker.
        imu: the sensor through which motion is played back.
        join: how it behaves in a federation, as the options of ``device join`` say it.
    """

    threads: int = 1
    backend: Literal["auto", "onnx", "litert"] = "auto"
    memory_mb: int = 0
    numba: bool = True
    slowdown: float = 1.0
    link: LinkProfile = LinkProfile()
    imu: ImuProfile = ImuProfile()
    join: JoinSettings = JoinSettings()

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InputError(f"profile.threads: expected at least 1, got {self.threads}")
        if self.memory_mb < 0:
            raise InputError(f"profile.memory_mb: expected >= 0, got {self.memory_mb}")
        if not 1 <= self.slowdown <= MOST_SLOWDOWN:
            raise InputError(
                f"profile.slowdown: expected 1 to {MOST_SLOWDOWN:g}, got {self.slowdown:g}"
            )


class VirtualDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device: ready windows (``data``), recorded ``motion``, or neither: synthesised motion.

    Attributes:
        id: its identity in the federation.
        profile: key in ``FleetFile.profiles``.
        data: ``.npz`` of ``DeviceData``.
        later: from which round on which ``.npz`` takes its place.
        motion: ``.npz`` of ``Motion``, played back through the profile's sensor.
        pooled: ``.npz`` with ``x_test`` and ``y_test`` of all devices, to score generalisation.
        synthesise_s: seconds of each synthesised activity.
    """

    id: str
    profile: str = "default"
    data: Path | None = None
    later: tuple[tuple[int, Path], ...] = ()
    motion: Path | None = None
    pooled: Path | None = None
    synthesise_s: float = 60.0

    def __post_init__(self) -> None:
        if self.data and self.motion:
            raise InputError(f"device '{self.id}': give data or motion, not both")
        if self.later and not self.data:
            raise InputError(f"device '{self.id}': later data take the place of data; give both")


class FleetFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole fleet.

    Attributes:
        federation: name of the federation to join.
        broker: its broker, and the devices' credentials; a file may say just the URL.
        bundle: the signed bundle.
        folder: each device keeps its store and log in a folder of its own here.
        seed: seed of the sensors' faults and of synthesised motion.
        trust: public keys (hex) of the bundle's signer; empty: the user's trust store.
        profiles: kinds of device by name; ``default`` needs no entry.
        devices: the fleet.
    """

    federation: str
    broker: BrokerAccess
    bundle: Path
    folder: Path
    devices: tuple[VirtualDevice, ...]
    seed: int = 0
    trust: tuple[str, ...] = ()
    profiles: dict[str, DeviceProfile] = {}

    def __post_init__(self) -> None:
        ids = [device.id for device in self.devices]
        for device in self.devices:
            if ids.count(device.id) > 1:
                raise InputError(f"fleet: device id '{device.id}' occurs twice")
            if device.profile != "default" and device.profile not in self.profiles:
                raise InputError(
                    f"device '{device.id}': profile '{device.profile}' is not among "
                    f"{', '.join(sorted(self.profiles)) or 'the profiles (there are none)'}"
                )

    def profile_of(self, device: VirtualDevice) -> DeviceProfile:
        """The device's kind."""
        return self.profiles.get(device.profile, DeviceProfile())


def load_fleet(path: Path) -> FleetFile:
    """Read a fleet file; relative paths in it start at the file's own folder.

    Raises:
        InputError: not readable, not TOML, an unknown key, or a value of the wrong kind.
    """
    folder = path.resolve().parent

    def to_path(kind: type, value: Any) -> Any:
        if kind is Path and isinstance(value, str):
            return folder / value
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")

    try:
        values = broker_as_table(read_toml(path))
        return msgspec.convert(values, FleetFile, dec_hook=to_path)
    except OSError as error:
        raise InputError(f"fleet file {path}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        wrong = explain(error, FleetFile, values)
        raise InputError(f"fleet file {path}: {wrong}; see docs/fleet.md") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"fleet file {path}: {error}; see docs/fleet.md") from error
    except InputError as error:
        raise InputError(f"fleet file {path}: {error}") from error
