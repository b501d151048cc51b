"""A broker: whether it answers, by which certificate, what it takes, keeps and forbids."""

from __future__ import annotations

import datetime as dt
import secrets
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec
from cryptography import x509

from protofleet.broker.check import SETTLE_S, Target
from protofleet.broker.check import check as ask
from protofleet.broker.findings import Verdict
from protofleet.broker.folder import PACKET_BYTES, BrokerFolder
from protofleet.broker.probe import (
    ANSWER_S,
    NO_ANSWER,
    TOO_LARGE,
    BrokerPlace,
    BrokerProbe,
    Credential,
    Heard,
)
from protofleet.broker.trial import trial_accounts
from protofleet.doctor.machine import behind, beside
from protofleet.doctor.observations import Check, Observation, ok, problem, warning
from protofleet.doctor.subjects import BrokerSubject
from protofleet.errors import InputError, RefusedError
from protofleet.wire.messages import LeaseRecord
from protofleet.wire.mqtt.broker_access import BrokerAccess, peer_certificate, unchecked_tls
from protofleet.wire.topics import COORDINATOR, PREFIX, is_retained
from protofleet.wire.transfers.chunks import MAX_PACKET_BYTES
from protofleet.wire.trust.identity import SIGNATURE_BYTES
from protofleet.wire.trust.signed_records import is_signed

_SOON = dt.timedelta(days=30)
_DAY = dt.timedelta(days=1)
_SMALLEST, _STEP = 256, 1024
"""Bytes: no broker takes less, and nobody sets a limit more finely."""
_FEWEST_BYTES = 4096
"""Presences, tasks and offers of most federations are shorter."""
_SHOWN = 5
_PARTS, _LONGEST_S, _LOOK_S = 5, 15.0, 0.1
"""A lease is renewed six times in the time that it stands, so a fifth of that is waited for."""


def _account_of(subject: BrokerSubject) -> Credential:
    """Ours."""
    address = subject.access.address()
    return Credential(user=address.user or "", password=address.password)


def _place(subject: BrokerSubject) -> BrokerPlace:
    """Where it listens, and the version that it speaks."""
    return BrokerPlace.find(subject.access.address(), subject.access.tls())


def _reach(subject: BrokerSubject) -> Iterator[Observation]:
    address = subject.access.address()
    where = f"{address.host}, port {address.port}"
    try:
        with socket.create_connection((address.host, address.port), ANSWER_S):
            yield ok(f"{where}: answers")
    except socket.gaierror as error:
        remedy = "the name as the network knows it, or the address"
        yield problem(f"{address.host}: no such name ({error.strerror})", remedy)
    except ConnectionRefusedError:
        remedy = "start the broker (protofleet broker run FOLDER), or give the right port"
        yield problem(f"{where}: nobody listens there", remedy)
    except OSError as error:
        remedy = "a firewall between, or a machine that is off: try from the same network"
        yield problem(f"{where}: {error.strerror or error}", remedy)


_RENEW = "protofleet broker init --renew FOLDER, and reload the broker"
_CA = "--broker-ca (in a file: ca_file): ca.pem of the broker's folder"
_REFUSED: Mapping[int, tuple[str, str]] = {
    9: ("is not valid yet", "set this machine's clock: sudo timedatectl set-ntp true"),
    10: ("has expired", f"{_RENEW}; or this machine's clock is ahead"),
    18: ("is self-signed by somebody whom we do not know", _CA),
    19: ("is signed by an authority that we do not know", _CA),
    20: ("is signed by an authority that we do not know", _CA),
    21: ("is signed by an authority that we do not know", _CA),
    62: ("is for another name", f"one of its names in the URL, or --host NAME with: {_RENEW}"),
    64: ("is for another address", f"one of its names in the URL, or --host NAME with: {_RENEW}"),
}
"""OpenSSL's codes (X509_V_ERR_…): what it means, and what to do."""


def _tls(subject: BrokerSubject) -> Iterator[Observation]:
    address, context = subject.access.address(), subject.access.tls()
    if context is None:
        if address.is_loopback:
            yield ok("none: nothing leaves this machine")
        else:
            remedy = "protofleet broker init makes a certificate; then mqtts://"
            yield problem("none: everyone on the way reads and changes what is said", remedy)
        return
    try:
        peer_certificate(address, context)
    except ssl.SSLCertVerificationError as error:
        meaning, remedy = _REFUSED.get(error.verify_code, (error.verify_message, _CA))
        yield problem(f"its certificate {meaning}{_names(subject)}", remedy)
        return
    except ssl.SSLError as error:
        remedy = "mqtt:// if that port speaks no TLS, else its certfile and keyfile"
        yield problem(f"no TLS connection: {error.reason or error}", remedy)
        return
    yield ok(f"its certificate is for {address.host}, and by whom we trust")


def _names(subject: BrokerSubject) -> str:
    found = _certificate(subject)
    return f" (for {found.subject.rfc4514_string()}, by {found.issuer.rfc4514_string()})"


def _certificate(subject: BrokerSubject) -> x509.Certificate:
    access, context = subject.access, unchecked_tls()
    if access.cert_file is not None:
        context.load_cert_chain(access.cert_file, access.key_file)
    return x509.load_der_x509_certificate(peer_certificate(access.address(), context))


def _expiry(subject: BrokerSubject) -> Iterator[Observation]:
    """The broker's certificate, those of the authorities that we were given, and our own."""
    if not subject.access.address().tls:
        return
    try:
        found = {"the broker's certificate": _certificate(subject)}
    except OSError:
        found = {}  # broker.tls says why there is none
    for path in filter(None, (subject.access.ca_file, subject.access.cert_file)):
        for number, one in enumerate(_certificates_in(path), 1):
            found[f"certificate {number} of '{path}'"] = one
    for name, certificate in found.items():
        yield from _validity(name, certificate)


def _certificates_in(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError as error:
        raise InputError(f"certificate '{path}': expected PEM") from error


def _validity(name: str, certificate: x509.Certificate) -> Iterator[Observation]:
    now = dt.datetime.now(dt.UTC)
    until = certificate.not_valid_after_utc
    begins = certificate.not_valid_before_utc.timestamp()
    late = list(behind(f"{name} begins", begins))
    yield from late
    if until < now:
        yield problem(f"{name} has expired on {until:%Y-%m-%d}", _RENEW)
    elif until < now + _SOON:
        yield warning(f"{name} ends on {until:%Y-%m-%d}, in {(until - now) // _DAY} days", _RENEW)
    elif not late:
        yield ok(f"{name} is valid until {until:%Y-%m-%d}")


def _account(subject: BrokerSubject) -> Iterator[Observation]:
    place, who = _place(subject), _account_of(subject)
    name = f"account '{who.user}'" if who.user else "nobody's account"
    with BrokerProbe(place, who) as probe:
        if probe.refused:
            remedy = (
                "the right user and --broker-password-file, and a broker that has read its "
                "accounts (kill -HUP)"
            )
            yield problem(f"{name}: {probe.refused}", remedy)
            return
    text = f"{name}: let in, MQTT {place.version}"
    yield ok(text if place.version == "5" else f"{text} only: it does not say why it refuses")


def _packet(subject: BrokerSubject) -> Iterator[Observation]:
    """What passes: some brokers acknowledge a packet that is too large for them, and drop it."""
    tries = _Packets(subject)
    most = f"packets of {MAX_PACKET_BYTES:,} bytes, the largest that we send"
    if tries.passes(MAX_PACKET_BYTES):
        yield ok(f"passes on {most}" if tries.watched else f"acknowledges {most}; {_UNWATCHED}")
        return
    low, high = _SMALLEST, MAX_PACKET_BYTES
    while high - low > _STEP:
        middle = (low + high) // 2
        low, high = (middle, high) if tries.passes(middle) else (low, middle)
    verb = "passes on" if tries.watched else "acknowledges"
    text = f"{verb} packets of about {low:,} bytes, and none of {MAX_PACKET_BYTES:,}"
    remedy = (
        f"max_packet_size {PACKET_BYTES}, and no message_size_limit below it (Mosquitto; other "
        "brokers, bridges and proxies have words of their own)"
    )
    if low < _FEWEST_BYTES:
        yield problem(f"{text}: records do not pass", remedy)
    else:
        yield warning(f"{text}: transfers are slower, and long records do not pass", remedy)


_UNWATCHED = "whether they arrive is seen with the coordinator's account alone"


class _Packets:
    """Packets that an account sends to itself where it may: that is, the coordinator's.

    Attributes:
        watched: whether what it sends comes back, so that what does not has been dropped.
    """

    def __init__(self, subject: BrokerSubject) -> None:
        self._place, self._who = _place(subject), _account_of(subject)
        mark = f"check-{secrets.token_hex(4)}"
        own = self._who.user
        tail = f"up/{own}/c" if own not in ("", COORDINATOR) else f"st/{mark}"
        self._topic = f"{PREFIX}/{subject.federation or mark}/{tail}"
        self.watched = self._arrives(_SMALLEST)

    def passes(self, size: int) -> bool:
        """Whether one of ``size`` bytes comes back, or if none does, is acknowledged."""
        return self._arrives(size) if self.watched else self._is_taken(size)

    def _arrives(self, size: int) -> bool:
        with BrokerProbe(self._place, self._who) as probe:
            probe.subscribe(self._topic)
            taken = self._publish(probe, size) != NO_ANSWER and not probe.ended
            return taken and probe.await_message(SETTLE_S)

    def _is_taken(self, size: int) -> bool:
        with BrokerProbe(self._place, self._who) as probe:
            refused = self._publish(probe, size)
            return not probe.ended and refused != NO_ANSWER and TOO_LARGE not in refused

    def _publish(self, probe: BrokerProbe, size: int) -> str:
        # Header (1), length (3), topic's length (2), packet id (2), properties (1).
        return probe.publish(self._topic, bytes(size - len(self._topic) - 9))


def _retained(subject: BrokerSubject) -> Iterator[Observation]:
    """What waits for whoever subscribes: presences, announcement and lease alone belong there."""
    heard = _heard(subject)
    foreign = [one for one in heard if _is_foreign(one)]
    for one in foreign[:_SHOWN]:
        yield warning(
            f"{one.topic}: {len(one.payload)} bytes that belong to nothing of ours",
            f"mosquitto_pub -r -n -t '{one.topic}' with the account of who may write there",
        )
    if len(foreign) > _SHOWN:
        yield warning(f"and {len(foreign) - _SHOWN} more", "as above, for each")
    if not foreign:
        kinds = ", all of kinds that belong there" if heard else ""
        yield ok(f"{len(heard)} messages{kinds}")


def _heard(subject: BrokerSubject) -> list[Heard]:
    name = subject.federation or "+"
    user = _account_of(subject).user
    mine = ("up/+/+", "st/+", "all/#", "dn/+/+")
    tails = mine if user in ("", COORDINATOR) else (f"dn/{user}/#", "all/#")
    with BrokerProbe(_place(subject), _account_of(subject)) as probe:
        for tail in tails:
            probe.subscribe(f"{PREFIX}/{name}/{tail}")
        time.sleep(SETTLE_S)
        return [one for one in list(probe.messages) if one.retained]


def _is_foreign(message: Heard) -> bool:
    if not is_retained(message.topic):
        return True
    try:
        return not isinstance(msgspec.json.decode(_record(message)), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True


def _record(message: Heard) -> bytes:
    """Without the signature, where the federation has keys; nobody checks it here."""
    return message.payload[SIGNATURE_BYTES:] if is_signed(message.payload) else message.payload


def _lease(message: Heard) -> LeaseRecord | None:
    if not message.topic.endswith("/all/lease"):
        return None
    try:
        return msgspec.json.decode(_record(message), type=LeaseRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RefusedError):
        return None


def _clock(subject: BrokerSubject) -> Iterator[Observation]:
    """Against the clock of a coordinator that renews its lease now, else against its last words.

    A lease's epoch is the second in which a coordinator took it (``coordinator/process/lease.py``).
    """
    name = subject.federation or "+"
    with BrokerProbe(_place(subject), _account_of(subject)) as probe:
        probe.subscribe(f"{PREFIX}/{name}/all/lease")
        time.sleep(SETTLE_S)
        kept = [found for one in list(probe.messages) if (found := _lease(one)) is not None]
        standing = [one.valid_s for one in kept if one.step == "held" and one.time_s]
        ends = time.monotonic() + min(max(standing, default=0.0) / _PARTS, _LONGEST_S)
        while time.monotonic() < ends:
            time.sleep(_LOOK_S)
            for message in list(probe.messages):
                lease = None if message.retained else _lease(message)
                if lease is not None and lease.time_s:
                    yield from beside(
                        f"the clock of the coordinator of '{lease.federation}'", lease.time_s
                    )
                    return
    late = [
        told
        for one in kept
        for told in behind("the coordinator spoke last", max(float(one.epoch), one.time_s))
    ]
    text = "no coordinator says what time it is: a clock that is ahead is not noticed here"
    yield from late or [ok(text)]


_LEVELS = {Verdict.UNKNOWN: warning, Verdict.OPEN: problem, Verdict.BROKEN: problem}


def _rights(subject: BrokerSubject) -> Iterator[Observation]:
    """The questions of ``protofleet broker check``; those that are settled count as one line."""
    local_and_open = subject.access.address().is_loopback and not _account_of(subject).user
    if local_and_open and not subject.device:
        yield warning(
            "no accounts: whoever reaches this broker may do everything; not tried further",
            "protofleet broker init, before devices of others connect",
        )
        return
    settled = unknown = 0
    with ExitStack() as stack:
        target = _target(subject)
        if subject.folder is not None:
            target = stack.enter_context(trial_accounts(BrokerFolder.open(subject.folder)))
        for finding in ask(target):
            settled += finding.verdict not in _LEVELS
            unknown += finding.verdict is Verdict.UNKNOWN
            if finding.verdict.failed:
                yield problem(f"{finding.question} {finding.answer}", finding.remedy)
    if unknown:
        remedy = "--device NAME --device-password-file FILE, and the coordinator's account"
        yield warning(f"{unknown} questions cannot be answered with these accounts", remedy)
    yield ok(f"{settled} questions about its access list are settled")


def _device(subject: BrokerSubject) -> Credential | None:
    if not subject.device:
        return None
    file = subject.device_password_file or Path(f"{subject.device}.password")
    nowhere = BrokerAccess(url="mqtt://localhost", user=subject.device, password_file=file)
    return Credential(user=subject.device, password=nowhere.address().password)


def _target(subject: BrokerSubject) -> Target:
    """Whom to try it as; an account that is not the coordinator's is a device's."""
    account, device = _account_of(subject), _device(subject)
    if account.user in ("", COORDINATOR):
        return Target(access=subject.access, device=device, federation=subject.federation)
    nobody = subject.access.without_account()
    federation = subject.federation
    return Target(access=nobody, device=account, other=device, federation=federation)


CHECKS = (
    Check("broker.reach", _reach, decisive=True),
    Check("broker.expiry", _expiry),
    Check("broker.tls", _tls, decisive=True),
    Check("broker.account", _account, decisive=True),
    Check("broker.packet", _packet),
    Check("broker.retained", _retained),
    Check("broker.clock", _clock),
    Check("broker.rights", _rights),
)
