"""Whether the chunks of a transfer are known to arrive, seen from who sends them.

A broker of MQTT 3.1.1, a bridge or a proxy may drop what is too large for it without a word: then
the other end asks for the same chunks again and again, and its small questions come through.

Pure: indices and times in.
"""

from __future__ import annotations

from itertools import chain, islice, starmap

from protofleet.wire.messages import Need, TransferOffer

SILENCE_S = 25.0
"""So long after the first question nothing has come ..."""
LOOKED_AT = 16
"""Chunks of a question; more are not sent for one."""
VAIN_ASKS = 3
"""... and so often the same was asked for: a lost packet or two do not look so."""

MOST_ASKS = 64
"""Whoever asks more often is not waiting."""


class Passage:
    """One transfer in one grid.

    Attributes:
        arrived: a chunk that is no shorter than the others is known to be there.
    """

    __slots__ = ("_last", "_sent", "_since", "_vain", "arrived")  # there is one for each device

    def __init__(self, offer: TransferOffer) -> None:
        self.arrived = False
        count = -(-offer.total_bytes // offer.chunk_bytes)
        # The end of a blob is shorter, and says nothing of the others.
        self._last = count - 1 if count > 1 else -1
        self._sent: set[int] = set()
        self._since = float("inf")
        self._vain = 0

    def sent(self, index: int) -> None:
        """A chunk goes out."""
        if not self.arrived and index != self._last:
            self._sent.add(index)

    def silent_s(self, now: float) -> float:
        """How long ago the other end asked for the first time."""
        return now - self._since

    def is_blocked(self, need: Need, now: float, *, shared: bool) -> bool:
        """The other end asks: whether nothing of what was sent seems to come through.

        ``shared``: chunks travel to all, so that what it asks for by itself may begin anywhere.
        """
        if self.arrived:
            return False
        asked = set(islice(chain.from_iterable(starmap(range, need.missing)), LOOKED_AT))
        asked.discard(self._last)
        if not asked:
            return False
        self.arrived = self._is_progress(asked, need, shared=shared)
        if self.arrived:
            self._sent.clear()
        if self.arrived or need.listening:
            return False
        self._since = min(self._since, now)
        self._vain += bool(self._sent) and (shared or asked <= self._sent)
        return VAIN_ASKS <= self._vain <= MOST_ASKS and self.silent_s(now) >= SILENCE_S

    def _is_progress(self, asked: set[int], need: Need, *, shared: bool) -> bool:
        if need.listening:  # it names all that it lacks
            return 0 not in asked
        if not self._sent and not shared:
            return 0 not in asked  # it asks from the beginning, so that is there from before
        # What is silent asks for the same, or from the end backwards; only what comes leads on.
        new = asked - self._sent
        return len(self._sent) > 1 and any(index - 1 in self._sent for index in new)
