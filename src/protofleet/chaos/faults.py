"""What is done to a federation, by name."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from protofleet.chaos.federation import COORDINATOR, ChaosFederation
from protofleet.chaos.models import DEVICES
from protofleet.firmware_sim.link_proxy import LinkProfile
from protofleet.firmware_sim.packet_link import PacketFault, PacketLink

EVERYBODY = (COORDINATOR, *DEVICES)
_SLOW = LinkProfile(up_kbit_s=64.0, down_kbit_s=64.0, delay_ms=300.0)
_LOSS = 0.05
_STALL_S = 0.8
"""What a lost segment costs: a round trip until it is noticed, and some of another."""
_HOUR_S = 3600.0

Inject = Callable[[ChaosFederation, str, random.Random], int]
"""Does it to one process or its link; how many faults that were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: as in tables.
        what: what it is, and how it is made here; for docs/reliability.md.
        inject: does it once; None: it holds all the time.
        begin: what holds while the federation runs.
        disks: whether processes need disks of their own.
        counted: what the links count of it, where they know better than who asked for it.
    """

    name: str
    what: str
    inject: Inject | None = None
    begin: Callable[[ChaosFederation], None] | None = None
    disks: bool = False
    counted: str = ""


def _restart_broker(federation: ChaosFederation, _name: str, rng: random.Random) -> int:
    if not federation.proxies.ask(lambda: all(x.is_up for x in federation.links.values())):
        return 0  # what nobody is connected to can restart without any harm
    federation.broker.restart(rng.uniform(0.0, 0.3))
    return 1


def _kill(federation: ChaosFederation, name: str, rng: random.Random) -> int:
    if not federation.proxies.ask(lambda: federation.links[name].is_up):
        return 0  # it is about to start, and has nothing to lose
    time.sleep(rng.uniform(0.0, 0.5))
    return int(federation.processes[name].kill())


def _of_link(act: Callable[[PacketLink, random.Random], bool]) -> Inject:
    def inject(federation: ChaosFederation, name: str, rng: random.Random) -> int:
        link = federation.links[name]
        return int(federation.proxies.ask(lambda: act(link, rng)))

    return inject


def _arm(fault: PacketFault) -> Inject:
    return _of_link(lambda link, _rng: link.arm(fault))


def _move_clock(federation: ChaosFederation, name: str, rng: random.Random) -> int:
    federation.processes[name].move_clock(rng.uniform(-12 * _HOUR_S, 12 * _HOUR_S))
    return 1


def _fill(federation: ChaosFederation, name: str, rng: random.Random) -> int:
    return _on_disk(federation, name, rng, ("fill", "free"))


def _make_read_only(federation: ChaosFederation, name: str, rng: random.Random) -> int:
    return _on_disk(federation, name, rng, ("make_read_only", "make_writable"))


def _on_disk(
    federation: ChaosFederation, name: str, rng: random.Random, acts: tuple[str, str]
) -> int:
    path = str(federation.disk(name))
    federation.server.ask(acts[0], path=path)
    time.sleep(rng.uniform(0.1, 1.0))
    federation.server.ask(acts[1], path=path)
    return 1


def _make_slow(federation: ChaosFederation) -> None:
    def change() -> None:
        for name in DEVICES:
            link = federation.links[name]
            link.profile, link.loss, link.stall_s = _SLOW, _LOSS, _STALL_S

    federation.proxies.ask(change)


_ALL = (
    Fault(
        name="broker-restart",
        what="Mosquitto gets SIGKILL and comes back within 0.3 s, without sessions, queues and "
        "retained messages",
        inject=_restart_broker,
    ),
    Fault(
        name="network-cut",
        what="all TCP connections of a device or of the coordinator are reset",
        inject=_of_link(lambda link, _rng: link.cut()),
    ),
    Fault(
        name="half-open",
        what="the connection stays open for both ends, and nothing passes any more; only the "
        "keep-alive tells",
        inject=_of_link(lambda link, _rng: link.half_open()),
    ),
    Fault(name="device-kill", what="a device gets SIGKILL, and is started again", inject=_kill),
    Fault(
        name="coordinator-kill",
        what="the coordinator gets SIGKILL, and is started again",
        inject=_kill,
    ),
    Fault(
        name="duplicated",
        what="an MQTT message is delivered twice, the second time marked as a repetition",
        inject=_arm("duplicated"),
        counted="duplicated",
    ),
    Fault(
        name="reordered",
        what="an MQTT message is overtaken by the next one of its connection and direction",
        inject=_arm("reordered"),
        counted="reordered",
    ),
    Fault(
        name="delayed",
        what="a link holds everything back for 0.2 to 3 s",
        inject=_of_link(lambda link, rng: link.delay(rng.uniform(0.2, 3.0))),
    ),
    Fault(
        name="truncated",
        what="the content of an MQTT message is cut short at a random place",
        inject=_arm("truncated"),
        counted="truncated",
    ),
    Fault(
        name="corrupted",
        what="one to four bytes of the content of an MQTT message are changed",
        inject=_arm("corrupted"),
        counted="corrupted",
    ),
    Fault(
        name="clock",
        what="the wall clock of a device or of the coordinator jumps, up to 12 h off either way",
        inject=_move_clock,
    ),
    Fault(
        name="disk-full",
        what="the disk of a device or of the coordinator, a small tmpfs, is filled to its last "
        "byte for 0.1 to 1 s: writes fail with ENOSPC",
        inject=_fill,
        disks=True,
    ),
    Fault(
        name="disk-read-only",
        what="a read-only mount lies over the disk of a device or of the coordinator for 0.1 to "
        "1 s: what is opened, renamed or removed fails with EROFS; files that are open stay "
        "writable",
        inject=_make_read_only,
        disks=True,
    ),
    Fault(
        name="slow-link",
        what="every device is behind 64 kbit/s and 300 ms each way, and loses 5 % of its TCP "
        "segments; each loss, counted here, stalls its direction for 0.8 s",
        begin=_make_slow,
        counted="lost",
    ),
)
FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _ALL}


def target(fault: Fault, rng: random.Random) -> str:
    """Whom it hits next."""
    if fault.name == "device-kill":
        return rng.choice(DEVICES)
    if fault.name == "coordinator-kill":
        return COORDINATOR
    return rng.choice(EVERYBODY)
