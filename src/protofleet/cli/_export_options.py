"""Options of ``protofleet export`` that say what an example is and which methods are served."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.bundle.manifest import MAX_SEQUENCE
from protofleet.cli._groups import gathered
from protofleet.cli._settings import parse_pairs
from protofleet.errors import InputError
from protofleet.export.catalogue import OBJECTIVES

if TYPE_CHECKING:
    from protofleet.bundle.manifest import Manifest
    from protofleet.export.classifier.prepare import Wishes

_OBJECTIVES = tuple(one.name for one in OBJECTIVES.values() if one.labels == "classes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOptions:
    """What a command line says of methods, as it stands there."""

    strategies: tuple[str, ...]
    strategy_pairs: tuple[str, ...]
    head: str | None
    head_kind: str
    aligned: tuple[str, ...]
    trained: tuple[str, ...]
    objectives: tuple[str, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """Of the first strategy."""
        return parse_pairs(self.strategy_pairs)

    def wishes(self) -> Wishes:
        """What is asked of the model.

        Raises:
            InputError: a count of prototypes is no number.
        """
        from protofleet.export.classifier.prepare import Wishes

        counts = parse_pairs(self.aligned)
        for name, count in counts.items():
            if type(count) is not int:
                raise InputError(
                    f"--align {name}={count}: expected a number of prototypes, e.g. =64"
                )
        return Wishes(
            strategies=self.strategies,
            head=self.head,
            head_kind=None if self.head_kind == "own" else self.head_kind,
            align=counts,
            train=self.trained,
        )


method_options = gathered(
    MethodOptions,
    "methods",
    [
        click.option(
            "--strategy",
            "strategies",
            multiple=True,
            required=True,
            help="Name, see 'protofleet strategies'; may be repeated: one bundle then serves all "
            "of them, and names the first. 'all' is every one that can run on the model as it is.",
        ),
        click.option(
            "--strategy-set",
            "strategy_pairs",
            multiple=True,
            metavar="KEY=VALUE",
            help="A default setting of the (first) strategy, as --set.",
        ),
        click.option(
            "--head", metavar="NAME", help="Module that takes the features; default: found."
        ),
        click.option(
            "--head-kind",
            type=click.Choice(["own", "prototypes", "cosine"]),
            default="own",
            help="'prototypes' replaces the head by a learned prototype per class (fedhp), "
            "'cosine' by a direction per class (fednh).",
        ),
        click.option(
            "--align",
            "aligned",
            multiple=True,
            metavar="MODULE=PROTOTYPES",
            help="Put an alignment layer (fedali) behind a module, e.g. 'encoder.layers.*=64'; may "
            "be repeated.",
        ),
        click.option(
            "--train",
            "trained",
            multiple=True,
            metavar="PATTERN",
            help="Parameters or modules that train, e.g. 'head.*' or '*.bias'; may be repeated. "
            "The others are frozen: the bundle holds them, and devices do not send them.",
        ),
        click.option(
            "--objective",
            "objectives",
            multiple=True,
            type=click.Choice(_OBJECTIVES),
            help="A training program beside those that the strategy needs; may be repeated.",
        ),
    ],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleOptions:
    """What a command line says of an example; None where it says nothing."""

    input_shape: str | None
    tokens: int | None
    preprocessing: Path | None


example_options = gathered(
    ExampleOptions,
    "example",
    [
        click.option("--input-shape", help="Shape of one example, e.g. 128,6."),
        click.option(
            "--tokens",
            type=click.IntRange(1, 2**24),
            help="Examples are int64 numbers below this; default: found where the model needs "
            "them.",
        ),
        click.option(
            "--preprocessing",
            type=click.Path(path_type=Path),
            help="JSON file, see docs/bundle.md.",
        ),
    ],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOptions:
    """Where a bundle stands among those of its signer; None: as before, or 0."""

    sequence: int | None
    replaces_up_to: int | None

    def over(self, manifest: Manifest) -> Manifest:
        """The manifest with what was given."""
        import msgspec

        found = dataclasses.asdict(self)
        given = {name: number for name, number in found.items() if number is not None}
        return msgspec.structs.replace(manifest, **given)


sequence_options = gathered(
    SequenceOptions,
    "numbers",
    [
        click.option(
            "--sequence",
            type=click.IntRange(0, MAX_SEQUENCE),
            help="Number of this bundle among yours, default 0: a device that has had one with a "
            "larger number does not take it.",
        ),
        click.option(
            "--replaces-up-to",
            type=click.IntRange(0, MAX_SEQUENCE),
            help="Devices may go back to this bundle from any up to this number.",
        ),
    ],
)
