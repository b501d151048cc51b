"""Reading what ``protofleet doctor --json`` says."""

from __future__ import annotations


def levels(rows, check):
    """Levels of a check's lines, in order."""
    return [row["level"] for row in rows if row["check"] == check]


def the(rows, check, level="problem"):
    """The one line of a check at a level; it names a remedy or the text says it."""
    found = [row for row in rows if (row["check"], row["level"]) == (check, level)]
    assert len(found) == 1, rows
    return found[0]
