"""How much of one blob a receiver may ask for."""

from __future__ import annotations

from protofleet.wire.messages import TransferOffer

FREE_COPIES = 3
"""A link that loses every other packet needs fewer; a receiver that asks for more has to wait."""
COPY_S = 600.0
CHUNK_S = 15.0
"""Then it gets the blob in the former time, or a chunk in the latter if that is more."""


class Allowance:
    """Bytes of one blob that a receiver may still ask for; refilled slowly.

    Without it, a few hundred kilobytes of asking are answered with gigabytes.

    Attributes:
        key: the transfer.
    """

    __slots__ = ("_at", "_left", "_most", "_rate", "key")  # there is one for each device

    def __init__(self, offer: TransferOffer, now: float) -> None:
        self.key = offer.transfer_id
        chunk_bytes = min(offer.chunk_bytes, offer.total_bytes)
        self._most = float(FREE_COPIES * offer.total_bytes)
        self._rate = max(offer.total_bytes / COPY_S, chunk_bytes / CHUNK_S)
        self._left, self._at = self._most, now

    def left(self, now: float) -> int:
        """Bytes that may be sent now."""
        self._left = min(self._most, self._left + self._rate * (now - self._at))
        self._at = now
        return int(self._left)

    def spend(self, count: int) -> None:
        """``count`` bytes are sent."""
        self._left -= count
