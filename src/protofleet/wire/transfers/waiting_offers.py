"""Offers whose blobs wait for their turn to be sent, as a queue with ranks."""

from __future__ import annotations

from collections.abc import Iterator

from protofleet.wire.messages import TransferOffer

Entry = tuple[str, TransferOffer]
"""A device and what it has offered."""


class WaitingOffers:
    """By transfer id; next is the one of the lowest rank that waits longest.

    Nothing here takes longer when more of them wait.
    """

    def __init__(self) -> None:
        self._by_rank: dict[int, dict[str, Entry]] = {}
        self._ranks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, key: str) -> bool:
        return key in self._ranks

    def __iter__(self) -> Iterator[Entry]:
        return (entry for waiting in self._by_rank.values() for entry in waiting.values())

    def get(self, key: str) -> Entry | None:
        """What waits under this id."""
        return self._by_rank[self._ranks[key]][key] if key in self._ranks else None

    def put(self, key: str, entry: Entry, rank: int) -> None:
        """Wait behind all others of that rank; what waits already keeps rank and place."""
        rank = self._ranks.setdefault(key, rank)
        self._by_rank.setdefault(rank, {})[key] = entry

    def first(self) -> str:
        """Id of the next one.

        Raises:
            ValueError: none waits.
        """
        return next(iter(self._by_rank[min(self._by_rank)]))

    def pop(self, key: str) -> Entry | None:
        """Wait no longer."""
        rank = self._ranks.pop(key, None)
        if rank is None:
            return None
        entry = self._by_rank[rank].pop(key)
        if not self._by_rank[rank]:
            del self._by_rank[rank]
        return entry
