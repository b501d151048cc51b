"""Connections as sockets and uvicorn make them, but not any number of them, and not for ever."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 2048
"""Connections at a time, requests and WebSockets, TLS agreed or not."""
MOST_OF_ONE = 256
"""Of them from one address: a household, or a lecture hall behind one router."""
REQUEST_S = 15.0
"""For a whole request, the first one and each that follows."""
USER_TIMEOUT_MS = 120_000
"""The kernel gives up a peer that acknowledges nothing, or reads nothing, for so long."""
MINUTE_S = 60.0
"""An error of the server in this time is told."""
_FILES = 2 * MOST + 512
"""Each may need one more to the broker."""


class LimitedListener(socket.socket):
    """A listening socket that takes so many connections, and so many of one address."""

    def __init__(self, family: int, kind: int) -> None:
        super().__init__(family, kind)
        self._taken: defaultdict[str, list[socket.socket]] = defaultdict(list)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            ConnectionAbortedError: it was one too many, and is closed.
        """
        link, address = super().accept()
        host = address[0]
        if self._is_full(host):
            link.close()
            raise ConnectionAbortedError(f"{host}: too many connections")
        self._taken[host].append(link)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        return link, address

    def _is_full(self, host: str) -> bool:
        if sum(map(len, self._taken.values())) >= MOST:
            for other in list(self._taken):
                self._forget_closed(other)
        self._forget_closed(host)
        mine = len(self._taken.get(host, ()))
        return mine >= MOST_OF_ONE or sum(map(len, self._taken.values())) >= MOST

    def _forget_closed(self, host: str) -> None:
        still = [link for link in self._taken.pop(host, ()) if link.fileno() >= 0]
        if still:
            self._taken[host] = still


class TimedConnection(H11Protocol):
    """Ended where no request comes, or none that is whole."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Set its clock."""
        super().connection_made(transport)
        self.loop.call_later(REQUEST_S, self._watch, None)

    def _watch(self, seen: object) -> None:
        """End the connection if nothing was asked since the request ``seen``, which is answered."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        cycle: Any = getattr(self, "cycle", None)  # None before the first request
        answered = cycle is None or cycle.response_complete
        if answered and cycle is seen:
            self.transport.abort()
        else:
            self.loop.call_later(REQUEST_S, self._watch, cycle)


class FewErrors(logging.Filter):
    """Of a server's errors one a minute passes, which says how many there were.

    Each has a traceback of kilobytes, and whoever finds a request that fails can repeat it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next_at, self._withheld = float("-inf"), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record."""
        now = time.monotonic()
        if now < self._next_at:
            self._withheld += 1
            return False
        if self._withheld:
            record.msg = f"{record.getMessage()} (and {self._withheld} more since the last)"
            record.args = ()
        self._next_at, self._withheld = now + MINUTE_S, 0
        return True


def allow_files() -> None:
    """Let this process open as many files as its connections may need, if the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
