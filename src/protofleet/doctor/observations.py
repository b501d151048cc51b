"""What a check says: how it is, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Level(Enum):
    """How it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that a check has found.

    Attributes:
        text: what, on one line.
        remedy: what to do; '' where all is well, or where ``text`` says it.
    """

    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a subject.

    Attributes:
        name: for programs; it stays the same from version to version.
        run: asks; errors of this package and of the system count as problems.
        decisive: after a problem here the subject's further checks would only repeat it.
    """

    name: str
    run: Callable[[Any], Iterable[Observation]]
    decisive: bool = False


def ok(text: str) -> Observation:
    """All is well."""
    return Observation(Level.OK, text)


def warning(text: str, remedy: str) -> Observation:
    """It works, and something is to be looked at."""
    return Observation(Level.WARNING, text, remedy)


def problem(text: str, remedy: str = "") -> Observation:
    """Something does not work, or is open to others."""
    return Observation(Level.PROBLEM, text, remedy)
