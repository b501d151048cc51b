"""One federation of the test: broker, links, coordinator and devices in processes of their own."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from protofleet.benchmarks._keys import enrol_here
from protofleet.bundle.keys import load_public_key
from protofleet.chaos.broker import KillableBroker
from protofleet.chaos.evidence import Evidence, gather
from protofleet.chaos.models import DEVICES, Method
from protofleet.chaos.processes import ProcessServer, ServedProcess
from protofleet.firmware_sim.link_proxy import LinkProfile, ProxyThread
from protofleet.firmware_sim.packet_link import PacketLink
from protofleet.firmware_sim.processes import EventFollower
from protofleet.settings import to_toml

COORDINATOR = "coordinator"
NAME = "chaos"
_PACKET_BYTES = 3072
"""So little that a small model travels in more chunks than a window has."""
WINDOW_BYTES = 16 * _PACKET_BYTES
_LINK = LinkProfile(up_kbit_s=4000.0, down_kbit_s=4000.0, delay_ms=5.0)
_DISK_BYTES = {COORDINATOR: 32 << 20, **dict.fromkeys(DEVICES, 8 << 20)}
_BUFFER = 2
_LOOK_S = 0.02
_LEAVE_S, _TOLD_S = 60.0, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a federation is made of.

    Attributes:
        method: its strategy and model.
        files: folder of ``models.write_files``.
        folder: of this federation; must not exist.
        rounds: how many.
        disks: whether its processes have small disks of their own.
        broadcast_from: a payload that so many devices get travels to all at once; 0: never.
        seed: of its links.
        limit_s: how long it may take.
    """

    method: Method
    files: Path
    folder: Path
    rounds: int
    disks: bool = False
    broadcast_from: int = 2
    seed: int = 0
    limit_s: float = 600.0


class ChaosFederation:
    """A running one; made by ``running``.

    Attributes:
        broker: that can be killed.
        links: by process.
        processes: by name: ``coordinator`` and the devices.
        server: of the processes.
        proxies: thread of the links.
        rounds_opened: number of the round that was opened last.
        over: whether the coordinator has finished.
    """

    def __init__(
        self, setup: Setup, server: ProcessServer, broker: KillableBroker, proxies: ProxyThread
    ) -> None:
        self.setup, self.server, self.broker, self.proxies = setup, server, broker, proxies
        self.links: dict[str, PacketLink] = {}
        self.processes: dict[str, ServedProcess] = {}
        self.rounds_opened, self.over = 0, False
        self._news = threading.Condition()

    @property
    def found(self) -> Path:
        """Folder of the copies of what the processes have left on their disks."""
        return self.setup.folder / "found"

    def disk(self, name: str) -> Path:
        """The folder of a process's files."""
        return self.setup.folder / "disks" / name

    def start(self) -> None:
        """Make all files, links and processes."""
        folder = self.setup.folder
        for name in (COORDINATOR, *DEVICES):
            rng = random.Random(f"{self.setup.seed}/{name}")  # noqa: S311 - a simulation
            self.links[name] = PacketLink(self.broker.port, _LINK, rng)
            self.proxies.serve(self.links[name])
        (folder / "disks").mkdir()
        stores = {name: folder / "enrolled" / name / "store" for name in DEVICES}
        enrol_here(folder / "federation", NAME, stores, self._url(COORDINATOR))
        (folder / "enrolled" / COORDINATOR).mkdir()
        for name in (COORDINATOR, *DEVICES):
            place = str(self.disk(name))
            if self.setup.disks:
                self.server.ask("make_disk", path=place, size=_DISK_BYTES[name])
            self.server.ask("copy", path=str(folder / "enrolled" / name), to=place)
        (folder / "federation.toml").write_bytes(to_toml(self._settings()))
        for name in (COORDINATOR, *DEVICES):
            arguments = self._device(name) if name in DEVICES else self._coordinator()
            self.processes[name] = ServedProcess(self.server, name, folder, arguments)
            self.processes[name].start()

    def run(self, disturb: Callable[[ChaosFederation], None] | None = None) -> bool:
        """Keep everything going until the rounds are over; whether they are.

        Args:
            disturb: runs beside it, in a thread of its own.
        """
        coordinator = self.processes[COORDINATOR]
        follower = EventFollower(coordinator.events)
        until = time.monotonic() + self.setup.limit_s
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(disturb or (lambda _: None), self)
            try:
                while time.monotonic() < until and not self.over:
                    self._follow(follower)
                    self._start_again()
                    time.sleep(_LOOK_S)
                    if beside.done():
                        beside.result()
            finally:  # else the pool would wait for ever for who waits for a round
                self._tell_over()
        return self._leave()

    def await_round(self, number: int) -> bool:
        """Wait until the round has been opened; False: the run is over before."""
        with self._news:
            self._news.wait_for(lambda: self.over or self.rounds_opened >= number)
        return not self.over

    def evidence(self) -> Evidence:
        """What it has left behind, copied to ``found``."""
        found = self.found
        for name in (COORDINATOR, *DEVICES):
            self.server.ask("copy", path=str(self.disk(name)), to=str(found / name))
        stores = {name: found / name / "store" for name in DEVICES}
        events = {name: process.events for name, process in self.processes.items()}
        return gather(found / COORDINATOR / "run", stores, events)

    def _follow(self, follower: EventFollower) -> None:
        for event in follower.read():
            if event["event"] == "round_opened":
                with self._news:
                    self.rounds_opened = max(self.rounds_opened, event["round_id"])
                    self._news.notify_all()

    def _start_again(self) -> None:
        """As a supervisor does with what was killed; a process that has finished stays so."""
        for process in self.processes.values():
            process.kill_if_stuck()
            if process.status not in (None, 0):
                process.start()
        if self.processes[COORDINATOR].status == 0:
            self._tell_over()

    def _tell_over(self) -> None:
        with self._news:
            self.over = True
            self._news.notify_all()

    def _leave(self) -> bool:
        """Let the devices hear of the end; whether every process has ended as it should.

        A broker may have lost the end and the last receipts with its memory, when the coordinator
        was gone already: then that is started once more, and says it all again.
        """
        begun = told = time.monotonic()
        processes = self.processes.values()
        while (now := time.monotonic()) < begun + _LEAVE_S:
            if all(one.status == 0 for one in processes):
                break
            if now > told + _TOLD_S:
                told = now
                self.processes[COORDINATOR].start()
            self._start_again()
            time.sleep(_LOOK_S)
        ended = all(one.status == 0 for one in processes)
        for process in processes:
            process.kill()
        return ended

    def _url(self, name: str) -> str:
        return f"mqtt://127.0.0.1:{self.links[name].port}"

    def _coordinator(self) -> tuple[str, ...]:
        return ("coordinator", "run", str(self.setup.folder / "federation.toml"), "--json")

    def _device(self, name: str) -> tuple[str, ...]:
        files = self.setup.files
        options = {
            "--bundle": files / "bundle.pfb",
            "--trust": files / "signer.pem",
            "--data": files / f"{name}.npz",
            "--store": self.disk(name) / "store",
            "--broker": self._url(name),
        }
        pairs = (str(part) for pair in options.items() for part in pair)
        return ("device", "join", *pairs, "--json")

    def _settings(self) -> dict[str, object]:
        setup, buffered = self.setup, self.setup.method.buffered
        training = {"epochs": 1, "batch_size": 8, "optimiser": {"kind": "sgd", "lr": 0.05}}
        return {
            "federation": NAME,
            "broker": self._url(COORDINATOR),
            "bundle": str(setup.files / "bundle.pfb"),
            "trusted": [load_public_key(setup.files / "signer.pem").hex()],
            "run_dir": str(self.disk(COORDINATOR) / "run"),
            "keys": str(setup.folder / "federation"),
            "rounds": setup.rounds,
            "seed": 5,
            "strategy": {
                "name": setup.method.strategy,
                "settings": {**training, **setup.method.settings},
            },
            "cohort": {"minimum": len(DEVICES)},
            "limits": {"broadcast_from": setup.broadcast_from},
            "round": {"deadline_s": 20.0, "quorum": _BUFFER if buffered else len(DEVICES)},
            "schedule": {"kind": "buffered", "buffer": _BUFFER} if buffered else {},
            "liveness": {"silent_after_s": 30.0, "grace_s": 600.0, "farewell_s": 2.0, "lease_s": 2},
            "privacy": {"scores": False},  # times in an update's record differ from run to run
        }


@contextmanager
def running(setup: Setup, server: ProcessServer) -> Iterator[ChaosFederation]:
    """Start a federation; all of it has ended behind the block."""
    setup.folder.mkdir(parents=True)
    with ExitStack() as stack:
        broker = stack.enter_context(KillableBroker(setup.folder, _PACKET_BYTES))
        proxies = stack.enter_context(ProxyThread())
        federation = ChaosFederation(setup, server, broker, proxies)
        stack.callback(_kill, federation)
        federation.start()
        yield federation


def _kill(federation: ChaosFederation) -> None:
    for process in federation.processes.values():
        process.kill()
