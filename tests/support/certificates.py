"""An authority, a broker's certificate and clients' certificates, made anew for a test."""

from __future__ import annotations

import datetime as dt
import inspect
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_USAGES = inspect.signature(x509.KeyUsage).parameters


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate and its key."""

    file: Path
    key: Path


class Authority:
    """Signs certificates into ``folder``; ``file`` is its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign("test authority", self._key, issues=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def certify(self, name: str) -> Certificate:
        """A certificate for ``name``; valid for a server on 127.0.0.1 too."""
        key = ec.generate_private_key(ec.SECP256R1())
        found = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        signed = self._sign(name, key, issues=False)
        found.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        found.key.touch(mode=0o600)
        found.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return found

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, *, issues: bool):
        now = dt.datetime.now(dt.UTC)
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        usage = dict.fromkeys(_USAGES, False) | {"digital_signature": True, "key_cert_sign": issues}
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named("test authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
            # Python 3.13 asks for these three.
            .add_extension(own, critical=False)
            .add_extension(issuer, critical=False)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.BasicConstraints(ca=issues, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
