"""What a project is about: the answers from which its files are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from protofleet.errors import InputError

Kind = Literal["windows", "images", "table", "texts"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Windows of sensors, images, rows of a table, texts of words' numbers."""
SHAPES: dict[Kind, tuple[int, ...]] = {
    "windows": (128, 3),
    "images": (1, 28, 28),
    "table": (8,),
    "texts": (64,),
}
"""Of an example, where nobody says another."""
CHANNELS = ("acc_x", "acc_y", "acc_z")
TOKENS = 10_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")
_DIMENSIONS = {"windows": 2, "images": 3, "table": 1, "texts": 1}
_FORMS = {
    "windows": "samples,channels, such as 128,6",
    "images": "channels,side,side, such as 3,32,32",
    "table": "the number of columns, such as 8",
    "texts": "the number of words, such as 64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What is to be learned from what.

    Attributes:
        name: of the folder and of the federation.
        kind: of examples.
        input_shape: of one.
        classes: what is told apart; empty: numbers are predicted.
        targets: names of the numbers.
        channels: of windows.
        units: of the channels; empty: not told.
        rate_hz: of windows.
        tokens: of texts, how many different words.
        strategy: of the federation.
        mean, std: of the channels, or of all numbers.

    Raises:
        InputError: a name, a shape, or names of outputs that cannot be.
    """

    name: str
    kind: Kind
    input_shape: tuple[int, ...]
    classes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    rate_hz: float = 50.0
    tokens: int | None = None
    strategy: str = "ditto"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                f"name '{self.name}': expected a letter, then letters, digits, _ and -, at most 50"
            )
        if len(self.input_shape) != _DIMENSIONS[self.kind] or min(self.input_shape) < 1:
            got = ",".join(map(str, self.input_shape))
            raise InputError(f"--input-shape: expected {_FORMS[self.kind]}, got {got}")
        if bool(self.classes) == bool(self.targets):
            raise InputError("expected either --classes, to tell apart, or --targets, to predict")
        for name in (self.outputs, self.channels):
            if "" in name or len(set(name)) < len(name):
                raise InputError(f"expected different names, got {', '.join(name)}")
        if len(self.classes) == 1:
            raise InputError("--classes: expected two or more")
        if self.channels and len(self.channels) != self.input_shape[-1]:
            raise InputError(
                f"--channels: expected {self.input_shape[-1]} as in --input-shape, got "
                f"{len(self.channels)}"
            )

        if self.units and len(self.units) != len(self.channels):
            raise InputError(
                f"--units: expected one for each of the channels {', '.join(self.channels)}, got "
                f"{len(self.units)}"
            )

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of classes or targets."""
        return self.classes or self.targets

    @property
    def examples(self) -> str:
        """In words."""
        shape = self.input_shape
        return {
            "windows": lambda: f"windows of {shape[0]} samples of {', '.join(self.channels)}",
            "images": lambda: f"images of {' x '.join(map(str, shape))}",
            "table": lambda: f"rows of {shape[0]} numbers",
            "texts": lambda: f"texts of {shape[0]} words' numbers",
        }[self.kind]()
