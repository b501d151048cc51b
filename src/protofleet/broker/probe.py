"""One MQTT connection, step by step: what a broker answers to each, and what it delivers."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from protofleet.wire.mqtt.broker_access import BrokerAddress

ANSWER_S = 5.0
"""How long an answer is waited for; one over a satellite takes two round trips of 0.7 s."""


_OTHER_VERSION = "(0x84)"
TOO_LARGE = "(0x95)"
NO_ANSWER = "no answer"
_NAMES = {0x95: "Packet too large"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """An account and its password; user '' is nobody."""

    user: str = ""
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlace:
    """Where a broker listens.

    Attributes:
        tls: None: without TLS.
        version: of MQTT, ``5`` or ``3.1.1``.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None
    version: str = "5"

    @classmethod
    def find(cls, address: BrokerAddress, tls: ssl.SSLContext | None) -> Self:
        """The place of an address, with the newest MQTT version that it answers."""
        found = cls(host=address.host, port=address.port, tls=tls)
        if address.version != "3.1.1":
            with BrokerProbe(found, Credential()) as probe:
                if probe.answered and _OTHER_VERSION not in probe.refused:
                    return found
        return cls(host=address.host, port=address.port, tls=tls, version="3.1.1")


@dataclass(frozen=True, slots=True)
class Heard:
    """A delivered message."""

    topic: str
    payload: bytes
    retained: bool


class BrokerProbe:
    """A connection; made when it is entered, with a random client id, ended when it is left.

    Args:
        place: where.
        credential: as whom.
        client_id: '': a random one.
        will: topic and payload of a retained last will.

    Attributes:
        refused: why there is no connection, in the broker's words or the socket's; '' if there is.
        answered: whether the broker said anything.
        ended: why the connection has ended; '' while it lasts.
        messages: what was delivered.
    """

    def __init__(
        self,
        place: BrokerPlace,
        credential: Credential,
        *,
        client_id: str = "",
        will: tuple[str, bytes] | None = None,
    ) -> None:
        self.refused = self.ended = ""
        self.answered = False
        self.messages: list[Heard] = []
        self._place = place
        self._changed = threading.Condition()
        self._answers: dict[int, str] = {}
        self._opened = False
        self._client = client = self._make(client_id)
        if credential.user:
            client.username_pw_set(credential.user, credential.password)
        if will is not None:
            client.will_set(*will, 1, retain=True)

    def __enter__(self) -> Self:
        place = self._place
        try:
            if place.tls is not None:
                self._client.tls_set_context(place.tls)
            self._client.connect_timeout = ANSWER_S
            self._client.connect(place.host, place.port, 30)
        except (OSError, ValueError) as error:
            self.refused = getattr(error, "strerror", None) or str(error)
            return self
        self._client.loop_start()
        if not self._wait(lambda: self._opened or bool(self.refused or self.ended)):
            self.refused = NO_ANSWER
        self.refused = self.refused or ("" if self._opened else self.ended)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    @property
    def client_id(self) -> str:
        """As the broker knows it."""
        return str(self._client._client_id.decode())  # noqa: SLF001 - has no public name

    def subscribe(self, topics: str) -> str:
        """Subscribe with QoS 1; why it was refused, or ''."""
        return self._ask(*self._client.subscribe(topics, 1))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> str:
        """Publish with QoS 1; why it was refused, or ''."""
        sent = self._client.publish(topic, payload, 1, retain)
        return self._ask(sent.rc, sent.mid)

    def await_message(self, timeout_s: float) -> bool:
        """Whether anything is delivered within ``timeout_s``, or has been."""
        self._wait(lambda: bool(self.messages or self.ended), timeout_s)
        return bool(self.messages)

    def await_end(self, timeout_s: float) -> bool:
        """Whether the connection ends within ``timeout_s``."""
        return self._wait(lambda: bool(self.ended), timeout_s)

    def drop(self) -> None:
        """Vanish without a word, so that the broker publishes the will."""
        sock = self._client.socket()
        if isinstance(sock, socket.socket):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._wait(lambda: bool(self.ended))

    def _make(self, client_id: str) -> Client:
        five = self._place.version == "5"
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id or f"check-{time.monotonic_ns():x}{id(self):x}",
            protocol=MQTTProtocolVersion.MQTTv5 if five else MQTTProtocolVersion.MQTTv311,
            clean_session=None if five else True,
            reconnect_on_failure=False,
        )
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        return client

    def _ask(self, sent: MQTTErrorCode, number: int | None) -> str:
        if sent != MQTTErrorCode.MQTT_ERR_SUCCESS or number is None:
            return self.ended or "the connection has ended"
        if not self._wait(lambda: number in self._answers or bool(self.ended)):
            return NO_ANSWER
        return self._answers.get(number, self.ended)

    def _wait(self, condition: Callable[[], bool], timeout_s: float = ANSWER_S) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def _on_connect(
        self, _client: Client, _data: Any, _flags: Any, code: ReasonCode, _props: Properties | None
    ) -> None:
        with self._changed:
            self.answered = True
            self._opened = not code.is_failure
            self.refused = _told(code) if code.is_failure else ""
            self._changed.notify_all()

    def _on_disconnect(
        self, _client: Client, _data: Any, flags: Any, code: ReasonCode, _props: Properties | None
    ) -> None:
        told = flags.is_disconnect_packet_from_server
        with self._changed:
            self.ended = _told(code) if told else "the broker closed the connection"
            self._changed.notify_all()

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        with self._changed:
            found = Heard(message.topic, bytes(message.payload), message.retain)
            self.messages.append(found)
            self._changed.notify_all()

    def _on_publish(
        self, _client: Client, _data: Any, number: int, code: ReasonCode, _props: Properties | None
    ) -> None:
        self._answer(number, [code])

    def _on_subscribe(
        self, _client: Client, _data: Any, number: int, codes: list[ReasonCode], _props: Any
    ) -> None:
        self._answer(number, codes)

    def _answer(self, number: int, codes: list[ReasonCode]) -> None:
        with self._changed:
            self._answers[number] = next((_told(code) for code in codes if code.is_failure), "")
            self._changed.notify_all()


def _told(code: ReasonCode) -> str:
    try:
        name = str(code)
    except (KeyError, ValueError):  # a code that MQTT does not have in this packet, and brokers do
        name = _NAMES.get(code.value, "refused")
    return f"{name} (0x{code.value:02X})"


def speaks_old_tls(host: str, port: int) -> str | None:
    """The protocol that was agreed on, if one below TLS 1.2 was; '' if refused; None: not known.

    None stands for a machine whose own OpenSSL does not offer it any more.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # what is asked is the protocol alone
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
    except (ssl.SSLError, ValueError):
        return None
    try:
        with (
            socket.create_connection((host, port), ANSWER_S) as plain,
            context.wrap_socket(plain) as secured,
        ):
            return secured.version() or "TLS"
    except ssl.SSLError as error:
        return None if "NO_PROTOCOLS_AVAILABLE" in str(error) else ""
    except OSError:
        return ""
