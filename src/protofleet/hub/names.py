"""By which names a hub may be asked for.

A page of somebody else could let its own name point to the hub's address and then read what a
browser in the hub's network gets from it (DNS rebinding): a name that is not the hub's is refused.
Addresses cannot be borrowed like that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit


class Names:
    """Names that count, beside every IP address.

    Args:
        names: of hosts, ``*.example.org`` for one level of any.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names)

    def know(self, host: str) -> bool:
        """Whether ``host`` (of a Host header: a name or an address, with a port or not) counts."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return bool(name) and (
            _is_address(name) or name in self._names or f"*.{name.partition('.')[2]}" in self._names
        )


def is_same_origin(origin: str, host: str) -> bool:
    """Whether a page of ``origin`` (``https://name:port``) is one of the hub asked for as ``host``.

    The scheme may differ: a proxy before the hub may end TLS.
    """
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
