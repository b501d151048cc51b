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
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.benchmarks._keys import enrol_here
from protofleet.benchmarks._process_times import descendants
from protofleet.benchmarks._rows import Row
from protofleet.benchmarks.rounds import (
    FEDERATION,
    HONEST,
    KEYS,
    start_command,
    start_device,
    write_federation,
)
from protofleet.coordinator.membership.members import Members
from protofleet.edge.learning.meter import high_water_bytes
from protofleet.errors import InputError, UnavailableError
from protofleet.firmware_sim.broker import BrokerOptions, open_broker
from protofleet.firmware_sim.processes import stop
from protofleet.wire.messages import Announcement, Message, Presence, TransferOffer
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Link, LinkOptions, MqttMessage
from protofleet.wire.topics import Channel, Topics
from protofleet.wire.transfers.transfer import transfer_id
from protofleet.wire.trust.device_protection import DeviceCredentials, DeviceProtection
from protofleet.wire.trust.identity import DeviceGrant, public_bytes, sign_statement
from protofleet.wire.trust.signed_records import name_in

_TOPICS = Topics(FEDERATION)
_FLOATS = 1_450_000
_QUIET_ROUNDS, _FLOODED_ROUNDS, _FLOODED_S = 6, 5, 20.0
_DEADLINE_S = 10.0
_LIMIT_S = 600.0
_BYTES = 512 * 1024 * 1024
_OFFER_S = 15.0  # between two offers of a member, as honest devices repeat theirs


@dataclass(slots=True, kw_only=True)
class Attacker:
    """Somebody who reaches the broker.

    Attributes:
        link: connected, subscribed to announcements.
        folder: of the federation, whose key a member's grant needs.
        announced: the latest announcement, as it came.
        sent: messages so far.
    """

    link: Link
    folder: Path
    announced: bytes
    sent: int = 0

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

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send as fast as the broker acknowledges."""
        while not self.link.room:
            self.hear(0.01)
        self.hear(0.0)
        self.sent += self.link.publish(topic, payload, retain=retain)

    def say(self, device: DeviceProtection, name: str, channel: Channel, message: Message) -> None:
        """Publish a record of a device, signed or sealed."""
        topic = _TOPICS.of(channel, name)
        payload = device.write(message, topic, name)
        if payload is not None:
            self.publish(topic, payload, retain=channel is Channel.PRESENCE)

    def present(self, devices: dict[str, DeviceProtection]) -> Iterator[None]:
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
            yield

    def offer(self, device: DeviceProtection, name: str, size: int) -> None:
        """Publish an offer of an update of the round that was announced last."""
        sha256, round_id = secrets.token_hex(32), name_in(self.announced).round_id
        offer = TransferOffer(
            transfer_id=transfer_id(sha256, name, round_id),
            kind="update",
            round_id=round_id,
            total_bytes=size,
            sha256=sha256,
            chunk_bytes=256,
            key=secrets.token_hex(32),
        )
        self.say(device, name, Channel.UP_OFFER, device.sign_offer(offer))

    def await_invitation(self) -> None:
        """Wait for a round that opens with the devices that are present now in its cohort."""
        present_in = name_in(self.announced).round_id
        while name_in(self.announced).round_id <= present_in:
            self.hear(1.0)

    def hear(self, wait_s: float) -> None:
        """Take what the federation announces."""
        event = self.link.get(wait_s)
        if isinstance(event, MqttMessage):
            self.announced = event.payload

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


Flood = Callable[[Attacker], Iterator[None]]
"""Yields once when it is ready to begin, then after each message."""


def _presences(attacker: Attacker) -> Iterator[None]:
    names = [f"stranger-{number}" for number in range(10_000)]
    devices = attacker.devices(names, members=False)
    yield
    yield from attacker.present(devices)


def _invented_ids(attacker: Attacker) -> Iterator[None]:
    names = [f"nobody-{number}" for number in range(1_000)]
    ways = [Channel.UP_STATUS, Channel.UP_OFFER, Channel.UP_REQUEST, Channel.UP_CHUNK]
    yield
    for name, channel in itertools.cycle(itertools.product(names, ways)):
        attacker.publish(_TOPICS.of(channel, name), secrets.token_bytes(400))
        yield


def _large_offers(attacker: Attacker) -> Iterator[None]:
    devices = attacker.devices(["thief"], members=True)
    ((name, device),) = devices.items()
    yield
    yield from attacker.present(devices)
    attacker.await_invitation()
    for _ in range(1_000):
        attacker.offer(device, name, _BYTES)
        yield


def _endless_transfers(attacker: Attacker) -> Iterator[None]:
    devices = attacker.devices([f"member-{number}" for number in range(1_000)], members=True)
    yield
    yield from attacker.present(devices)
    attacker.await_invitation()
    while True:
        due = time.monotonic() + _OFFER_S
        for name, device in devices.items():
            attacker.offer(device, name, 4 * _FLOATS)
            yield
        while time.monotonic() < due:
            attacker.hear(0.1)
            yield


FLOODS: dict[str, Flood] = {
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


def _row(name: str, flood: Flood) -> Row:
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
                attacker = Attacker(link=link, folder=folder / "keys", announced=_announced(link))
                flooded = _under(flood, attacker, log)
            memory = [_peak_bytes(one.pid) for one in (processes[0], broker.process)]
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
            "messages": attacker.sent,
            "rounds": len(flooded),
            "coordinator_rss_mb": round(memory[0] / 1e6, 1),
            "broker_rss_mb": round(memory[1] / 1e6, 1),
        },
    )


def _under(flood: Flood, attacker: Attacker, log: Path) -> list[float]:
    """Times of the rounds that opened after the flood had begun and until it had ended."""
    ended = threading.Event()
    messages = flood(attacker)
    next(messages)
    known = len(_times(log)) + 1  # the one that is open now began without it
    until = time.monotonic() + _FLOODED_S
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(_send, messages, ended)
        try:
            while not sending.done() and time.monotonic() < until:
                time.sleep(0.1)
            times = _await_rounds(log, known + _FLOODED_ROUNDS)[known:]
        finally:
            ended.set()
        sending.result()
    return times


def _peak_bytes(process: int) -> int:
    """Of the processes that it has started and watches, as Mosquitto is, or of itself."""
    others = descendants(process) - {process}
    return max(high_water_bytes(one) or 0 for one in others or {process})


def _send(messages: Iterator[None], ended: threading.Event) -> None:
    for _ in messages:
        if ended.is_set():
            return


def _listen(url: str) -> Link:
    link = Link(LinkOptions(broker=BrokerAccess(url=url), filters=(_TOPICS.announcement,)))
    link.start()
    return link


def _announced(link: Link) -> bytes:
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        event = link.get(1.0)
        if isinstance(event, MqttMessage):
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
