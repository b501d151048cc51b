"""A federation in one process: the real coordinator and real devices, each in a thread of its own.

They talk through a real broker; only the processes around them are left out, which cost more than
all that a tiny federation does.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from protofleet.coordinator import events
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.process.run import open_service
from protofleet.edge.join import JoinOptions, open_agent
from protofleet.edge.learning.training import LocalData
from protofleet.federation.plan import make_plan
from protofleet.federation.settings import FederationConfig
from protofleet.strategies.types import ServerState


class CrashError(Exception):
    """What a coordinator dies of at the moment that a test chooses."""


class Thread:
    """Runs ``work``; ``finish`` waits for it and raises what it raised."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._work, self._error = work, None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised by finish, in the test's thread
            self._error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def finish(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        if not self.ended:
            raise TimeoutError(f"{self._thread.name}: not within {timeout_s:.0f} s")


class Device:
    """One device; ``stop`` makes it leave and keep its store; a new bundle, begin anew."""

    def __init__(self, options: JoinOptions, data: LocalData) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._opening = options, data, lambda *event: self.events.append(event)
        self._open()
        self.thread = Thread(options.device_id or "device", self._run)

    def _open(self) -> None:
        self._exits = ExitStack()
        self._agent = self._exits.enter_context(open_agent(*self._opening))

    def _run(self) -> None:
        with self._exits:
            self._agent.run()
        while self._agent.switched:
            self._open()
            with self._exits:
                self._agent.run()

    def stop(self) -> None:
        self._agent.stop()
        self.thread.finish(20)


@dataclass
class Federation:
    """``with Federation(config, data) as f: f.finish()``.

    Attributes:
        config: with the broker's address.
        data: by device; all are started.
        crash: the event at which the coordinator dies, once.
        reports: the coordinator's events.
        devices: as they run.
    """

    config: FederationConfig
    data: Mapping[str, LocalData]
    crash: Callable[[events.CoordinatorEvent], bool] | None = None
    reports: list[events.CoordinatorEvent] = field(default_factory=list)
    devices: dict[str, Device] = field(default_factory=dict)
    coordinator: Thread | None = None

    def __enter__(self) -> Self:
        self.start_coordinator()
        for name in self.data:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for device in self.devices.values():
            if not device.thread.ended:
                device.stop()

    def start_coordinator(self) -> None:
        """Start it, or again where it stood."""
        self.coordinator = Thread("coordinator", self._coordinate)

    def start(self, name: str) -> None:
        keyed = self.config.keys is not None
        options = JoinOptions(
            broker=None if keyed else self.config.broker,
            federation=None if keyed else self.config.federation,
            bundle=self.config.bundle,
            store=self.store(name),
            device_id=name,
        )
        self.devices[name] = Device(options, self.data[name])

    def store(self, name: str) -> Path:
        return self.config.run_dir.with_name(f"store-{name}")

    def wait_for(
        self, found: Callable[[events.CoordinatorEvent], bool], timeout_s: float = 60
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not any(found(report) for report in list(self.reports)):
            if self.coordinator.ended:
                self.coordinator.finish(0)
            assert time.monotonic() < deadline, self.reports[-3:]
            time.sleep(0.005)

    def finish(self, timeout_s: float = 60) -> dict[str, Any]:
        """``result.json`` after coordinator and devices have ended."""
        self.coordinator.finish(timeout_s)
        for device in self.devices.values():
            device.thread.finish(20)
        return json.loads((self.config.run_dir / "result.json").read_text())

    def _coordinate(self) -> None:
        with open_service(self.config, self._take) as service:
            service.run()

    def _take(self, report: events.CoordinatorEvent) -> None:
        self.reports.append(report)
        if self.crash is not None and self.crash(report):
            self.crash = None
            raise CrashError


def final_state(config: FederationConfig) -> ServerState:
    """The server's state in the ledger of a run that has ended."""
    with Ledger(config.run_dir, make_plan(config).identity) as ledger:
        state = ledger.server_state()
    assert state is not None
    return state
