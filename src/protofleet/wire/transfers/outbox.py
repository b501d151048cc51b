"""Publishes of one connection that the broker has not acknowledged, and at which pace they go."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from protofleet.wire.refusals import FAILURE, PASSING

IN_FLIGHT_MAX = 20
"""Publishes without PUBACK; Mosquitto's own default for the other direction."""
CHUNKS_IN_FLIGHT_MAX = 16
"""Of these, chunks: the rest stays free for answers, which must not queue behind a window."""
TRIES_MAX = 6
"""Of one packet: with the pauses between them a minute, after which others get their turn."""
PAUSE_S, PAUSE_MAX_S = 1.0, 30.0


@dataclass(slots=True)
class Outgoing:
    """A publish that the broker has not taken yet; ``tries``: how often it refused it."""

    topic: str
    payload: bytes
    retain: bool
    tries: int = 0


class Outbox:
    """What waits and what is in flight; its caller sends what it hands out, and has a lock.

    Args:
        most: publishes that the broker takes before it has acknowledged the first.
    """

    def __init__(self, most: int = IN_FLIGHT_MAX) -> None:
        self._most = self._window = min(IN_FLIGHT_MAX, most)
        self._in_flight = 0
        self._backlog: deque[Outgoing] = deque()
        # What the broker had no room for, in the order in which it was sent; nothing else is then.
        self._again: list[Outgoing] = []
        self._retained: dict[str, Outgoing] = {}
        self._pause_s = PAUSE_S

    @property
    def unacknowledged(self) -> int:
        """How many are in flight or wait."""
        return self._in_flight + len(self._backlog) + len(self._again)

    @property
    def room(self) -> int:
        """How many chunks may be put before the next acknowledgement."""
        limit = 0 if self._again else min(CHUNKS_IN_FLIGHT_MAX, self._window)
        return max(0, limit - self._in_flight - len(self._backlog))

    def put(self, message: Outgoing) -> list[Outgoing]:
        """Take one; what is to be sent now."""
        if message.retain:
            self._retained[message.topic] = message
        self._backlog.append(message)
        return self._next()

    def acknowledged(self, message: Outgoing, code: int) -> tuple[list[Outgoing], float]:
        """The broker's answer to one; what is to be sent now, and seconds until ``resume``, or 0.

        What it may take later is kept for then, unless that was tried often enough, or a newer
        message has taken its place on the topic.
        """
        self._in_flight -= 1
        pause_s = 0.0
        if code < FAILURE:
            self._window, self._pause_s = min(self._most, self._window + 1), PAUSE_S
        elif code in PASSING and self._counts(message):
            message.tries += 1
            if not self._again:
                self._window = max(1, self._window // 2)
                pause_s, self._pause_s = self._pause_s, min(PAUSE_MAX_S, 2 * self._pause_s)
            self._again.append(message)
        return self._next(), pause_s

    def resume(self) -> list[Outgoing]:
        """The pause is over; what is to be sent now."""
        self._backlog.extendleft(reversed(self._again))
        self._again.clear()
        return self._next()

    def _counts(self, message: Outgoing) -> bool:
        latest = not message.retain or self._retained.get(message.topic) is message
        return latest and message.tries + 1 < TRIES_MAX

    def _next(self) -> list[Outgoing]:
        free = 0 if self._again else max(0, self._window - self._in_flight)
        following = [self._backlog.popleft() for _ in range(min(free, len(self._backlog)))]
        self._in_flight += len(following)
        return following
