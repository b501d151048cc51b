"""Links without threads: one thread watches the sockets of thousands of devices."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from protofleet.wire.mqtt.connection import Connection, Ending
from protofleet.wire.mqtt.link import (
    FINAL_CODES,
    VERSIONS,
    Disconnected,
    Link,
    LinkEvent,
    LinkOptions,
)
from protofleet.wire.transfers.transfer import Timers

_MISC_S = 10.0
"""Between two looks at the keep-alive, a third of it."""
_BATCH = 32
"""Links that are looked after before those in the middle of something are looked at again."""


class WatchedLink(Link):
    """A link whose connection, back-off and versions are those of ``Link``, driven by ``turn``.

    All methods are for the thread that calls ``turn``.

    Args:
        options: as of ``Link``.

    Attributes:
        connection: the present one; None while the link waits to try again.
        due: when ``turn`` is to be called though the socket says nothing, monotonic seconds.
        unread: what ``get`` will give.
    """

    def __init__(self, options: LinkOptions) -> None:
        super().__init__(options)
        self.connection: Connection | None = None
        self.due = 0.0
        self.unread: deque[LinkEvent] = deque()
        self._attempt = 0
        self._looked_s = time.monotonic()

    def start(self) -> None:
        """Connect now; the broker's greeting comes with a later ``turn``."""
        self._begin()

    def turn(self, now: float, *, readable: bool) -> None:
        """Read and write what can be; connect again if that is due.

        Args:
            now: when the socket was looked at, monotonic seconds.
            readable: what was seen.
        """
        self._looked_s = now
        if self.connection is None:
            if now >= self.due and not self._closing.is_set():
                self._begin()
            return
        self.due = now + _MISC_S
        ending = self.connection.turn(readable=readable)
        if ending is not None:
            self._end(ending)

    @property
    def clock(self) -> float:
        """When the socket was looked at: what has come since is not known."""
        return self._looked_s

    def get(self, timeout_s: float | None = None) -> LinkEvent | None:  # noqa: ARG002 - as of Link
        """The next event that ``turn`` has brought; never waits."""
        return self.unread.popleft() if self.unread else None

    def wake(self) -> None:
        """Nobody waits."""

    def close(self, timeout_s: float = 5.0) -> None:  # noqa: ARG002 - as of Link
        """Say DISCONNECT behind what is written; nothing is waited for."""
        self._closing.set()
        if self.connection is not None:
            self.connection.say_goodbye()
            self.connection.turn(readable=False)

    def _begin(self) -> None:
        self.connection = self._connection = Connection(
            self._options, VERSIONS[self._version], self._counters, self._take
        )
        self.due = time.monotonic() + _MISC_S
        ending = self.connection.begin(self._address, self._tls)
        if ending is not None:
            self._end(ending)

    def _end(self, ending: Ending) -> None:
        self.connection = self._connection = None
        final = ending.code in FINAL_CODES
        self._put(Disconnected(ending.reason, final))
        wait_s, self._attempt = self._after(ending, self._attempt)
        self.due = float("inf") if final else time.monotonic() + wait_s

    def _put(self, event: LinkEvent) -> None:
        self.unread.append(event)


class Watch:
    """Waits for what happens at any of many links.

    ::

        for number, readable in watch.wait(1.0):
            links[number].turn(watch.looked_s, readable=readable)
            watch.note(number, links[number], due)

    Devices answer side by side; here thousands take turns. So that those that somebody waits for
    do not stand behind all that have something to read, they are looked at in between.

    Attributes:
        looked_s: when it looked at the sockets of those that it gives out, monotonic seconds.
    """

    def __init__(self) -> None:
        self._selector: Any = selectors.DefaultSelector()
        self._first: Any = selectors.DefaultSelector()
        self._selector.register(self._first, selectors.EVENT_READ)
        self._timers: Timers[int] = Timers()
        self._known: dict[int, tuple[int, int, bool]] = {}
        self.looked_s = time.monotonic()

    def note(self, number: int, link: WatchedLink, due: float, *, awaited: bool = False) -> None:
        """Watch a link's socket as it is now, and wait for it until ``due`` at most.

        ``awaited``: somebody waits for it, so it comes before others.
        """
        self._timers.set(number, min(due, link.due))
        connection = link.connection
        sock = None if connection is None else connection.socket
        before = self._known.get(number)
        if connection is None or sock is None:
            self.forget(number)
            self._timers.set(number, min(due, link.due))
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE * connection.wants_to_write)
        wanted = sock.fileno(), mask, awaited
        if before == wanted:
            return
        if before is not None and (before[0], before[2]) == (wanted[0], awaited):
            self._of(awaited).modify(sock, mask, number)
        else:
            self._drop(before)
            self._of(awaited).register(sock, mask, number)
        self._known[number] = wanted

    def forget(self, number: int) -> None:
        """Watch this link no longer."""
        self._drop(self._known.pop(number, None))
        self._timers.drop(number)

    def wait(self, most_s: float) -> Iterator[tuple[int, bool]]:
        """Links with something to do, and whether their socket is readable; at most ``most_s``."""
        now = time.monotonic()
        due = self._timers.next()
        timeout = most_s if due is None else max(0.0, min(most_s, due - now))
        ready = self._selector.select(timeout)
        looked_s = time.monotonic()
        for place, (key, mask) in enumerate(ready):
            if place % _BATCH == 0:
                yield from self._awaited()
            if key.data is not None:
                self.looked_s = looked_s
                yield key.data, bool(mask & selectors.EVENT_READ)
        yield from self._awaited()
        self.looked_s = looked_s
        for number in list(self._timers.expired(looked_s)):
            yield number, False

    def close(self) -> None:
        """Watch nothing."""
        self._selector.close()
        self._first.close()

    def _awaited(self) -> Iterator[tuple[int, bool]]:
        ready = self._first.select(0)
        self.looked_s = time.monotonic()
        for key, mask in ready:
            yield key.data, bool(mask & selectors.EVENT_READ)

    def _of(self, awaited: bool) -> Any:  # noqa: FBT001 - of two selectors
        return self._first if awaited else self._selector

    def _drop(self, known: tuple[int, int, bool] | None) -> None:
        if known is not None:
            self._of(known[2]).unregister(known[0])
