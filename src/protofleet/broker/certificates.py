"""A private certificate authority, and the certificate by which devices know the broker."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protofleet.errors import InputError

AUTHORITY_DAYS = 20 * 365
"""Devices in the field keep it; a new one means to visit each."""
SERVER_DAYS = 825
"""What Apple's systems accept at most."""
_RENEW = dt.timedelta(days=30)
"""So long before its end a certificate is made anew."""
_LEAD = dt.timedelta(days=1)
"""Valid since yesterday: clocks differ."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(name: str) -> Certificate:
    """A self-signed authority (ECDSA over P-256), which signs certificates of servers only."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        **{**_NO_USAGE, "key_cert_sign": True, "crl_sign": True, "digital_signature": True}
    )
    builder = _builder(name, name, key.public_key(), AUTHORITY_DAYS)
    signed = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _packed(signed, key)


def make_server(authority: Certificate, hosts: Iterable[str]) -> Certificate:
    """A server's certificate for all of ``hosts``, names or IP addresses.

    Raises:
        InputError: no host, or one that is neither a name nor an address; an authority that
            cannot be read.
    """
    names = list(dict.fromkeys(hosts))
    if not names:
        raise InputError("broker certificate: expected at least one name or address (--host)")
    issuer, issuer_key = _read(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(**{**_NO_USAGE, "digital_signature": True})
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = _builder(names[0], issuer.subject, key.public_key(), SERVER_DAYS)
    signed = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(map(_general_name, names)), critical=False)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _packed(signed, key)


def hosts_of(certificate: bytes) -> list[str]:
    """Names and addresses that a certificate (PEM) is for.

    Raises:
        InputError: it is no certificate with names.
    """
    try:
        found = x509.load_pem_x509_certificate(certificate)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise InputError(f"broker certificate: {error}") from error
    return [str(name.value) for name in names]


def valid_until(certificate: bytes) -> dt.datetime:
    """When a certificate (PEM) ends, UTC."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def is_good(certificate: bytes, authority: bytes, hosts: Iterable[str]) -> bool:
    """Whether a server's certificate is by ``authority`` (both PEM), for ``hosts``, a month yet."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        names = set(hosts_of(certificate))
    except (ValueError, TypeError, InvalidSignature, InputError):
        return False
    until = found.not_valid_after_utc
    return set(hosts) <= names and until > dt.datetime.now(dt.UTC) + _RENEW


def own_hosts() -> list[str]:
    """This machine's names and addresses, as far as it knows them."""
    name = socket.gethostname()
    local = [] if "." in name else [f"{name}.local"]
    return list(
        dict.fromkeys((own_address(), name, *local, "localhost", "127.0.0.1", "::1")),
    )


def own_address() -> str:
    """This machine's address as its network sees it, else its name; no packet is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        address: str = probe.getsockname()[0]
    return address


_NO_USAGE = dict.fromkeys(
    (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
    False,
)


def _builder(
    subject: str, issuer: str | x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(issuer if isinstance(issuer, x509.Name) else _named(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LEAD)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        plain = host.encode("idna").decode("ascii")
        return x509.DNSName(plain)
    except (ValueError, UnicodeError) as error:
        raise InputError(f"host {host[:80]!r}: expected a name or an IP address") from error


def _packed(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Certificate:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(certificate.public_bytes(pem), private)


def _read(found: Certificate) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(found.certificate)
        key = serialization.load_pem_private_key(found.key, None)
    except (ValueError, TypeError) as error:
        raise InputError(f"broker authority (ca.pem, ca.key): {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError("broker authority (ca.key): expected an elliptic-curve key")
    return certificate, key
