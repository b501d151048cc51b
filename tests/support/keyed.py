"""A federation with keys, in memory: its key, a coordinator's and devices' credentials."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.errors import RefusedError
from protofleet.wire.trust.coordinator_protection import CoordinatorCredentials
from protofleet.wire.trust.device_protection import DeviceCredentials
from protofleet.wire.trust.identity import (
    CoordinatorCertificate,
    DeviceGrant,
    public_bytes,
    read_statement,
    sign_statement,
)

BUNDLE = "cd" * 32


def in_a_day() -> int:
    """Seconds since 1970."""
    return int(time.time()) + 86_400


@dataclass
class Keyed:
    """The keys of federation ``lab``, and what its ends have noted."""

    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    name: str = "lab"
    announced: int = 0
    heard: dict[str, int] = field(default_factory=dict)
    trusted: dict[str, bytes] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    keys: dict[str, Ed25519PrivateKey] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)

    def coordinator(self, **changed: Any) -> CoordinatorCredentials:
        """Of a coordinator's process; ``changed`` replaces fields of its certificate."""
        key = Ed25519PrivateKey.generate()
        certificate = CoordinatorCertificate(
            **{
                "federation": self.name,
                "run_id": "0123456789abcdef",
                "key": public_bytes(key).hex(),
                "until": in_a_day(),
                **changed,
            }
        )
        return CoordinatorCredentials(
            federation=self.name,
            run_id=certificate.run_id,
            bundle=BUNDLE,
            federation_key=public_bytes(self.key),
            key=key,
            certificate=lambda: sign_statement(self.key, certificate),
            rotations=(),
            grant=self.grant,
            announced=self.announced,
            note=self._note_announced,
        )

    def device(self, device_id: str = "pi-7", **changed: Any) -> DeviceCredentials:
        """Of a device's next process; ``changed`` replaces fields of its grant."""
        key = self.keys.setdefault(device_id, Ed25519PrivateKey.generate())
        grant = DeviceGrant(
            **{
                "federation": self.name,
                "device_id": device_id,
                "key": public_bytes(key).hex(),
                "serial": 1,
                "until": in_a_day(),
                **changed,
            }
        )
        self.starts[device_id] = self.starts.get(device_id, 0) + 1

        def note(sequence: int, federation_key: bytes) -> None:
            self.heard[device_id], self.trusted[device_id] = sequence, federation_key

        return DeviceCredentials(
            federation=self.name,
            device_id=device_id,
            key=key,
            grant=sign_statement(self.key, grant),
            federation_key=self.trusted.get(device_id, public_bytes(self.key)),
            start=self.starts[device_id],
            announced=self.heard.get(device_id, 0),
            note=note,
            refused=lambda: self.told.append(device_id),
        )

    def grant(self, text: str) -> DeviceGrant:
        """As a coordinator checks it."""
        grant = read_statement(text, DeviceGrant, [public_bytes(self.key)], federation=self.name)
        if grant.device_id in self.revoked:
            raise RefusedError("revoked", f"{grant.device_id}: its grant was revoked")
        return grant

    def _note_announced(self, sequence: int) -> None:
        self.announced = sequence


def renamed(credentials: DeviceCredentials, name: str) -> DeviceCredentials:
    """The credentials of one device with another's name."""
    return replace(credentials, device_id=name)
