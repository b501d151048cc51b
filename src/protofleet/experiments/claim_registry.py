"""The papers' claims as files: what is claimed, what the paper prints, and what is compared here.

``experiments/claims/papers/<paper>.toml`` has the claims of one paper; the experiments that measure
them lie beside that folder. ``docs/tables.md`` explains every field.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protofleet.errors import InputError
from protofleet.experiments.config import (
    FOLDER,
    Experiment,
    Section,
    find,
    load_experiment,
    name_of,
)
from protofleet.settings import explain, read_toml

MeasureName = Literal["last", "best", "recovery", "equal_bytes", "rounds_to", "uplink", "bytes"]
SCORES: tuple[MeasureName, ...] = ("last", "best", "recovery", "equal_bytes")
"""Measures that are differences of two scores; the others are ratios."""

CLAIMS = FOLDER / "claims" / "papers"
"""Where the claims that come with Protofleet lie."""

_Text = Annotated[str, Meta(min_length=1)]
_Id = Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*\Z")]


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[claims.comparisons]]``: one method against another, by one or several measures.

    Attributes:
        method, against: labels of the experiment's methods.
        measures: ``last`` and ``best``: score minus score, of the last round (the final fit where
            there is one) and of the best one; ``recovery``: mean scores of all rounds from the
            first in which a client has a class back (``[dynamic]``); ``equal_bytes``: the same as
            ``last`` where both have moved what the cheaper of the two moves in its whole run;
            ``rounds_to``: rounds until ``target``, ``uplink``: bytes up, ``bytes``: bytes up and
            down, of the whole run, each divided by the other method's.
        sections: of the experiment's ``score.sections``, for all measures but the bytes.
        expect: what the paper claims of the difference or ratio.
        threshold: that it is beyond; a difference's is 0 unless given, a ratio's 1. Below 0 where
            ``greater`` is claimed it is a margin: "not worse by more than so much".
        relative: differences in per cent of the other method's score or loss.
        target: of ``rounds_to``, from 0 to 1; absent: the experiment's ``score.target``.
        paper: the printed difference (percentage points, loss, or per cent where ``relative``) or
            ratio, for every section alike or by section.
        elsewhere: further printed differences or ratios of the one section, by data set.
        detail: left out of the page's first table.
    """

    method: str
    against: str
    measures: Annotated[tuple[MeasureName, ...], Meta(min_length=1)] = ("last",)
    sections: tuple[Section, ...] = ()
    expect: Literal["greater", "less"] = "greater"
    threshold: float | None = None
    relative: bool = False
    target: Annotated[float, Meta(gt=0, le=1)] | None = None
    paper: float | dict[Section, float] | None = None
    elsewhere: dict[str, float] = {}
    detail: bool = False

    def __post_init__(self) -> None:
        if self.method == self.against:
            raise ValueError(f"`against`: expected another method than '{self.method}'")
        needing = [measure for measure in self.measures if measure not in {"uplink", "bytes"}]
        if bool(needing) != bool(self.sections):
            raise ValueError(
                "`sections`: expected at least one for scores and `rounds_to`, none for bytes"
            )
        if "loss" in self.sections and len(self.sections) > 1:
            raise ValueError("`sections`: expected a comparison of its own for 'loss'")
        if "loss" in self.sections and "rounds_to" in self.measures:
            raise ValueError("`sections`: expected a score for `rounds_to`, got 'loss'")
        if isinstance(self.paper, dict) and (extra := self.paper.keys() - set(self.sections)):
            raise ValueError(f"`paper`: no '{min(extra)}' in `sections`")
        if self.elsewhere and len(self.sections) > 1:
            raise ValueError("`elsewhere`: expected a single section")
        if self.threshold is not None and self.threshold <= 0 and not self._differs:
            raise ValueError("`threshold`: expected a ratio above 0")
        if len({measure in SCORES for measure in self.measures}) > 1:
            raise ValueError("`measures`: expected differences or ratios, got both")
        if self.relative and not self._differs:
            raise ValueError("`relative`: expected differences, got ratios")

    @property
    def _differs(self) -> bool:
        return self.measures[0] in SCORES

    def printed(self, section: Section | None) -> float | None:
        """What the paper prints of a section."""
        if isinstance(self.paper, dict):
            return None if section is None else self.paper.get(section)
        return self.paper

    def rows(self) -> Iterator[tuple[MeasureName, Section | None]]:
        """Every figure that is asked for."""
        yield from product(self.measures, self.sections or (None,))


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[claims]]``: one claim, measured by one experiment.

    Attributes:
        id: short name, also of its picture.
        claim: in one sentence.
        printed: the paper's figures that it rests on, in words and numbers.
        experiment: name of a committed experiment, or a file.
        setting: what is measured here, and how it differs from the paper's.
        remarks: what is known about the reasons; no figures, those are measured.
        comparisons: what is measured.
        changed: which main comparisons were fixed when results were known already, and when; empty:
            none.
    """

    id: _Id
    claim: _Text
    printed: _Text
    experiment: _Text
    setting: _Text
    comparisons: Annotated[tuple[Comparison, ...], Meta(min_length=1)]
    remarks: str = ""
    changed: str = ""

    def __post_init__(self) -> None:
        if all(one.detail for one in self.comparisons):
            raise ValueError("`comparisons`: expected at least one without `detail = true`")


class PaperClaims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file.

    Attributes:
        paper: name of the method, for people.
        reference: authors, title and where it is published.
        claims: in the order in which they are shown.
    """

    paper: _Text
    reference: _Text
    claims: Annotated[tuple[Claim, ...], Meta(min_length=1)]


@dataclass(frozen=True)
class RegisteredClaim:
    """A claim with the paper and the experiment that it belongs to."""

    paper: PaperClaims
    claim: Claim

    @cached_property
    def name(self) -> str:
        """The experiment's, as its runs' folder has it."""
        return name_of(find(self.claim.experiment))

    @cached_property
    def experiment(self) -> Experiment:
        """What measures it."""
        return load_experiment(find(self.claim.experiment))


def load_claims(folder: Path = CLAIMS) -> list[RegisteredClaim]:
    """Read all claims, by paper, and check that their experiments have what they compare.

    Args:
        folder: with one file per paper.

    Raises:
        InputError: a file is not readable, has an unknown key or a value of the wrong kind, an id
            comes twice, or an experiment lacks a label or section.
    """
    found: dict[str, RegisteredClaim] = {}
    for file in sorted(folder.glob("*.toml")):
        paper = _load(file)
        for claim in paper.claims:
            if claim.id in found:
                raise InputError(
                    f"claims '{file}': expected ids that differ, got '{claim.id}' twice"
                )
            found[claim.id] = RegisteredClaim(paper, claim)
            try:
                _check(claim, found[claim.id].experiment)
            except InputError as error:
                raise InputError(f"claims '{file}', '{claim.id}': {error}") from error
    if not found:
        raise InputError(f"claims '{folder}': expected files <paper>.toml, found none")
    return list(found.values())


def chosen_claims(claims: Sequence[RegisteredClaim], ids: Sequence[str]) -> list[RegisteredClaim]:
    """Those of the named claims, or all where none is named, in the registry's order.

    Raises:
        InputError: there is no such claim.
    """
    known = [one.claim.id for one in claims]
    for name in ids:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
            raise InputError(f"claim '{name}': not known; {hint}")
    return [one for one in claims if not ids or one.claim.id in ids]


def experiments_of(claims: Iterable[RegisteredClaim]) -> Mapping[str, Experiment]:
    """What has to be run for some claims, each once, by name."""
    return {one.name: one.experiment for one in claims}


def _load(file: Path) -> PaperClaims:
    try:
        values = read_toml(file)
        return msgspec.convert(values, PaperClaims)
    except OSError as error:
        raise InputError(f"claims '{file}': {error.strerror}") from error
    except msgspec.ValidationError as error:
        wrong = explain(error, PaperClaims, values)
        raise InputError(f"claims '{file}': {wrong}; see docs/tables.md") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"claims '{file}': {error}; see docs/tables.md") from error


def _check(claim: Claim, experiment: Experiment) -> None:
    """Raise InputError if an experiment lacks what a claim compares."""
    labels = [method.label for method in experiment.methods]
    for one in claim.comparisons:
        for label in (one.method, one.against):
            if label not in labels:
                raise InputError(
                    f"method '{label}': expected one of {claim.experiment}: {', '.join(labels)}"
                )
        for section in one.sections:
            if section not in experiment.score.sections:
                raise InputError(
                    f"section '{section}': expected one of `score.sections` of {claim.experiment}: "
                    f"{', '.join(experiment.score.sections)}"
                )
        if "recovery" in one.measures and experiment.dynamic is None:
            raise InputError(f"`recovery`: expected `[dynamic]` in {claim.experiment}")
        if "rounds_to" in one.measures and (one.target or experiment.score.target) is None:
            raise InputError(
                "`target`: expected one for `rounds_to`, here or as `score.target` of "
                f"{claim.experiment}"
            )
