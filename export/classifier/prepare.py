"""Makes a user's model ready for the strategies that it is exported for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.classifier.align import is_aligned, place, place_by_default
from protofleet.export.classifier.heads import features_width, unfit_head, with_head
from protofleet.export.classifier.parts import Parts, find_parts
from protofleet.export.freezing import freeze
from protofleet.strategies import DESCRIPTIONS, check_known
from protofleet.strategies.types import Description

ALL = "all"
_SAID = {"prototypes": "a prototype", "cosine": "a direction"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is asked of a model.

    Attributes:
        strategies: by name, the first one is the bundle's; ``all`` stands for every one that can
            run on the model as it is.
        head: name of the module that is the head; None: find it.
        head_kind: what takes the place of the head (``models.layers.HEADS``), a prototype or a
            direction for each class; None: the head stays.
        align: prototypes of an alignment layer behind modules, by their names or patterns.
        train: which parameters train, as ``freeze`` excepts them; empty: those that do.
    """

    strategies: Sequence[str]
    head: str | None = None
    head_kind: str | None = None
    align: Mapping[str, int] = field(default_factory=dict)
    train: Sequence[str] = ()

    @property
    def descriptions(self) -> tuple[Description, ...]:
        """Of the strategies, without ``all``.

        Raises:
            InputError: there is no such strategy.
        """
        named = dict.fromkeys(name for name in self.strategies if name != ALL)
        for name in named:
            check_known(name)
        return tuple(DESCRIPTIONS[name] for name in named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A model that is ready, and what its bundle has to hold.

    Attributes:
        parts: of the model.
        features: width d of the features; 0: there are none.
        unfit_head: why the head alone does not classify features; empty: it does.
        notes: what was done to the model, for people.
    """

    parts: Parts
    features: int
    unfit_head: str
    notes: tuple[str, ...]


def prepare(model: nn.Module, x: Tensor, wishes: Wishes) -> Prepared:
    """Find the model's parts, and change it in place as was wished.

    Args:
        model: its trained values stay, apart from a head that is replaced.
        x: a few examples.
        wishes: what is asked.

    Raises:
        InputError: a wish does not fit the model.
        ExportError: the model fails on ``x``.
    """
    parts = find_parts(model, x, head=wishes.head)
    notes = []
    if wishes.head_kind is not None:
        with_head(model, parts, x, wishes.head_kind)
        name = parts.head or "head"
        notes.append(f"head: '{name}' is replaced by {_SAID[wishes.head_kind]} per class")
        parts = find_parts(model, x, head=wishes.head)
    if wishes.align:
        notes += [f"alignment: {one}" for one in place(model, wishes.align, x)]
    elif any(one.alignment for one in wishes.descriptions) and not is_aligned(model):
        notes += _align_by_default(model, parts, x)
    if wishes.train:
        notes.append(_trained_alone(model, wishes.train))
    if len(notes) > (wishes.head_kind is not None):
        parts = find_parts(model, x, head=wishes.head)
    if parts.head is None:
        width, unfit = 0, parts.missing
    else:
        width, unfit = features_width(model, parts, x), unfit_head(model, parts, x)
    said = (*notes, _said(parts, width))
    return Prepared(parts=parts, features=width, unfit_head=unfit, notes=said)


def _trained_alone(model: nn.Module, patterns: Sequence[str]) -> str:
    names = freeze(model, patterns)
    trained = sum(model.get_parameter(name).numel() for name in names)
    every = sum(value.numel() for value in model.parameters())
    return f"training: {trained:,} of {every:,} parameters, in {len(names)} tensors"


def _said(parts: Parts, width: int) -> str:
    if parts.head is None:
        return f"head: {parts.missing}; without it only strategies that ask for no head can run"
    name = f"'{parts.head}'" if parts.head else "the model's own methods features and head"
    return f"head: {name}, of {width} features"


def _align_by_default(model: nn.Module, parts: Parts, x: Tensor) -> list[str]:
    if parts.head is None:
        raise InputError(f"alignment: {parts.missing}, or say where with --align")
    placed = place_by_default(model, parts.head or "head", x, features_width(model, parts, x))
    return [f"alignment: {one}, as no --align 'MODULE=PROTOTYPES' says where" for one in placed]
