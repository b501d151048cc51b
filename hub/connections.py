"""HTTP connections as uvicorn makes them, but not any number of them, and not for ever."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 2048
"""Connections at a time, requests and WebSockets."""
MOST_OF_ONE = 256
"""Of them from one address: a household, or a lecture hall behind one router."""
REQUEST_S = 15.0
"""For a whole request, the first one and each that follows."""
USER_TIMEOUT_MS = 120_000
"""The kernel gives up a peer that acknowledges nothing, or reads nothing, for so long."""
_FILES = 2 * MOST + 512
"""Each may need one more to the broker."""


class LimitedConnection(H11Protocol):
    """Closed at once where there are too many, and where no request comes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, and set its clock."""
        super().connection_made(transport)
        clients = [getattr(one, "client", None) for one in self.connections]
        same = sum(client is not None and client[:1] == self._host for client in clients)
        if len(self.connections) > MOST or same > MOST_OF_ONE:
            transport.abort()
            return
        link = transport.get_extra_info("socket")
        if link is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            with suppress(OSError):  # no TCP
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        self.loop.call_later(REQUEST_S, self._watch, None)

    @property
    def _host(self) -> tuple[str, ...]:
        return () if self.client is None else self.client[:1]

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


def allow_files() -> None:
    """Let this process open as many files as its connections may need, if the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
