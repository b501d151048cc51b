"""Enrols a device with an invitation; killed anywhere, the same command goes on.

Everything that belongs to one invitation (the device's key, the password, the broker's authority)
lies in a folder of its own inside ``<store>/enrolment``. Writing ``enrolment.json``, which names
that folder, is what enrols; an earlier enrolment counts until then.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from msgspec.structs import replace

from protofleet.durable import sync_folder, write_whole
from protofleet.edge.credentials import (
    FOLDER,
    Enrolment,
    device_key,
    load_enrolment,
    save_enrolment,
)
from protofleet.edge.state.store import Store, stored_identity
from protofleet.errors import InputError, ProvisionError, RefusedError, UnavailableError
from protofleet.wire.messages import decode
from protofleet.wire.mqtt.broker_access import (
    BrokerAccess,
    BrokerAddress,
    peer_certificate,
    unchecked_tls,
)
from protofleet.wire.mqtt.link import (
    Connected,
    Disconnected,
    Hindered,
    Link,
    LinkOptions,
    MqttMessage,
)
from protofleet.wire.topics import Topics, invited_account
from protofleet.wire.trust.enrolment import (
    Asked,
    EnrolmentAnswer,
    EnrolmentGrant,
    Invitation,
    InvitationKeys,
    ask,
    check_grant,
    open_answer,
)
from protofleet.wire.trust.identity import public_bytes

ANSWER_S = 180.0
"""How long a device asks for its grant: whoever invites may still have to start something."""
_PARTING_S = 10.0
"""How long it waits to be told that the federation knows; it is enrolled anyway."""
_REPEAT_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_DOUBT_S = 2.0
"""How long a better answer is waited for after a refusal, which anybody may have sent."""
_PATIENT = 3
"""Requests before a word about it: Mosquitto loses messages while it reads its accounts anew."""
_CLOCKS_S = 300
_PASSWORD, _CA, _SERVER = "password", "ca.pem", "broker.pem"

Told = Callable[[str], None]
_Taken = TypeVar("_Taken")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolOptions:
    """How a device enrols.

    Attributes:
        invitation: for it.
        store: the device's folder, made if absent.
        broker: in place of the invitation's; with an account, that is the device's from then on.
        answer_s: seconds to wait for an answer.
    """

    invitation: Invitation
    store: Path
    broker: BrokerAccess | None = None
    answer_s: float = ANSWER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolled:
    """What came of it.

    Attributes:
        new: False: this invitation had enrolled the device before.
        confirmed: whether the federation knows that the device has its grant.
    """

    enrolment: Enrolment
    new: bool
    confirmed: bool


def enrol(options: EnrolOptions, told: Told) -> Enrolled:
    """Make ``options.store`` the store of an enrolled device.

    Args:
        options: how.
        told: takes a line about what is being waited for.

    Raises:
        InputError: the broker is not the one that the invitation names.
        ProvisionError: the store is another device's or federation's.
        RefusedError: the federation refused, or what answered is not this federation.
        UnavailableError: no answer, or the broker lets nobody in with this invitation.
    """
    invitation, store = options.invitation, options.store
    known = stored_identity(store)
    if known not in (None, invitation.device_id):
        raise ProvisionError(
            f"device store '{store}': belongs to device '{known}', the invitation is for "
            f"'{invitation.device_id}'; use another --store"
        )
    with Store.open(store, device_id=invitation.device_id) as opened:
        folder = store / FOLDER
        before = load_enrolment(folder)
        bound = opened.journal.binding
        federation = bound.federation if bound else before.federation if before else None
        if federation not in (None, invitation.federation):
            raise ProvisionError(
                f"device store '{store}': belongs to federation '{federation}', the invitation is "
                f"for '{invitation.federation}'; use another --store"
            )
        return _Enrolling(options, told).run(before)


class _Enrolling:
    """One run of the command, with the store locked."""

    def __init__(self, options: EnrolOptions, told: Told) -> None:
        invitation = options.invitation
        self._options, self._told, self._invitation = options, told, invitation
        self._keys: InvitationKeys = invitation.keys()
        self._clock_told = False
        self._folder = options.store / FOLDER
        self._own = self._folder / self._keys.name
        topics = Topics(invitation.federation)
        self._asks = topics.enrolment_request(invitation.device_id)
        self._answers = topics.enrolment_answer(invitation.device_id)

    def run(self, before: Enrolment | None) -> Enrolled:
        enrolment = before if before and before.files == self._keys.name else None
        new = enrolment is None
        self._patience_s = self._options.answer_s if new else _PARTING_S
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._own.mkdir(mode=0o700, exist_ok=True)
        self._key = device_key(self._own)
        sync_folder(self._folder)
        if enrolment is None:
            with self._link() as link:
                enrolment = self._keep(self._granted(link))
                confirmed = self._confirmed(link)
        else:
            confirmed = self._confirmed_again()
        self._clean()
        return Enrolled(enrolment=enrolment, new=new, confirmed=confirmed)

    @contextmanager
    def _link(self) -> Iterator[Link]:
        link = Link(
            LinkOptions(
                broker=self._access(),
                filters=(self._answers,),
            )
        )
        link.start()
        try:
            yield link
        finally:
            link.close()

    def _access(self) -> BrokerAccess:
        """The broker as the invitation is let in."""
        given = self._options.broker
        access = given or BrokerAccess(url=self._invitation.broker)
        address = access.address()
        if address.tls and access.ca_file is None and self._invitation.certificate:
            access = replace(access, ca_file=self._pinned(address))
        if self._invitation.account and address.user is None:
            name = invited_account(self._invitation.device_id)
            access = access.at(_with_account(access.url, name, self._keys.password))
        return access

    def _pinned(self, address: BrokerAddress) -> Path:
        """The broker's certificate in a file, if it is the one that the invitation names."""
        until = time.monotonic() + self._patience_s
        where = f"broker {address.host}:{address.port}"
        while True:
            try:
                found = peer_certificate(address, unchecked_tls())
                break
            except OSError as error:
                reason = error.strerror or error
                if time.monotonic() > until:
                    raise UnavailableError(f"{where}: {reason}") from error
                self._told(f"{where}: {reason}; trying again")
                time.sleep(min(_REPEAT_S[0], self._patience_s))
        digest = hashlib.sha256(found).hexdigest()
        if digest != self._invitation.certificate:
            raise InputError(
                f"{where}: expected the certificate {self._invitation.certificate[:16]}… that the "
                f"invitation names, got {digest[:16]}…: it was renewed since, or somebody stands "
                "in between; ask for a new invitation"
            )
        path = self._own / _SERVER
        write_whole(path, ssl.DER_cert_to_PEM_cert(found).encode())
        return path

    def _granted(self, link: Link) -> EnrolmentGrant:
        asked, wait_s = self._ask("grant"), self._options.answer_s
        found = self._exchange(link, asked, wait_s, partial(self._grant_in, asked))
        if found is None:
            raise UnavailableError(
                f"federation '{self._invitation.federation}': no answer in {wait_s:.0f} s; "
                "'protofleet device invite' or the coordinator has to run with its key; then the "
                "same command goes on"
            )
        return found

    def _grant_in(self, asked: Asked, answer: EnrolmentAnswer) -> EnrolmentGrant:
        try:
            found = open_answer(answer, asked, self._keys.answer, self._answers)
            check_grant(found, self._invitation, public_bytes(self._key))
        except RefusedError as error:
            raise RefusedError(error.rule, f"{error} ({_clock()})") from error
        return found

    def _keep(self, found: EnrolmentGrant) -> Enrolment:
        name, own = self._keys.name, self._own
        broker = self._lasting_access(found)
        if found.password:
            _write_private(own / _PASSWORD, found.password + "\n")
        if found.ca:
            write_whole(own / _CA, found.ca.encode())
        enrolment = Enrolment(
            federation=self._invitation.federation,
            device_id=self._invitation.device_id,
            grant=found.grant,
            federation_key=found.federation_key,
            broker=broker.to_table(),
            files=name,
        )
        save_enrolment(self._folder, enrolment)
        return enrolment

    def _lasting_access(self, found: EnrolmentGrant) -> BrokerAccess:
        """The broker as the device is let in; files are relative to the enrolment's folder."""
        given = self._options.broker
        access = given or BrokerAccess(url=self._invitation.broker)
        address = access.address()
        files = Path(self._keys.name)
        if found.ca and address.tls and access.ca_file is None:
            access = replace(access, ca_file=files / _CA)
        if address.user is None and found.password:
            user = self._invitation.device_id
            return replace(access, user=user, password_file=files / _PASSWORD)
        if address.user is None or address.password is None:
            return access
        # The operator's account: what was typed, or stood in a URL or a file, is kept privately.
        _write_private(self._own / _PASSWORD, address.password + "\n")
        return replace(access, url=str(access), user=address.user, password_file=files / _PASSWORD)

    def _confirmed(self, link: Link) -> bool:
        try:
            asked = self._ask("taken")
            return bool(self._exchange(link, asked, _PARTING_S, lambda _: True))
        except (UnavailableError, RefusedError):
            return False  # the grant is ours all the same; its first use tells the federation

    def _confirmed_again(self) -> bool:
        """The device was killed before it could tell, or the command was entered twice."""
        try:
            with self._link() as link:
                return self._confirmed(link)
        except (UnavailableError, InputError):
            return False

    def _ask(self, step: Literal["grant", "taken"]) -> Asked:
        device_id = self._invitation.device_id
        return ask(self._key, self._keys, self._asks, device_id=device_id, step=step)

    def _exchange(
        self, link: Link, asked: Asked, wait_s: float, take: Callable[[EnrolmentAnswer], _Taken]
    ) -> _Taken | None:
        """Ask until ``take`` takes an answer; None: none came in time.

        Raises:
            RefusedError: a refusal, or what ``take`` refuses, if nothing better follows: whoever
                can publish here can be quicker than the federation.
            UnavailableError: the broker lets us in no more.
        """
        until, refused = time.monotonic() + wait_s, None
        due, attempt = time.monotonic(), 0
        while (now := time.monotonic()) < until:
            if now >= due and link.connected:
                due = now + self._send(link, asked, attempt)
                attempt += 1
            event = link.get(min(max(due - now, 0.05), until - now, 1.0))
            if isinstance(event, Connected):
                due = now
            elif isinstance(event, Disconnected | Hindered):
                if refused is not None:
                    raise refused
                self._on_trouble(event)
            elif isinstance(event, MqttMessage):
                try:
                    answer = self._answer_in(event, asked)
                    if answer is not None:
                        return take(answer)
                except RefusedError as error:
                    until = until if refused else min(until, now + _DOUBT_S)
                    refused = refused or error
        if refused is not None:
            raise refused
        return None

    def _send(self, link: Link, asked: Asked, attempt: int) -> float:
        """Ask; returns the seconds until the next time."""
        link.publish(self._asks, asked.payload)
        if attempt + 1 == _PATIENT:
            self._told("waiting for the federation's answer")
        return _REPEAT_S[min(attempt, len(_REPEAT_S) - 1)]

    def _answer_in(self, event: MqttMessage, asked: Asked) -> EnrolmentAnswer | None:
        """The answer to this request; what is none was sent by anybody, and is passed over."""
        try:
            answer: EnrolmentAnswer = decode(event.payload, EnrolmentAnswer)
        except RefusedError:
            return None
        if event.retained or answer.answers != asked.request.nonce:
            return None
        self._compare_clocks(answer)
        if answer.rule:
            reason = "".join(c for c in answer.reason[:300] if c.isprintable())
            raise RefusedError(
                answer.rule[:40],
                f"federation '{self._invitation.federation}' refused: {reason}; ask for a new "
                "invitation",
            )
        return answer

    def _on_trouble(self, event: Disconnected | Hindered) -> None:
        where = f"broker {self._options.broker or self._invitation.broker}"
        if isinstance(event, Hindered):
            self._told(f"{where} hinders: {event.reason}")
            return
        if event.forbidden:
            raise UnavailableError(
                f"{where}: {event.reason}: whoever runs it has to let its access list serve "
                f"federation '{self._invitation.federation}' (docs/broker.md); then the same "
                "command goes on"
            )
        if event.final:
            ended = time.strftime(
                "%Y-%m-%d %H:%M UTC", time.gmtime(min(self._invitation.until, 2**35))
            )
            raise UnavailableError(
                f"{where}: {event.reason}: this invitation (until {ended}) was used, replaced or "
                "is over; ask for a new one"
            )
        if "CERTIFICATE_VERIFY_FAILED" in event.reason:
            raise UnavailableError(f"{where}: {event.reason} ({_clock()})")
        self._told(f"{where}: {event.reason}; trying again")

    def _compare_clocks(self, answer: EnrolmentAnswer) -> None:
        ahead = int(time.time()) - answer.time
        if abs(ahead) > _CLOCKS_S and not self._clock_told:
            self._clock_told = True
            where = "ahead of" if ahead > 0 else "behind"
            self._told(f"this device's clock is {abs(ahead)} s {where} the federation's; set it")

    def _clean(self) -> None:
        """What other invitations left, and the certificate that was only compared."""
        (self._own / _SERVER).unlink(missing_ok=True)
        for path in self._folder.iterdir():
            if path.is_dir() and path != self._own:
                shutil.rmtree(path)


def _minute(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _clock() -> str:
    return f"this device's clock: {_minute(time.time())}"


def _with_account(url: str, name: str, password: str) -> str:
    parts = urlsplit(url)
    place = f"{quote(name, safe='')}:{quote(password, safe='')}@{parts.netloc.rpartition('@')[2]}"
    return urlunsplit(parts._replace(netloc=place))


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    descriptor = os.open(path, os.O_WRONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
