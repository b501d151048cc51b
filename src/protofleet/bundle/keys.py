"""Ed25519 keys: who signs a bundle, and whose bundles a device accepts."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import platformdirs
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protofleet.errors import InputError, UnavailableError
from protofleet.private_files import PRIVATE_FOLDER, check_secret_file, who_else_writes
from protofleet.signatures import fingerprint

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
_MAX_KEY_FILE_BYTES = 4096


def config_folder() -> Path:
    """The user's folder for keys; ``$PROTOFLEET_CONFIG`` overrides it."""
    override = os.environ.get("PROTOFLEET_CONFIG")
    return Path(override) if override else platformdirs.user_config_path("protofleet")


def signing_key_path() -> Path:
    """Where this user's signing key lies."""
    return config_folder() / "signing-key.pem"


def load_or_create_signing_key(path: Path | None = None) -> Ed25519PrivateKey:
    """The signing key at ``path``, made (mode 0600) if there is none.

    Args:
        path: PEM file; default ``signing_key_path()``.

    Raises:
        InputError: the file is no unencrypted Ed25519 key, or others may read it.
    """
    path = path or signing_key_path()
    if not path.exists():
        _create_key_file(path)
    return load_signing_key(path)


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """The private key in the PEM file ``path``.

    Raises:
        InputError: absent, readable by others, or no unencrypted Ed25519 key.
    """
    data = _read_key_file(path)
    check_secret_file(path, "key")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"key '{path}': expected an unencrypted PEM private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"key '{path}': expected an Ed25519 key, got {type(key).__name__}")
    return key


def load_public_key(path: Path) -> bytes:
    """The 32 raw bytes of the public key in the PEM file ``path``.

    Raises:
        InputError: absent, or no Ed25519 public key.
    """
    try:
        key = serialization.load_pem_public_key(_read_key_file(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"key '{path}': expected a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"key '{path}': expected an Ed25519 key, got {type(key).__name__}")
    return key.public_bytes_raw()


def save_public_key(public: bytes, path: Path) -> None:
    """Write a raw public key as a PEM file, which others may read and nobody else may change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pem = Ed25519PublicKey.from_public_bytes(public).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
        file.write(pem)


def trust_folder() -> Path:
    """Folder of the public keys whose bundles this user accepts."""
    return config_folder() / "trusted"


def trust(public: bytes, folder: Path | None = None) -> Path:
    """Add a raw public key to the trust store; returns its file.

    Raises:
        UnavailableError: the store cannot be written.
    """
    path = (folder or trust_folder()) / f"{fingerprint(public)}.pem"
    try:
        _make_folder(path.parent)
        save_public_key(public, path)
    except OSError as error:
        raise UnavailableError(
            f"trust store '{path.parent}': {error.strerror}; set PROTOFLEET_CONFIG to a folder "
            "that this user may write, or give each command the key: --trust FILE"
        ) from error
    return path


def trusted_keys(folder: Path | None = None) -> frozenset[bytes]:
    """Raw public keys of all ``*.pem`` files of the trust store; empty if there is none.

    Raises:
        InputError: a file is no Ed25519 public key, or somebody else may change it.
    """
    folder = folder or trust_folder()
    paths = sorted(folder.glob("*.pem"))
    for path in paths:
        if reason := who_else_writes(path):
            raise InputError(f"trust store '{folder}': its keys may be somebody else's: {reason}")
    return frozenset(load_public_key(path) for path in paths)


def user_trust() -> frozenset[bytes]:
    """Raw public keys that count where nobody names any: the trust store's, and this user's own.

    Raises:
        InputError: as ``trusted_keys`` and ``load_signing_key``.
    """
    path = signing_key_path()
    if not path.exists():
        return trusted_keys()
    return trusted_keys() | {load_signing_key(path).public_key().public_bytes_raw()}


def _create_key_file(path: Path) -> None:
    _make_folder(path.parent)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(file.fileno())  # what others then grant to this key must not outlive it
    # A link appears whole and never replaces: of two processes at once, both use the first key.
    with contextlib.suppress(FileExistsError):
        path.hardlink_to(temporary)
    temporary.unlink()


def _make_folder(folder: Path) -> None:
    """For keys; the one above is made for this user alone, too: a store, the configuration."""
    for made in (folder.parent, folder):
        made.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)


def _read_key_file(path: Path) -> bytes:
    if not path.is_file():
        raise InputError(f"key '{path}': no such file")
    with path.open("rb") as file:
        return file.read(_MAX_KEY_FILE_BYTES)
