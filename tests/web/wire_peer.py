"""The federation's end of the wire for the browser's tests: JSON lines in, JSON lines out.

A line ``{"do": NAME, …}`` is answered with what the method of that name returns, or with
``{"rule": …, "message": …}`` where it refused. Bytes are hexadecimal digits.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from keyed import Keyed, in_a_day

from protofleet.errors import InputError, RefusedError
from protofleet.signatures import fingerprint
from protofleet.wire.messages import (
    Announcement,
    AnyMessage,
    Presence,
    TransferOffer,
    decode,
    encode,
)
from protofleet.wire.topics import Topics
from protofleet.wire.transfers.chunks import Chunk, ChunkCipher, pack, parse
from protofleet.wire.trust.coordinator_protection import CoordinatorProtection
from protofleet.wire.trust.enrolment import (
    EnrolmentAnswer,
    EnrolmentGrant,
    Invitation,
    check_request,
    read_request,
    seal_answer,
)
from protofleet.wire.trust.identity import DeviceGrant, public_bytes, sign_statement

Reply = dict[str, Any]


class Peer:
    """One federation ``lab``, its coordinator, and whoever invites devices."""

    def __init__(self) -> None:
        self._keyed = Keyed()
        self._coordinator = CoordinatorProtection(self._keyed.coordinator())
        self._invitations: dict[str, Invitation] = {}

    def federation_key(self) -> Reply:
        return {"key": public_bytes(self._keyed.key).hex()}

    def grant(self, device_id: str, key: str) -> Reply:
        return {"grant": self._grant(device_id, key)}

    def restart(self) -> Reply:
        self._coordinator = CoordinatorProtection(self._keyed.coordinator())
        return {}

    def record(self, record: str) -> Reply:
        """The same record as this end writes it."""
        message: Any = decode(bytes.fromhex(record), AnyMessage)
        return {"record": encode(message).hex()}

    def announce(self, record: str) -> Reply:
        announcement: Announcement = decode(bytes.fromhex(record), Announcement)
        payload = self._coordinator.write(announcement, Topics("lab").announcement, "")
        return {"payload": payload.hex() if payload else ""}

    def meet(self, payload: str, topic: str, device_id: str) -> Reply:
        presence = self._coordinator.read(bytes.fromhex(payload), topic, device_id, Presence)
        return {"record": encode(presence).hex() if presence else ""}

    def open(self, payload: str, topic: str, device_id: str) -> Reply:
        return {"record": self._coordinator.open(bytes.fromhex(payload), topic, device_id).hex()}

    def seal(self, record: str, topic: str, device_id: str) -> Reply:
        sealed = self._coordinator.seal(bytes.fromhex(record), topic, device_id)
        return {"payload": sealed.hex() if sealed else ""}

    def check_offer(self, record: str, device_id: str) -> Reply:
        offer: TransferOffer = decode(bytes.fromhex(record), TransferOffer)
        self._coordinator.check_offer(device_id, offer)
        return {}

    def pack(self, chunk: Reply, key: str) -> Reply:
        made = Chunk(**chunk | {"data": bytes.fromhex(chunk["data"])})
        sealed = ChunkCipher(key, made.transfer_id).seal(made) if key else made
        return {"payload": pack(sealed).hex()}

    def parse(self, payload: str, key: str) -> Reply:
        chunk = parse(bytes.fromhex(payload))
        found = ChunkCipher(key, chunk.transfer_id).open(chunk) if key else chunk
        return {
            "transfer_id": found.transfer_id,
            "index": found.index,
            "last": found.last,
            "data": bytes(found.data).hex(),
        }

    def invite(self, device_id: str, broker: str, until: int) -> Reply:
        invitation = Invitation(
            federation="lab",
            device_id=device_id,
            broker=broker,
            fingerprint=fingerprint(public_bytes(self._keyed.key)),
            until=until,
            certificate=secrets.token_hex(32),
            account=True,
        )
        self._invitations[device_id] = invitation
        keys = invitation.keys()
        return {"text": str(invitation), "password": keys.password, "name": keys.name}

    def answer(self, payload: str, device_id: str) -> Reply:
        """What a request is answered with, and the step that it asked for."""
        topics, request = Topics("lab"), bytes.fromhex(payload)
        keys, record = self._invitations[device_id].keys(), read_request(request)
        check_request(request, record, keys.proof, topics.enrolment_request(device_id))
        share = sealed = ""
        if record.step == "grant":
            grant = EnrolmentGrant(
                grant=self._grant(device_id, record.key),
                federation_key=public_bytes(self._keyed.key).hex(),
                ca="-----BEGIN CERTIFICATE-----\n",
                password="päss",  # noqa: S106 - not of any account
            )
            own, place = X25519PrivateKey.generate(), topics.enrolment_answer(device_id)
            share, sealed = seal_answer(grant, request, own, keys.answer, place)
        answer = EnrolmentAnswer(answers=record.nonce, time=record.time, share=share, sealed=sealed)
        return {"payload": encode(answer).hex(), "step": record.step}

    def _grant(self, device_id: str, key: str) -> str:
        grant = DeviceGrant(
            federation="lab", device_id=device_id, key=key, serial=1, until=in_a_day()
        )
        return sign_statement(self._keyed.key, grant)


def main() -> None:
    peer = Peer()
    for line in sys.stdin:
        order = json.loads(line)
        method: Callable[..., Reply] = getattr(peer, order.pop("do"))
        try:
            reply = method(**order)
        except RefusedError as error:
            reply = {"rule": error.rule, "message": str(error)}
        except InputError as error:
            reply = {"rule": "input", "message": str(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
