"""Ed25519 public keys, as bundles and messages alike are checked with them."""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def fingerprint(public: bytes) -> str:
    """First 32 hex digits of the SHA-256 of the raw public key, for people to compare."""
    return hashlib.sha256(public).hexdigest()[:32]


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether ``signature`` (64 bytes) over ``message`` was made by ``public`` (32 raw bytes)."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
