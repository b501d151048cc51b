"""Answers of a broker, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What an answer means."""

    CLOSED = "closed"
    OPEN = "OPEN"
    WORKS = "works"
    BROKEN = "BROKEN"
    NOTED = "noted"
    UNKNOWN = "unknown"

    @property
    def failed(self) -> bool:
        """Whether something has to be done."""
        return self in (Verdict.OPEN, Verdict.BROKEN)


@dataclass(frozen=True, slots=True)
class Finding:
    """A question, the broker's answer, and what it means.

    Attributes:
        remedy: what to do about it; '' unless something has to be done.
    """

    question: str
    answer: str
    verdict: Verdict
    remedy: str = ""
