"""Floods against a federation with keys: rounds of four honest devices while somebody sends.

Strangers reach the broker and know everything that is public. Members have grants, as a stolen card
has. A round's time runs from its opening until the last of the four honest updates is in.
"""

from __future__ import annotations

import itertools
import json
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.benchmarks._keys import enrol_here
from protofleet.benchmarks._rows import Row
from protofleet.benchmarks.rounds import (
    FEDERATION,
    HONEST,
    KEYS,
    start_command,
    start_device,
    write_federation,
)
from protofleet.coordinator.members import Members
from protofleet.edge.meter import high_water_bytes
from protofleet.errors import InputError, UnavailableError
from protofleet.firmware_sim.broker import BrokerOptions, open_broker
from protofleet.firmware_sim.processes import stop
from protofleet.wire.broker_access import BrokerAccess
from protofleet.wire.identity import DeviceGrant, public_bytes, sign_statement
from protofleet.wire.link import Delivery, Link, LinkOptions
from protofleet.wire.messages import Announcement, Message, Presence, TransferOffer
from protofleet.wire.protection import DeviceCredentials, DeviceProtection, name_in
from protofleet.wire.topics import Channel, Topics
from protofleet.wire.transfer import transfer_id

_TOPICS = Topics(FEDERATION)
_FLOATS = 1_000
_QUIET_ROUNDS, _FLOODED_ROUNDS = 5, 5
_DEADLINE_S = 40.0
_LIMIT_S = 300.0
_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacker:
    """Somebody who reaches the broker.

    Attributes:
        link: connected, subscribed to announcements.
        folder: of the federation, whose key a member's grant needs.
        announced: the latest announcement, as it came.
        stopped: whether to end.
    """

    link: Link
    folder: Path
    announced: bytes
    stopped: Callable[[], bool]

    def devices(self, names: list[str], *, members: bool) -> dict[str, DeviceProtection]:
        """Devices that answer the announcement, with grants of the federation or of their own."""
        with Members(self.folder, FEDERATION) as known:
            trusted, signer = known.federation_key, known.private_key()
            if signer is None:
                raise InputError(f"keys '{self.folder}': the federation key is elsewhere")
            found = {}
            for name in names:
                key = Ed25519PrivateKey.generate()
                public = public_bytes(key)
                grant = known.grant(signer, name, public) if members else _own_grant(name, public)
                found[name] = self._device(name, key, grant, trusted)
        return found

    def round_id(self) -> int:
        """Of the latest announcement; waits a second for one."""
        found = name_in(self.announced).round_id
        until = time.monotonic() + 1.0
        while (left := until - time.monotonic()) > 0:
            event = self.link.get(left)
            if isinstance(event, Delivery):
                found = name_in(event.payload).round_id
        return found

    def say(self, device: DeviceProtection, name: str, channel: Channel, message: Message) -> None:
        """Publish a record of a device, signed or sealed."""
        topic = _TOPICS.of(channel, name)
        payload = device.write(message, topic, name)
        if payload is not None:
            self.link.publish(topic, payload, retain=channel is Channel.PRESENCE)

    def present(self, devices: dict[str, DeviceProtection]) -> None:
        """Publish a presence of each that fits the federation."""
        run = name_in(self.announced)
        for name, device in devices.items():
            presence = Presence(
                device_id=name,
                boot_id="1",
                status="online",
                bundle=run.bundle,
                layout_hash=run.layout_hash,
                num_examples=1,
            )
            self.say(device, name, Channel.PRESENCE, presence)

    def _device(
        self, name: str, key: Ed25519PrivateKey, grant: str, trusted: bytes
    ) -> DeviceProtection:
        credentials = DeviceCredentials(
            federation=FEDERATION,
            device_id=name,
            key=key,
            grant=grant,
            federation_key=trusted,
            start=1,
            announced=0,
            note=lambda _sequence, _key: None,
        )
        device = DeviceProtection(credentials)
        device.read(self.announced, _TOPICS.announcement, "", Announcement)
        return device


def _presences(attacker: Attacker) -> None:
    names = [f"stranger-{number}" for number in range(10_000)]
    attacker.present(attacker.devices(names, members=False))


def _invented_ids(attacker: Attacker) -> None:
    names = [f"nobody-{number}" for number in range(1_000)]
    ways = [Channel.UP_STATUS, Channel.UP_OFFER, Channel.UP_REQUEST, Channel.UP_CHUNK]
    for name, channel in itertools.cycle(itertools.product(names, ways)):
        if attacker.stopped():
            return
        attacker.link.publish(_TOPICS.of(channel, name), secrets.token_bytes(400))
        time.sleep(0.0005)


def _large_offers(attacker: Attacker) -> None:
    devices = attacker.devices(["thief"], members=True)
    attacker.present(devices)
    ((name, device),) = devices.items()
    round_id = 0
    for number in range(1_000):
        round_id = attacker.round_id() if number % 100 == 0 else round_id
        offer = _offer(device, name, round_id, _BYTES)
        attacker.say(device, name, Channel.UP_OFFER, offer)


def _endless_transfers(attacker: Attacker) -> None:
    devices = attacker.devices([f"member-{number}" for number in range(1_000)], members=True)
    attacker.present(devices)
    while not attacker.stopped():
        round_id = attacker.round_id()
        for name, device in devices.items():
            offer = _offer(device, name, round_id, 4 * _FLOATS)
            attacker.say(device, name, Channel.UP_OFFER, offer)


FLOODS: dict[str, Callable[[Attacker], None]] = {
    "10,000 presences of strangers": _presences,
    "messages of 1,000 invented ids, without end": _invented_ids,
    "1,000 offers of 512 MB by a member": _large_offers,
    "1,000 members' transfers that never end": _endless_transfers,
}


def run(*, quick: bool) -> Iterator[list[Row]]:
    """A row per flood.

    Raises:
        UnavailableError: Mosquitto is not installed, or the federation did not go on.
    """
    floods = list(FLOODS.items())[: 2 if quick else None]
    return ([_row(name, flood)] for name, flood in floods)


def _row(name: str, flood: Callable[[Attacker], None]) -> Row:
    with (
        tempfile.TemporaryDirectory() as temporary,
        open_broker(BrokerOptions(kind="mosquitto")) as broker,
    ):
        folder = Path(temporary)
        enrol_here(folder / "keys", FEDERATION, {n: folder / n for n in HONEST}, broker.url)
        settings = (
            f"rounds = 100000\n{KEYS}[cohort]\nminimum = {len(HONEST)}\n"
            f"[round]\nquorum = {len(HONEST)}\ndeadline_s = {_DEADLINE_S}\n"
        )
        write_federation(folder, broker.url, _FLOATS, settings)
        log = folder / "coordinator.log"
        file = str(folder / "federation.toml")
        processes = [start_command(log, "coordinator", "run", file, "--json")]
        try:
            processes += [start_device(folder, broker.url, device) for device in HONEST]
            quiet = _await_rounds(log, _QUIET_ROUNDS)
            with closing(_listen(broker.url)) as link:
                flooded = _under(flood, link, folder, log)
            memory = [high_water_bytes(one.pid) or 0 for one in (processes[0], broker.process)]
        finally:
            stop(processes)
    before, during = statistics.median(quiet[1:]) * 1e3, statistics.median(flooded) * 1e3
    return Row(
        bench="floods",
        case=name,
        ours_ms=round(during, 1),
        baseline="no flood",
        baseline_ms=round(before, 1),
        ratio=round(during / before, 2),
        details={
            "rounds": len(flooded),
            "coordinator_rss_mb": round(memory[0] / 1e6, 1),
            "broker_rss_mb": round(memory[1] / 1e6, 1),
        },
    )


def _under(flood: Callable[[Attacker], None], link: Link, folder: Path, log: Path) -> list[float]:
    """Times of the rounds that opened while the flood was under way or had just ended."""
    known, ended = len(_times(log)), threading.Event()
    attacker = Attacker(
        link=link, folder=folder / "keys", announced=_announced(link), stopped=ended.is_set
    )
    thread = threading.Thread(target=flood, args=[attacker], daemon=True)
    thread.start()
    try:
        return _await_rounds(log, known + 1 + _FLOODED_ROUNDS)[known + 1 :]
    finally:
        ended.set()
        thread.join(60.0)


def _listen(url: str) -> Link:
    link = Link(LinkOptions(broker=BrokerAccess(url=url), filters=(_TOPICS.announcement,)))
    link.start()
    return link


def _announced(link: Link) -> bytes:
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        event = link.get(1.0)
        if isinstance(event, Delivery):
            return event.payload
    raise UnavailableError("no announcement came in 30 s")


def _await_rounds(log: Path, count: int) -> list[float]:
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        found = _times(log)
        if len(found) >= count:
            return found
        time.sleep(0.2)
    raise UnavailableError(f"{count} rounds: not within {_LIMIT_S:.0f} s: {log.read_text()[-800:]}")


def _times(log: Path) -> list[float]:
    """Seconds of each round until the last honest update was in."""
    opened: dict[int, float] = {}
    arrived: dict[int, list[float]] = {}
    for line in log.read_text().splitlines():
        event = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
        if event.get("event") == "round_opened":
            opened[event["round_id"]] = event["time_s"]
        elif event.get("event") == "update_received" and event["device_id"] in HONEST:
            arrived.setdefault(event["round_id"], []).append(event["time_s"])
    complete = {r: times for r, times in arrived.items() if len(times) == len(HONEST)}
    return [max(complete[r]) - opened[r] for r in sorted(complete)]


def _own_grant(name: str, public: bytes) -> str:
    grant = DeviceGrant(
        federation=FEDERATION,
        device_id=name,
        key=public.hex(),
        serial=1,
        until=int(time.time()) + 86_400,
    )
    return sign_statement(Ed25519PrivateKey.generate(), grant)


def _offer(device: DeviceProtection, name: str, round_id: int, size: int) -> TransferOffer:
    sha256 = secrets.token_hex(32)
    offer = TransferOffer(
        transfer_id=transfer_id(sha256, name, round_id),
        kind="update",
        round_id=round_id,
        total_bytes=size,
        sha256=sha256,
        chunk_bytes=256,
        key=secrets.token_hex(32),
    )
    return device.sign_offer(offer)
