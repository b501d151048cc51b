"""Processor time of other processes, as Linux tells it; elsewhere there is none to be had."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def descendants(process: int) -> frozenset[int]:
    """The process, those that it has started, theirs, and so on; without the one that asks."""
    parents = {
        int(folder.name): int(fields[1])
        for folder in _PROC.glob("[0-9]*")
        if (fields := _fields(int(folder.name)))
    }
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return frozenset(found - {os.getpid()})


def cpu_s(process: int) -> float:
    """Seconds of processor time that a process has used; 0 of one that is gone."""
    fields = _fields(process)
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _fields(process: int) -> list[str]:
    """What stands in its ``stat`` behind the name, which may hold anything."""
    try:
        text = (_PROC / str(process) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
