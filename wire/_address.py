"""Broker URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from protofleet.errors import InputError

_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a broker listens and who we are to it."""

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read ``mqtt://[user:password@]host[:port]`` or ``mqtts://…``.

        Raises:
            InputError: another scheme, no host, a bad port, or a path. The message leaves out
                the password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InputError(f"broker URL: {error}") from error
        if parts.scheme not in _PORTS or not parts.hostname or parts.path not in ("", "/"):
            shown = url.rpartition("@")[2][:100]
            raise InputError(f"broker URL: expected mqtt://host:port or mqtts://…, got {shown!r}")
        return cls(
            host=parts.hostname,
            port=port or _PORTS[parts.scheme],
            tls=parts.scheme == "mqtts",
            user=None if parts.username is None else unquote(parts.username),
            password=None if parts.password is None else unquote(parts.password),
        )
