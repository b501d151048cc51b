"""What a demonstration was asked for, kept beside its results so that it can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from protofleet.durable import replace_whole
from protofleet.errors import InputError
from protofleet.wire.mqtt.broker_access import BrokerAccess

_FILE = "demo.json"


class DemoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one demonstration.

    Attributes:
        data: ``digits`` (in scikit-learn) or ``uci-har`` (30 people).
        data_root: folder of the published data sets.
        strategy: key in ``protofleet.strategies.STRATEGIES``.
        devices: number of device processes.
        browsers: number of headless browsers beside them.
        compare: whether the other methods are trained on the same data, to be shown beside it.
        rounds: rounds to aggregate.
        seed: of everything random.
        broker: a running broker and the credentials for it, or None to start one.
        sensors: for ``uci-har``: ``playback`` sends each person's recordings through a virtual
            sensor and the intake; ``published`` takes the published windows as they are.
        backend: who runs the devices' programs; ``mixed`` alternates between ONNX Runtime and
            LiteRT.
    """

    data: Literal["digits", "uci-har"]
    data_root: Path | None
    strategy: str
    devices: int
    rounds: int
    seed: int
    broker: BrokerAccess | None
    sensors: Literal["playback", "published"]
    backend: Literal["auto", "onnx", "litert", "mixed"] = "auto"
    browsers: int = 0
    compare: bool = True

    @property
    def participants(self) -> int:
        """Devices and browsers."""
        return self.devices + self.browsers

    def bind(self, folder: Path) -> None:
        """Write the settings into ``folder``, or check that they are the ones already there.

        Raises:
            InputError: the run in ``folder`` has other settings.
        """
        if not has_settings(folder):
            folder.mkdir(parents=True, exist_ok=True)
            data = msgspec.json.format(msgspec.json.encode(self, enc_hook=str))
            replace_whole(folder / _FILE, data)  # a broker's URL may hold a password
            return
        before = load_settings(folder)
        for name in self.__struct_fields__:
            if name != "broker" and getattr(before, name) != getattr(self, name):
                raise InputError(
                    f"'{folder}' holds a run with {name} = {getattr(before, name)}, not "
                    f"{getattr(self, name)}; choose another --out"
                )


def has_settings(folder: Path) -> bool:
    """Whether a demonstration was begun in ``folder``."""
    return (folder / _FILE).exists()


def load_settings(folder: Path) -> DemoSettings:
    """Settings of the run in ``folder``.

    Raises:
        InputError: there is none.
    """

    def to_path(kind: type, value: str) -> Path:  # noqa: ARG001 - msgspec's hook signature
        return Path(value)

    try:
        return msgspec.json.decode(
            (folder / _FILE).read_bytes(), type=DemoSettings, dec_hook=to_path
        )
    except FileNotFoundError as error:
        raise InputError(f"'{folder}': no demonstration was begun here") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"'{folder / _FILE}': {error}") from error
