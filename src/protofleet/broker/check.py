"""Questions to a running broker: what may nobody, a stolen device and an invitation do?

All is tried from outside, with credentials alone. What was published is seen by others who may
read there: the coordinator, another device; so a broker that says yes and drops it is not taken for
open, nor one that says yes to a subscription and delivers nothing (Mosquitto 2.0 does both).
Names are invented (``check-…``), and what was retained is cleared.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

from protofleet.broker.access import AccessList, access_list
from protofleet.broker.findings import Finding, Verdict
from protofleet.broker.folder import PACKET_BYTES
from protofleet.broker.probe import ANSWER_S, BrokerPlace, BrokerProbe, Credential, speaks_old_tls
from protofleet.errors import UnavailableError
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.topics import COORDINATOR, INVITED, PREFIX
from protofleet.wire.transfers.chunks import MAX_PAYLOAD_BYTES

SETTLE_S = 1.0
"""How long a message may be on its way after the broker has acknowledged it."""
PLAIN_PORT = 1883
_NOBODY = Credential()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A broker, and whom to try it as.

    Attributes:
        access: where it is and how to check its certificate; its user is the coordinator.
        device: the credential that is taken for stolen.
        other: another device's, to see what reaches it.
        invited: an invitation's.
        federation: whose topics to try; '': an invented one, which disturbs nobody.
    """

    access: BrokerAccess
    device: Credential | None = None
    other: Credential | None = None
    invited: Credential | None = None
    federation: str = ""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Something that ``who`` publishes.

    Attributes:
        tail: the topic behind the federation.
        allowed: whether it must arrive.
        how: ``publish``, ``retain``, ``will``, ``large`` or ``largest`` (that we send).
    """

    question: str
    who: Credential
    tail: str
    remedy: str = ""
    allowed: bool = False
    how: str = "publish"


@dataclass(frozen=True, slots=True)
class _Sent:
    """What became of an attempt at the broker; ``refused`` says why, or is ''."""

    attempt: _Attempt
    topic: str
    payload: bytes
    refused: str


_REMEDY_ACL = "acl_file, with an access list such as protofleet broker init writes"
_REMEDY_SIZE = f"max_packet_size {PACKET_BYTES}, and no message_size_limit below it"
_REMEDY_READ = "acl_file: a device reads dn/<its name>/# and all/# alone"
_REMEDY_WRITE = "acl_file: a device writes up/<its name>/# and st/<its name> alone"
_REMEDY_ENROL = "acl_file: en/ is for the coordinator, and en/<its name>/ for an invitation"
_REMEDY_PASSWORD = "password_file, or the broker's own way to check passwords"  # noqa: S105


def check(target: Target) -> Iterator[Finding]:
    """Ask everything; findings come as they are known.

    Raises:
        InputError: files of the access cannot be read.
        UnavailableError: nothing answers there.
    """
    address, tls = target.access.address(), target.access.tls()
    place = BrokerPlace.find(address, tls)
    coordinator = Credential(user=address.user or "", password=address.password)
    yield _certificate(place)
    yield from _unsecured(place)
    anonymous, finding = _anonymous(place)
    yield finding
    yield from _wrong_passwords(place, coordinator, target.device)
    if target.device is None and not anonymous:
        yield Finding(
            "what may a stolen device credential do?",
            "not asked: needs a device's account (--device)",
            Verdict.UNKNOWN,
        )
        return
    yield from _Session(place, coordinator, target).findings()


def _certificate(place: BrokerPlace) -> Finding:
    """Also tells whether there is a broker at all."""
    question = "does the broker show a certificate that we can check?"
    with BrokerProbe(place, _NOBODY) as probe:
        if place.tls is None:
            if not probe.answered:
                where = f"{place.host}:{place.port}"
                raise UnavailableError(f"broker {where}: {probe.refused}; is it running there?")
            remedy = "TLS: protofleet broker init writes a certificate; then mqtts://"
            return Finding(question, "no TLS (mqtt://)", Verdict.OPEN, remedy)
        if probe.answered:
            return Finding(question, "yes", Verdict.WORKS)
    if "refused" in probe.refused or "timed out" in probe.refused:
        where = f"{place.host}:{place.port}"
        raise UnavailableError(f"broker {where}: {probe.refused}; is it running there?")
    remedy = (
        "the ca.pem of the broker's folder (--broker-ca), and a host that its certificate names"
    )
    return Finding(question, probe.refused, Verdict.BROKEN, remedy)


def _unsecured(place: BrokerPlace) -> Iterator[Finding]:
    question = "does it speak MQTT without TLS?"
    answers, found = [], False
    for port in dict.fromkeys((place.port, PLAIN_PORT)):
        with BrokerProbe(replace(place, port=port, tls=None), _NOBODY) as probe:
            found = found or probe.answered
            answers.append(f"port {port}: {'yes' if probe.answered else probe.refused}")
    verdict = Verdict.OPEN if found else Verdict.CLOSED
    remedy = "no listener without certfile and keyfile, but on 127.0.0.1" if found else ""
    yield Finding(question, "; ".join(answers), verdict, remedy)
    if place.tls is not None:
        old = speaks_old_tls(place.host, place.port)
        known = Verdict.CLOSED if old == "" else Verdict.OPEN if old else Verdict.UNKNOWN
        answer = old or ("refused" if old == "" else "not asked: this machine does not speak it")
        remedy = "tls_version tlsv1.2" if known is Verdict.OPEN else ""
        yield Finding("does it speak TLS below 1.2?", answer, known, remedy)


def _anonymous(place: BrokerPlace) -> tuple[bool, Finding]:
    question = "may anyone connect without an account?"
    with BrokerProbe(place, _NOBODY) as probe:
        if probe.refused:
            return False, Finding(question, probe.refused, Verdict.CLOSED)
    return True, Finding(question, "yes", Verdict.OPEN, "allow_anonymous false")


def _wrong_passwords(
    place: BrokerPlace, coordinator: Credential, device: Credential | None
) -> Iterator[Finding]:
    user = coordinator.user or COORDINATOR
    tries = {
        f"as {user} with a wrong password?": Credential(user=user, password=secrets.token_hex(8)),
        f"as {user} with an empty password?": Credential(user=user, password=""),
        "with an unknown name?": Credential(user="check-unknown", password=secrets.token_hex(8)),
    }
    if device is not None:
        stolen = Credential(user=user, password=device.password)
        tries[f"as {user} with a device's password?"] = stolen
    for question, credential in tries.items():
        with BrokerProbe(place, credential) as probe:
            closed = bool(probe.refused)
            verdict = Verdict.CLOSED if closed else Verdict.OPEN
            remedy = "" if closed else _REMEDY_PASSWORD
            yield Finding(f"does it let in {question}", probe.refused or "yes", verdict, remedy)


def _largest(name: str, who: Credential, tail: str) -> _Attempt:
    question = f"does the largest packet that {name} sends arrive?"
    return _Attempt(question, who, tail, _REMEDY_SIZE, allowed=True, how="largest")


class _Session:
    """All that needs several connections at once."""

    def __init__(self, place: BrokerPlace, coordinator: Credential, target: Target) -> None:
        self._place = place
        self._mark = secrets.token_hex(4)
        self._coordinator = coordinator
        self._device = target.device or _NOBODY
        self._other = target.other or _NOBODY
        self._invited = target.invited
        self._federation = target.federation or f"check-{self._mark}"
        self._own = self._device.user or f"check-a{self._mark}"
        self._victim = self._other.user or f"check-b{self._mark}"
        self._invitation = (self._invited or _NOBODY).user or f"{INVITED}{self._own}"
        # A real federation has a coordinator and devices that would read an announcement.
        self._announcement = f"all/check-{self._mark}" if target.federation else "all/ctl"
        invited = [] if self._invited is None else [self._invited.user]
        self._rules = AccessList(access_list(invited=invited))
        self._stack = ExitStack()
        self._watchers: list[BrokerProbe] = []
        self._readers: list[tuple[str, str, str, BrokerProbe, str]] = []
        self._sent: list[_Sent] = []

    def findings(self) -> Iterator[Finding]:
        """Ask, wait, tell; then clear what was retained."""
        with self._stack:
            refused = self._watch()
            if refused:
                yield Finding(
                    "do the given accounts connect?",
                    "; ".join(refused),
                    Verdict.BROKEN,
                    "the right passwords, for accounts that the broker has read (reload it)",
                )
                return
            try:
                self._read()
                for attempt in self._attempts():
                    self._send(attempt)
                self._await_allowed()
                time.sleep(SETTLE_S)
                yield from (self._judge(sent) for sent in self._sent if sent.attempt.question)
                yield from self._judge_readers()
                yield self._kept()
                yield self._elsewhere()
                yield self._takeover()
            finally:
                self._clear()

    def _watch(self) -> list[str]:
        """Connect those who may see what arrives; who could not, and why."""
        refused = []
        for who in dict.fromkeys((self._coordinator, self._device, self._other)):
            if not who.user and self._rules_are_kept():
                continue
            probe = self._open(who)
            if probe.refused:
                refused.append(f"{who.user or 'nobody'}: {probe.refused}")
                continue
            name = who.user or self._own
            tails = [f"dn/{name}/#", "all/#"]
            if who == self._coordinator:
                tails += ["up/+/+", "st/+", "en/+/q"]
            if not who.user:
                tails += ["dn/+/+", "en/+/a"]
            for tail in tails:
                probe.subscribe(self._topic(tail))
            self._watchers.append(probe)
        return refused

    def _rules_are_kept(self) -> bool:
        """Whether somebody has an account: then nobody watches without one."""
        return bool(self._coordinator.user or self._device.user)

    def _read(self) -> None:
        """Subscribe to what must not be delivered; each by a connection of its own."""
        victim, share = self._victim, f"$share/g/{PREFIX}"
        asked = {
            "read what goes to another device?": self._topic(f"dn/{victim}/#"),
            "read what goes to all devices by a wildcard?": self._topic("dn/+/+"),
            "read it by a shared subscription?": f"{share}/{self._federation}/dn/+/+",
            "read what devices send?": self._topic("up/+/+"),
            "read who is there?": self._topic("st/+"),
            "read answers to invitations?": self._topic("en/+/a"),
            "read everything by '#'?": "#",
            "read the broker's own state ($SYS)?": "$SYS/#",
        }
        for question, topics in asked.items():
            probe = self._open(self._device)
            remedy = _REMEDY_READ if topics != "$SYS/#" else "acl_file; or sys_interval 0"
            refused = probe.refused or probe.subscribe(topics)
            name = self._device.user or self._own
            self._readers.append((f"may a device {question}", remedy, name, probe, refused))
        if self._invited is not None:
            probe = self._open(self._invited)
            probe.subscribe(self._topic(f"en/{self._invited.user}/a"))
            refused = probe.refused or probe.subscribe("#")
            question = "may an invitation read anything but its answer?"
            self._readers.append((question, _REMEDY_ENROL, self._invited.user, probe, refused))
            self._watchers.append(probe)

    def _attempts(self) -> Iterator[_Attempt]:
        device, own, victim = self._device, self._own, self._victim
        yield _Attempt("does what a device sends arrive?", device, f"up/{own}/s", allowed=True)
        yield _largest("a device", device, f"up/{own}/c")
        for question, tail, how in (
            ("send as another device?", f"up/{victim}/m", "publish"),
            ("say that another device is away?", f"st/{victim}", "retain"),
            ("say so by its last will?", f"st/{victim}", "will"),
            ("send a task to another device?", f"dn/{victim}/t", "retain"),
            ("send a task to itself?", f"dn/{own}/t", "retain"),
            ("announce to all devices?", self._announcement, "retain"),
            ("announce by its last will?", "all/check-will", "will"),
            ("send a packet that is too large?", f"up/{own}/c", "large"),
            ("send on topics that nobody knows?", f"up/{own}/check", "retain"),
        ):
            remedy = _REMEDY_WRITE if how != "large" else f"max_packet_size {PACKET_BYTES}"
            yield _Attempt(f"may a device {question}", device, tail, remedy, how=how)
        for question, tail in (
            ("use another's invitation?", f"en/{INVITED}{victim}/q"),
            ("answer an invitation?", f"en/{self._invitation}/a"),
        ):
            yield _Attempt(f"may a device {question}", device, tail, _REMEDY_ENROL)
        yield from self._attempts_of_others()

    def _attempts_of_others(self) -> Iterator[_Attempt]:
        coordinator, own, victim = self._coordinator, self._own, self._victim
        if self._rules_are_kept() and not coordinator.user:
            return
        question = "does what the coordinator sends arrive?"
        yield _Attempt(question, coordinator, f"dn/{own}/a", allowed=True)
        yield _largest("the coordinator", coordinator, f"dn/{own}/c")
        for tail in (f"dn/{victim}/a", f"en/{INVITED}{victim}/a", "all/check"):
            yield _Attempt("", coordinator, tail, allowed=True)  # what readers must not get
        if self._invited is None:
            return
        name = self._invited.user
        question = "does the answer to an invitation arrive?"
        yield _Attempt(question, coordinator, f"en/{name}/a", allowed=True)
        question = "does an invitation reach the coordinator?"
        yield _Attempt(question, self._invited, f"en/{name}/q", allowed=True)
        for question, tail in (
            ("send as a device?", f"up/{name}/m"),
            ("say that a device is there?", f"st/{name}"),
            ("use another's invitation?", f"en/{INVITED}{victim}/q"),
            ("announce to all devices?", self._announcement),
        ):
            yield _Attempt(f"may an invitation {question}", self._invited, tail, _REMEDY_ENROL)

    def _send(self, attempt: _Attempt) -> None:
        payload = f"check {len(self._sent)} {self._mark}".encode()
        if attempt.how == "large":
            payload = payload.ljust(3 * PACKET_BYTES)
        elif attempt.how == "largest":
            payload = payload.ljust(MAX_PAYLOAD_BYTES)
        topic = self._topic(attempt.tail)
        will = (topic, payload) if attempt.how == "will" else None
        with BrokerProbe(self._place, attempt.who, will=will) as probe:
            refused = probe.refused
            if not refused and will is not None:
                probe.drop()
            elif not refused:
                refused = probe.publish(topic, payload, retain=attempt.how == "retain")
        self._sent.append(_Sent(attempt, topic, payload, refused))

    def _await_allowed(self) -> None:
        """Until what must arrive has arrived: a slow way takes its time for the rest, too."""
        due = [sent for sent in self._sent if sent.attempt.allowed and self._tells(sent)]
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and not all(map(self._arrived, due)):
            time.sleep(0.02)

    def _arrived(self, sent: _Sent) -> bool:
        return any(
            message.payload == sent.payload
            for probe in self._watchers
            for message in list(probe.messages)
        )

    def _judge(self, sent: _Sent) -> Finding:
        arrived = self._arrived(sent)
        return _sent_finding(sent.attempt, sent, arrived=arrived, told=self._tells(sent))

    def _tells(self, sent: _Sent) -> bool:
        """Whether silence means that it was dropped: somebody who may read there was listening."""
        if sent.attempt.how == "largest" and not self._rules_are_kept():
            return any(map(self._arrived, self._sent))
        known = (self._coordinator, self._device, self._other, self._invited or _NOBODY)
        users = [who.user for who in known]
        return any(user and self._rules.may(user, "read", sent.topic) for user in users)

    def _judge_readers(self) -> Iterator[Finding]:
        for question, remedy, name, probe, refused in self._readers:
            foreign = sorted(
                message.topic
                for message in probe.messages
                if not self._rules.may(name, "read", message.topic)
            )
            if foreign:
                yield Finding(question, f"received {foreign[0]}", Verdict.OPEN, remedy)
            elif refused:
                yield Finding(question, refused, Verdict.CLOSED)
            elif self._coordinator.user or not self._rules_are_kept():
                yield Finding(question, "nothing is delivered", Verdict.CLOSED)
            else:
                yield Finding(question, "nothing came by", Verdict.UNKNOWN)

    def _kept(self) -> Finding:
        """Whether a message on a device's own topic stays for whoever subscribes later."""
        question = "may a device leave retained messages where none belong?"
        topic = self._topic(f"up/{self._own}/s")
        reader = self._open(self._coordinator)
        if reader.refused:
            return Finding(question, "not asked: needs the coordinator's account", Verdict.UNKNOWN)
        with BrokerProbe(self._place, self._device) as device:
            refused = device.publish(topic, b"check", retain=True)
            reader.subscribe(self._topic("up/+/+"))
            time.sleep(SETTLE_S)
            device.publish(topic, b"", retain=True)
        if refused:
            return Finding(question, refused, Verdict.CLOSED)
        if any(message.topic == topic and message.retained for message in reader.messages):
            answer = "on its own few topics; the coordinator ignores them"
            return Finding(question, answer, Verdict.NOTED)
        return Finding(question, "not kept", Verdict.CLOSED)

    def _elsewhere(self) -> Finding:
        """Whether topics of any number of federations can be filled."""
        question = "may a device publish under a federation that it invents?"
        topic = f"{PREFIX}/check-x{self._mark}/up/{self._own}/s"
        with BrokerProbe(self._place, self._coordinator) as reader:
            if reader.refused:
                answer = "not asked: needs the coordinator's account"
                return Finding(question, answer, Verdict.UNKNOWN)
            reader.subscribe(topic)
            with BrokerProbe(self._place, self._device) as device:
                refused = device.publish(topic, b"check")
            time.sleep(SETTLE_S / 2)
            arrived = bool(reader.messages)
        if refused or not arrived:
            return Finding(question, refused or "not delivered", Verdict.CLOSED)
        answer = "yes, and so fill the broker's memory; broker init --federation NAME forbids it"
        return Finding(question, answer, Verdict.NOTED)

    def _takeover(self) -> Finding:
        question = "may a device take over a connection whose client id it knows?"
        victim = self._open(self._coordinator)
        if victim.refused:
            return Finding(question, "not asked: needs the coordinator's account", Verdict.UNKNOWN)
        topic, payload = self._topic(f"up/{self._own}/s"), f"check {self._mark}".encode()
        victim.subscribe(self._topic("up/+/+"))
        with BrokerProbe(self._place, self._device, client_id=victim.client_id) as thief:
            thief.await_end(SETTLE_S / 2)
            with BrokerProbe(self._place, self._device) as device:
                device.publish(topic, payload)
                time.sleep(SETTLE_S / 2)
            if any(message.payload == payload for message in victim.messages):
                answer = thief.refused or "the older connection goes on"
                return Finding(question, answer, Verdict.CLOSED)
        answer = "yes, as MQTT has it; ids are random here, and nobody is told"
        return Finding(question, answer, Verdict.NOTED)

    def _clear(self) -> None:
        """Remove what was retained, as whoever may."""
        topics = {sent.topic for sent in self._sent if sent.attempt.how in ("retain", "will")}
        for who in dict.fromkeys((self._device, self._coordinator)):
            for topic in topics:
                with BrokerProbe(self._place, who) as probe:
                    if not probe.refused:
                        probe.publish(topic, b"", retain=True)

    def _open(self, who: Credential) -> BrokerProbe:
        return self._stack.enter_context(BrokerProbe(self._place, who))

    def _topic(self, tail: str) -> str:
        return f"{PREFIX}/{self._federation}/{tail}"


def _sent_finding(attempt: _Attempt, sent: _Sent, *, arrived: bool, told: bool) -> Finding:
    question = attempt.question
    if attempt.allowed and not arrived and not sent.refused and not told:
        return Finding(question, "accepted; nobody could watch", Verdict.UNKNOWN)
    if attempt.allowed:
        answer = "yes" if arrived else sent.refused or "no"
        verdict = Verdict.WORKS if arrived else Verdict.BROKEN
        return Finding(question, answer, verdict, "" if arrived else attempt.remedy or _REMEDY_ACL)
    if arrived:
        return Finding(question, "yes, it arrives", Verdict.OPEN, attempt.remedy)
    if sent.refused:
        return Finding(question, sent.refused, Verdict.CLOSED)
    if told:
        return Finding(question, "accepted, but not delivered", Verdict.CLOSED)
    return Finding(question, "accepted; nobody could watch", Verdict.UNKNOWN)
