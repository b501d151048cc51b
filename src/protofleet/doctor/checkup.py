"""Asks every check about every subject; a module for each kind of subject has its checks."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator

import msgspec

from protofleet.doctor.observations import Check, Level, Observation, problem
from protofleet.doctor.subjects import Subject
from protofleet.errors import ProtofleetError
from protofleet.extras import missing_module


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """One line of what was found.

    Attributes:
        check: its name, for programs.
        subject: what was examined.
        level: ``ok``, ``warning`` or ``problem``.
        text: what was found.
        remedy: what to do; '' if nothing, or if ``text`` says it.
    """

    check: str
    subject: str
    level: Level
    text: str
    remedy: str


def examine(subjects: Iterable[Subject]) -> Iterator[Diagnosis]:
    """Everything about ``subjects``, told as it is found.

    What this package raises, what the system refuses, and an extra that is not installed are
    problems of the subject.
    """
    for subject in subjects:
        for check in checks_of(subject):
            found = False
            for one in _observed(check, subject):
                found = found or one.level is Level.PROBLEM
                yield Diagnosis(
                    check=check.name,
                    subject=str(subject),
                    level=one.level,
                    text=one.text,
                    remedy=one.remedy,
                )
            if found and check.decisive:
                break


def checks_of(subject: Subject) -> tuple[Check, ...]:
    """The checks of a kind of subject; one that says what to install, where its module lacks it."""
    try:
        module = importlib.import_module(f"protofleet.doctor.{subject.kind}")
    except ModuleNotFoundError as error:
        lack = _lack(error)
        return (Check(f"{subject.kind}.extra", lambda _: [lack]),)
    checks: tuple[Check, ...] = module.CHECKS
    return checks


def _observed(check: Check, subject: Subject) -> Iterator[Observation]:
    try:
        yield from check.run(subject)
    except ProtofleetError as error:
        yield problem(str(error))
    except ModuleNotFoundError as error:
        yield _lack(error)
    except OSError as error:
        where = f"'{error.filename}': " if error.filename else ""
        yield problem(f"{where}{error.strerror or error}")


def _lack(error: ModuleNotFoundError) -> Observation:
    lack = missing_module(error)
    if lack is None:
        raise error
    return problem(f"cannot be examined: {lack.text}", lack.remedy)
