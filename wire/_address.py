"""Broker URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from protofleet.errors import InputError

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_QUERIES = {"": "", "version=5": "5", "version=3.1.1": "3.1.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a broker listens and who we are to it.

    Attributes:
        version: the only MQTT version to try, ``5`` or ``3.1.1``; '': find out.
    """

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None
    version: str = ""

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
        except ValueError as error:
            raise InputError(f"broker URL: {error}") from error
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
