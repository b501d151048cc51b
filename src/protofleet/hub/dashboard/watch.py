"""The runs that a dashboard shows, read at most once a second for all viewers together."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from protofleet.coordinator.ledger.queries import read_identity
from protofleet.federation.settings import FederationConfig
from protofleet.hub.dashboard.reading import RunReader
from protofleet.hub.dashboard.records import RunSnapshot

EVERY_S = 1.0
_ALIVE_EVERY_S = 15.0
"""Of silence; then a line that says nothing keeps proxies from ending the stream."""
_TAKEN = ("static", "events", "sign-in", "sign-out", "federations")
"""Paths below ``/dashboard`` that are no runs."""


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run that is shown.

    Attributes:
        key: names it in addresses.
        folder: its run folder.
        config: of its federation file; None: only the folder was given.
    """

    key: str
    folder: Path
    config: FederationConfig | None = None

    def reader(self) -> RunReader:
        """Reads its folder from the beginning."""
        if self.config is None:
            return RunReader(self.key, self.folder)
        return RunReader(self.key, self.folder, self.config.federation, self.config.rounds)


def run_keys(runs: Sequence[WatchedRun]) -> list[str]:
    """A key for each run, made of its federation's or its folder's name, none twice."""
    keys: list[str] = []
    for run in runs:
        told = run.config.federation if run.config else read_identity(run.folder).get("federation")
        name = told or run.folder.resolve().name
        key = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-") or "run"
        while key in keys or key in _TAKEN:
            key += "-2"
        keys.append(key)
    return keys


class Watch:
    """Reads runs for whoever looks, and not when nobody does.

    Args:
        runs: at least one, each with its own key.
    """

    def __init__(self, runs: Sequence[WatchedRun]) -> None:
        self.runs = {run.key: run for run in runs}
        self._readers = {run.key: run.reader() for run in runs}
        self._found: dict[str, RunSnapshot] = {}
        self._read_s = float("-inf")
        self._lock = asyncio.Lock()

    async def snapshots(self) -> dict[str, RunSnapshot]:
        """All runs by key, at most a second old; unchanged runs are the same objects as before."""
        async with self._lock:
            if time.monotonic() >= self._read_s + EVERY_S:
                self._found = await asyncio.to_thread(self._read)
                self._read_s = time.monotonic()
            return self._found

    def forget(self) -> None:
        """Read anew for the next who asks: something was just done."""
        self._read_s = float("-inf")

    async def changes(self) -> AsyncIterator[str]:
        """Server-sent events: ``changed`` whenever a run has, at most once a second."""
        seen = await self.snapshots()
        told_s = time.monotonic()
        yield "retry: 2000\n\n"
        while True:
            await asyncio.sleep(EVERY_S)
            found = await self.snapshots()
            if any(found[key] is not seen.get(key) for key in found):
                seen, told_s = found, time.monotonic()
                yield "event: changed\ndata:\n\n"
            elif time.monotonic() >= told_s + _ALIVE_EVERY_S:
                told_s = time.monotonic()
                yield ": alive\n\n"

    def _read(self) -> dict[str, RunSnapshot]:
        return {key: reader.read() for key, reader in self._readers.items()}
