"""Runs a fleet: one process for each device, behind its own link to the broker."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import msgspec

from protofleet.durable import replace_whole
from protofleet.firmware_sim.link_proxy import LinkProfile, ProxyThread
from protofleet.firmware_sim.processes import spawn, stop
from protofleet.firmware_sim.profile import DeviceProfile, FleetFile, VirtualDevice
from protofleet.firmware_sim.throttle import Throttle
from protofleet.private_files import make_private_folder
from protofleet.threads import thread_variables
from protofleet.wire.mqtt.broker_access import PASSWORD_VARIABLE, BrokerAccess


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a device process is told (a JSON file; see ``virtual_device``)."""

    device: VirtualDevice
    profile: DeviceProfile
    federation: str
    broker: BrokerAccess
    bundle: Path
    store: Path
    seed: tuple[int, int]
    trust: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A device's process is over.

    Attributes:
        device_id: whose.
        status: exit status; 0 when the federation finished, negative for a signal.
        last_words: last line of its log.
    """

    device_id: str
    status: int
    last_words: str


class Fleet:
    """All devices of a fleet file, as processes: ``with Fleet(file) as fleet``."""

    def __init__(self, file: FleetFile) -> None:
        file.broker.check_protected()  # a device behind a proxy sees a broker of this machine
        self._file = file
        self._broker, password = file.broker.split_password()
        self._secrets = {} if password is None else {PASSWORD_VARIABLE: password}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        proxies = self._exits.enter_context(ProxyThread())
        self._exits.callback(lambda: stop(list(self._processes.values())))
        try:
            for number, device in enumerate(self._file.devices):
                self._start(device, number, proxies)
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def folder(self, device_id: str) -> Path:
        """Where the device keeps its store, ``events.jsonl`` and ``log.txt``."""
        return self._file.folder / device_id

    def running(self) -> list[str]:
        """Devices whose process lives."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def ended(self) -> list[Ended]:
        """Devices whose process is over, and how it ended."""
        return [
            Ended(device_id=name, status=process.returncode, last_words=self._last_words(name))
            for name, process in self._processes.items()
            if process.poll() is not None
        ]

    def pid(self, device_id: str) -> int:
        """The process behind a device."""
        return self._processes[device_id].pid

    def _start(self, device: VirtualDevice, number: int, proxies: ProxyThread) -> None:
        profile = self._file.profile_of(device)
        folder = self.folder(device.id)
        make_private_folder(folder, "device folder")
        spec = DeviceSpec(
            device=device,
            profile=profile,
            federation=self._file.federation,
            broker=_through(self._broker, profile.link, proxies),
            bundle=self._file.bundle,
            store=folder / "store",
            seed=(self._file.seed, number),
            trust=self._file.trust,
        )
        path = folder / "device.json"
        replace_whole(path, msgspec.json.format(msgspec.json.encode(spec, enc_hook=str)))
        self._processes[device.id] = spawn(
            [sys.executable, "-m", "protofleet.firmware_sim.virtual_device", str(path)],
            out=folder / "events.jsonl",
            log=folder / "log.txt",
            env={
                **self._secrets,
                **thread_variables(profile.threads),
                "PROTOFLEET_NUMBA": "1" if profile.numba else "0",
            },
        )
        if profile.slowdown > 1:
            throttle = Throttle(self._processes[device.id], profile.slowdown)
            throttle.start()
            self._exits.callback(throttle.end)

    def _last_words(self, device_id: str) -> str:
        lines = (self.folder(device_id) / "log.txt").read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""


def _through(broker: BrokerAccess, link: LinkProfile, proxies: ProxyThread) -> BrokerAccess:
    """The broker as the device sees it: by a proxy if its link is not perfect."""
    if link == LinkProfile():
        return broker
    address = broker.address()
    proxy = proxies.add(address.host, address.port, link)
    url = urlsplit(broker.url)
    credentials = url.netloc.rpartition("@")[0]
    host = f"{credentials}@127.0.0.1" if credentials else "127.0.0.1"
    return broker.at(urlunsplit((url.scheme, f"{host}:{proxy.port}", url.path, url.query, "")))
