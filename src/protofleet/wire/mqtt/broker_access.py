"""Access to a broker: its URL, certificates and password, as one record for every command.

A file says ``broker = "mqtts://user@host"`` or, with more to say, ``broker = {url = "…", …}``.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from protofleet.errors import InputError
from protofleet.private_files import check_secret_file

_log = logging.getLogger(__name__)

PASSWORD_VARIABLE = "PROTOFLEET_BROKER_PASSWORD"  # noqa: S105 - a variable's name
"""Environment variable with the password of a user for whom nothing else names one."""

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_QUERIES = {"": "", "version=5": "5", "version=3.1.1": "3.1.1"}
_TLS_S = 15.0
_FILES = ("ca_file", "cert_file", "key_file", "password_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """What a broker URL says.

    Attributes:
        version: the only MQTT version to try, ``5`` or ``3.1.1``; '': find out.
    """

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None = field(repr=False)
    version: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether nothing that is said to it leaves this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read ``mqtt://[user:password@]host[:port][?version=5|3.1.1]`` or ``mqtts://…``.

        Raises:
            InputError: another scheme, no host, a bad port, a path or another version. The
                message leaves out the password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            # The reason would quote a part of a password that holds / or #.
            raise InputError(
                "broker URL: expected mqtt://host:port or mqtts://…, got one whose host or port "
                "cannot be read; special characters of a user's name are written as %2F"
            ) from None
        version = _QUERIES.get(parts.query)
        known = parts.scheme in _PORTS and version is not None
        if not known or not parts.hostname or parts.path not in ("", "/"):
            shown = url.rpartition("@")[2][:100]
            raise InputError(f"broker URL: expected mqtt://host:port or mqtts://…, got {shown!r}")
        return cls(
            host=parts.hostname,
            port=port or _PORTS[parts.scheme],
            tls=parts.scheme == "mqtts",
            user=None if parts.username is None else unquote(parts.username),
            version=version or "",
            password=None if parts.password is None else unquote(parts.password),
        )


class BrokerAccess(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Where a broker listens, how to know it, and who we are to it.

    As text it is the URL without user and password, so that no log and no message shows them.

    Attributes:
        url: ``mqtt://[user:password@]host[:port]`` or ``mqtts://…``; 1883 and 8883 by default;
            ``?version=3.1.1`` spares brokers that do not answer MQTT 5 the first attempt.
        ca_file: for ``mqtts``: who signs the broker's certificate, or that certificate itself;
            None: the system's authorities.
        cert_file, key_file: for ``mqtts``: our own certificate and its key, where the broker asks.
        user: in place of the URL's.
        password_file: file with the password, in place of the URL's; without either
            ``$PROTOFLEET_BROKER_PASSWORD`` is taken.
        insecure: talk to another machine without TLS all the same.

    Raises:
        InputError: no broker's URL, or parts that do not go together.
    """

    url: str
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        address = BrokerAddress.parse(self.url)
        secured = [name for name in _FILES[:3] if getattr(self, name) is not None]
        if secured and not address.tls:
            raise InputError(f"broker {self}: {secured[0]} needs mqtts://")
        if self.key_file is not None and self.cert_file is None:
            raise InputError(f"broker {self}: key_file needs cert_file")
        if self.user is not None and address.user is not None:
            raise InputError(f"broker {self}: expected one user, got one in the URL and one beside")
        if self.password_file is not None and address.password is not None:
            raise InputError(f"broker {self}: give the password in the URL or in a file, not both")
        if self.password_file is not None and not (self.user or address.user):
            raise InputError(f"broker {self}: password_file needs a user")

    def __str__(self) -> str:
        return _without_credentials(self.url)

    def __repr__(self) -> str:
        return f"BrokerAccess({self})"

    def address(self) -> BrokerAddress:
        """The URL's parts, with the user and the password that stand beside it.

        Raises:
            InputError: the password's file cannot be read, or others can read it.
        """
        found = BrokerAddress.parse(self.url)
        path, user = self.password_file, found.user if self.user is None else self.user
        password = found.password if path is None else self._password(path)
        if password is None and user is not None:
            password = os.environ.get(PASSWORD_VARIABLE)
        return replace(found, user=user, password=password)

    def check_protected(self) -> None:
        """Raise InputError if what is said would cross a network in the open, unless ``insecure``.

        Every link asks before it connects, and says in the log what is open if it may.
        """
        found = BrokerAddress.parse(self.url)
        if found.tls or found.is_loopback:
            return
        what = (
            f"broker {self}: mqtt:// to another machine: everyone on the way reads passwords, "
            "models and updates, and can change them"
        )
        if not self.insecure:
            raise InputError(
                f"{what}; use mqtts:// ('protofleet broker init' makes what the broker needs), or, "
                "in a network that you trust as a whole, --insecure (in a file: insecure = true)"
            )
        _log.warning("%s; --insecure allows it", what)

    def check_keyless(self) -> None:
        """Raise InputError if records without keys would go elsewhere, unless ``insecure``.

        TLS ends at the broker: without keys whoever runs it, or has one account too much, reads and
        forges everything.
        """
        if BrokerAddress.parse(self.url).is_loopback:
            return
        what = (
            f"broker {self}: without keys whoever runs the broker, or can publish there, reads "
            "models and updates and speaks as any device or as the coordinator"
        )
        if not self.insecure:
            raise InputError(
                f"{what}; enrol the devices ('protofleet device invite') and give the federation "
                'file keys = "FOLDER", or, where you trust all of them, --insecure (in a file: '
                "insecure = true)"
            )
        _log.warning("%s; --insecure allows it", what)

    def split_password(self) -> tuple[BrokerAccess, str | None]:
        """The same without the URL's password, and that: a file or a child's command needs none."""
        url = urlsplit(self.url)
        if url.password is None:
            return self, None
        user, _, place = url.netloc.rpartition("@")
        plain = url._replace(netloc=f"{user.partition(':')[0]}@{place}")
        return self.at(urlunsplit(plain)), unquote(url.password)

    def tls(self) -> ssl.SSLContext | None:
        """What checks the broker's certificate and shows ours; None without TLS.

        Raises:
            InputError: a certificate file cannot be used, or others can read our key.
        """
        if not BrokerAddress.parse(self.url).tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            # As Python 3.13 does by itself: ca_file may be the broker's own certificate.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if self.cert_file is not None:
                check_secret_file(self.key_file or self.cert_file, f"broker {self}: key_file")
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:
            raise InputError(f"certificate files for {self}: {error}") from error
        return context

    def under(self, folder: Path) -> BrokerAccess:
        """The same with absolute paths; relative ones start at ``folder``."""
        files = {name: getattr(self, name) for name in _FILES}
        placed = {name: (folder / path).absolute() for name, path in files.items() if path}
        return msgspec.structs.replace(self, **placed)

    def with_user(self, user: str) -> BrokerAccess:
        """The same with another user's name, in place of the URL's too."""
        return msgspec.structs.replace(self, url=_without_credentials(self.url), user=user)

    def without_account(self) -> BrokerAccess:
        """The same place and certificates, as nobody."""
        url = _without_credentials(self.url)
        return msgspec.structs.replace(self, url=url, user=None, password_file=None)

    def moved(self, url: str) -> BrokerAccess:
        """Another broker, with the account and the certificates of this one.

        A user in ``url`` is another account, without this one's password unless it is the same
        user; without TLS there are no certificates.
        """
        there, here = BrokerAddress.parse(url), BrokerAddress.parse(self.url)
        user = here.user if self.user is None else self.user
        credentials, _, _ = urlsplit(self.url).netloc.rpartition("@")
        if there.user is None and here.user is not None:
            parts = urlsplit(url)
            url = urlunsplit(parts._replace(netloc=f"{credentials}@{parts.netloc}"))
        same_account = there.user in (None, user)
        secured = {name: getattr(self, name) if there.tls else None for name in _FILES[:3]}
        keeps_password = same_account and there.password is None
        return msgspec.structs.replace(
            self,
            url=url,
            user=self.user if there.user is None else None,
            password_file=self.password_file if keeps_password else None,
            **secured,
        )

    def at(self, url: str) -> BrokerAccess:
        """The same by another URL, such as a proxy's."""
        return msgspec.structs.replace(self, url=url)

    def to_table(self) -> dict[str, Any]:
        """What a TOML or JSON file says of it."""
        found: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        return found

    def _password(self, path: Path) -> str:
        try:
            check_secret_file(path, f"broker {self}: password_file")
            return path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"broker {self}: password_file {path}: {error}") from error


def peer_certificate(address: BrokerAddress, context: ssl.SSLContext) -> bytes:
    """The certificate (DER) that a broker shows, as far as ``context`` checks it.

    Raises:
        OSError: no answer, no TLS, or a certificate that ``context`` refuses.
    """
    with (
        socket.create_connection((address.host, address.port), _TLS_S) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def unchecked_tls() -> ssl.SSLContext:
    """A context that takes every certificate, to compare one with what is known of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def broker_as_table(values: Mapping[str, Any]) -> dict[str, Any]:
    """A file's values, with ``broker = "URL"`` written out as ``broker = {url = "URL"}``.

    ``insecure = true`` beside it becomes the table's.
    """
    found = dict(values)
    if isinstance(found.get("broker"), str):
        found["broker"] = {"url": found["broker"]}
    if isinstance(found.get("broker"), dict) and "insecure" in found:
        found["broker"] = {**found["broker"], "insecure": found.pop("insecure")}
    return found


def _without_credentials(url: str) -> str:
    head, separator, place = url.rpartition("@")
    return f"{head.partition('://')[0]}://{place}" if separator else url
