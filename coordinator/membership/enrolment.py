"""Answers devices that enrol with an invitation; beside a coordinator, or as a command alone.

What an enrolment has come to stands in ``members.sqlite``. The accounts of the federation's own
broker follow from it, so a process may be killed anywhere, and several may answer at once.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protofleet.broker.folder import BrokerFolder
from protofleet.coordinator.membership.invitations import Told, own_broker, reload
from protofleet.coordinator.membership.member_records import Invited
from protofleet.coordinator.membership.members import KEY_FILE, Members
from protofleet.errors import InputError, ProtofleetError, RefusedError, UnavailableError
from protofleet.signatures import fingerprint
from protofleet.wire.messages import encode
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import (
    Connected,
    Disconnected,
    Hindered,
    Link,
    LinkOptions,
    MqttMessage,
)
from protofleet.wire.topics import INVITED, Topics
from protofleet.wire.trust.enrolment import (
    EnrolmentAnswer,
    EnrolmentGrant,
    EnrolmentRequest,
    check_request,
    read_request,
    seal_answer,
)
from protofleet.wire.trust.identity import public_bytes

_log = logging.getLogger(__name__)

_POLL_S = 0.5
_LOOK_S = 2.0
"""How often accounts of invitations that ended are looked for."""
_PARTING_S = 5.0
"""Within it a device that has enrolled gets the last answer, before its first account ends."""
_REFUSAL_S = 1.0
"""At most one refusal in this time for each device that is invited, and one for all others."""
_CLOCKS_S = 300


class EnrolmentService:
    """Answers requests on one connection to the broker.

    Args:
        members: of the federation, opened by the thread that runs this.
        access: the coordinator's, to the broker.
        told: takes a line for the operator.
    """

    def __init__(self, members: Members, access: BrokerAccess, told: Told) -> None:
        self._members, self._access, self._told = members, access, told
        self._broker = own_broker(members.folder, members.name)
        self._topics = Topics(members.name)
        self._ca = _authority(self._broker, access)
        self._times: Counter[tuple[str, str]] = Counter()
        self._refused_at: dict[str, float] = {}
        self._link = Link(
            LinkOptions(
                broker=access,
                filters=(self._topics.enrolment_filter,),
            )
        )

    def run(self, stop: Callable[[], bool]) -> None:
        """Answer until ``stop`` says so, which is asked about twice a second.

        Raises:
            UnavailableError: the broker refuses us for good.
        """
        reached, due = True, 0.0
        self._members.forget_invitations()
        self._link.start()
        try:
            while not stop():
                event = self._link.get(_POLL_S)
                if isinstance(event, MqttMessage):
                    self._on_request(event)
                elif isinstance(event, Connected):
                    reached = True
                elif isinstance(event, Disconnected):
                    self._on_disconnected(event, reached=reached)
                    reached = False
                elif isinstance(event, Hindered):
                    self._told(f"broker {self._access} hinders: {event.reason}")
                if time.monotonic() >= due:
                    due = time.monotonic() + _LOOK_S
                    with self._going_on("accounts"):
                        self._end_accounts()
        finally:
            self._link.close()  # after the last answer has left
            with self._going_on("accounts"):
                self._end_accounts(parting_s=0.0)

    def answer(self, device_id: str, payload: bytes, now: float) -> EnrolmentAnswer | None:
        """The answer to a request on a device's topic; None: nothing that deserves one.

        Args:
            device_id: of the topic.
            payload: of the packet.
            now: seconds since 1970.
        """
        try:
            request = read_request(payload)
        except RefusedError as error:
            _log.debug("%s: %s", device_id, error)
            return None
        invited = self._members.invitation(device_id)
        try:
            topic = self._topics.enrolment_request(device_id)
            invited = _proven(invited, request, payload, topic)
        except RefusedError as error:
            return self._refuse_stranger(device_id if invited else "", request, error, now)
        self._compare_clocks(request, now)
        try:
            step = self._grant if request.step == "grant" else self._settle
            return step(invited, request, payload, now)
        except RefusedError as error:
            self._tell(device_id, error.rule, f"refused: {error}")
            return EnrolmentAnswer(
                answers=request.nonce, time=int(now), rule=error.rule, reason=str(error)
            )

    def _on_request(self, event: MqttMessage) -> None:
        device_id = self._topics.enrolling(event.topic)
        if event.retained or device_id is None:
            return
        answer = None
        with self._going_on("a request"):  # its device id is whatever a stranger calls itself
            answer = self.answer(device_id, event.payload, time.time())
        if answer is not None:
            topic = self._topics.enrolment_answer(device_id)
            self._link.publish(topic, encode(answer))

    def _grant(
        self, invited: Invited, request: EnrolmentRequest, payload: bytes, now: float
    ) -> EnrolmentAnswer | None:
        device_id = invited.device_id
        key = self._members.private_key()
        if key is None:
            self._tell(device_id, "key", f"waits for {KEY_FILE} in '{self._members.folder}'")
            return None
        serial, statement = self._members.enrol(key, invited, bytes.fromhex(request.key))
        if invited.taken_s is not None:
            raise RefusedError("used", "the device has enrolled with this invitation before")
        self._give_account(device_id, invited.password)
        if invited.serial is None:
            _log.info("%s: grant %d for key %s", device_id, serial, _key_name(request))
        found = EnrolmentGrant(
            grant=statement,
            federation_key=public_bytes(key).hex(),
            ca=self._ca,
            password=invited.password,
        )
        topic = self._topics.enrolment_answer(device_id)
        own = X25519PrivateKey.generate()
        share, sealed = seal_answer(found, payload, own, invited.keys.answer, topic)
        return EnrolmentAnswer(answers=request.nonce, time=int(now), share=share, sealed=sealed)

    def _settle(
        self, invited: Invited, request: EnrolmentRequest, _payload: bytes, now: float
    ) -> EnrolmentAnswer:
        device_id = invited.device_id
        if invited.serial is None:
            raise RefusedError("grant", "nothing was granted yet")
        self._members.granted(device_id, invited.serial, bytes.fromhex(request.key))
        if self._members.settle(device_id, invited.serial):
            _log.info("%s: enrolled with grant %d", device_id, invited.serial)
        return EnrolmentAnswer(answers=request.nonce, time=int(now))

    def _refuse_stranger(
        self, name: str, request: EnrolmentRequest, error: RefusedError, now: float
    ) -> EnrolmentAnswer | None:
        """An answer from time to time: of 2^128 tokens nobody guesses one, but logs fill up."""
        self._tell(name or "devices that are not invited", error.rule, "a wrong invitation")
        if now < self._refused_at.get(name, 0.0) + _REFUSAL_S:
            return None
        self._refused_at[name] = now
        return EnrolmentAnswer(
            answers=request.nonce, time=int(now), rule=error.rule, reason=str(error)
        )

    def _give_account(self, device_id: str, password: str) -> None:
        if self._broker is None or not password:
            return
        if not self._broker.accounts.check(device_id, password):
            self._broker.accounts.add(device_id, password)
            reload(self._broker, self._told)

    def _end_accounts(self, parting_s: float = _PARTING_S) -> None:
        """Accounts of invitations that are over."""
        if self._broker is None:
            return
        now = time.time()
        still = {
            INVITED + one.device_id
            for one in self._members.invitations()
            if one.is_open(now) or now < (one.taken_s or 0.0) + parting_s
        }
        over = {name for name in self._broker.accounts.names() if name.startswith(INVITED)} - still
        for name in sorted(over):
            self._broker.accounts.remove(name)
        if over:
            self._broker.reload()  # without a word if we may not: what they open is closed here

    def _compare_clocks(self, request: EnrolmentRequest, now: float) -> None:
        ahead = request.time - now
        if abs(ahead) > _CLOCKS_S:
            where = "ahead of" if ahead > 0 else "behind"
            line = f"its clock is {abs(ahead):.0f} s {where} this one"
            self._tell(request.device_id, "clock", line)

    def _tell(self, name: str, kind: str, line: str) -> None:
        """Tell the 1st, 2nd, 4th, 8th … time."""
        self._times[name, kind] += 1
        times = self._times[name, kind]
        if times.bit_count() == 1:
            self._told(f"{name}: {line}" + (f" ({times} times)" if times > 1 else ""))

    @contextmanager
    def _going_on(self, name: str) -> Iterator[None]:
        """A full disk, or files that somebody broke, end no service: they may be put right."""
        try:
            yield
        except (ProtofleetError, OSError, sqlite3.Error) as error:
            self._tell(name, "error", str(error))

    def _on_disconnected(self, event: Disconnected, *, reached: bool) -> None:
        if event.final:
            raise UnavailableError(f"broker {self._access}: {event.reason}")
        if reached:
            self._told(f"broker {self._access}: {event.reason}; trying again")


@contextmanager
def answering(folder: Path, federation: str, access: BrokerAccess) -> Iterator[None]:
    """Devices that enrol are answered within the block, in a thread with its own connection.

    Args:
        folder: of the federation.
        federation: its name.
        access: the coordinator's, to the broker.
    """
    stopped = threading.Event()

    def work() -> None:
        try:
            with Members(folder, federation) as members:
                EnrolmentService(members, access, _log.info).run(stopped.is_set)
        except (ProtofleetError, OSError, sqlite3.Error) as error:
            _log.warning("devices cannot enrol here: %s", error)

    thread = threading.Thread(target=work, name="protofleet-enrolment", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(10.0)


def _authority(broker: BrokerFolder | None, access: BrokerAccess) -> str:
    path = access.ca_file if broker is None else broker.ca
    try:
        return "" if path is None else path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"certificate file '{path}': {error}") from error


def _proven(
    invited: Invited | None, request: EnrolmentRequest, payload: bytes, topic: str
) -> Invited:
    if invited is None or request.device_id != invited.device_id:
        raise RefusedError("token", "no such invitation; a later one may have replaced it")
    check_request(payload, request, invited.keys.proof, topic)
    return invited


def _key_name(request: EnrolmentRequest) -> str:
    return fingerprint(bytes.fromhex(request.key))
