"""Models and objectives by name, and what is known of them without PyTorch.

From here come the command line's choices and help, default shapes and the parity benchmark;
``export.models`` and ``export.objectives`` have the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from protofleet.errors import InputError

Need = Literal["features", "classify", "decode", "prototypes"]
"""What of ``ModelCall`` an objective asks for, beside logits."""


Shape = tuple[int, ...]
_AXES = 3
_MOST_TOKENS = 16
"""Of a side of an image, or so."""
_SMALL_SIDE = 32
"""Images up to that have no details that a first layer may pass over."""


def _flat(shape: Shape) -> dict[str, Any]:
    return {"inputs": math.prod(shape)}


def _side(shape: Shape) -> int:
    if len(shape) != _AXES or shape[1] != shape[2]:
        raise InputError("expected square images (channels, side, side), such as 1,28,28")
    return shape[1]


def _square(shape: Shape) -> dict[str, Any]:
    return {"channels": shape[0], "size": _side(shape)}


def _patched(shape: Shape) -> dict[str, Any]:
    side = _side(shape)
    fits = (p for p in range(4, side) if side % p == 0 and side // p <= _MOST_TOKENS)
    patch = next(fits, None)
    if patch is None:
        raise InputError(
            f"expected images whose side is a multiple of a patch of 4 or more, got {side}; "
            "--set patch=N says another"
        )
    return {**_square(shape), "patch": patch}


def _residual(shape: Shape) -> dict[str, Any]:
    return {"channels": shape[0], "small_input": _side(shape) <= _SMALL_SIDE}


def _windows(shape: Shape) -> dict[str, Any]:
    if len(shape) != 2:
        raise InputError("expected windows (steps, channels), such as 128,6")
    return {"steps": shape[0], "channels": shape[1]}


def _sensors(shape: Shape) -> dict[str, Any]:
    window, channels = _windows(shape).values()
    if channels not in (_AXES, 2 * _AXES):
        raise InputError(
            f"expected one or two sensors of three axes, 3 or 6 channels, got {channels}"
        )
    patch = next((p for p in range(16, 3, -1) if window % p == 0), None)
    if patch is None:
        raise InputError(
            f"expected windows whose length is a multiple of 4 to 16 samples, got {window}; "
            "--set patch=N says another"
        )
    return {"window": window, "sensors": channels // _AXES, "patch": patch}


def _nothing(_: Shape) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredModel:
    """A model that has a name.

    Attributes:
        factory: ``module:function`` or class, in ``export.models``.
        config: the settings record of that module that the factory passes its keywords on to.
        sizes: settings that an example's shape says; InputError: it takes no such examples.
        takes_tokens: its examples are numbers of words, of which it has ``vocabulary``.
        input_shape: of one example with the default settings.
        parity_shape: of one example in ``protofleet bench parity``; None: the default.
        parity_settings: there.
    """

    factory: str
    input_shape: tuple[int, ...]
    config: str = ""
    sizes: Callable[[Shape], dict[str, Any]] = _nothing
    takes_tokens: bool = False
    parity_shape: tuple[int, ...] | None = None
    parity_settings: Mapping[str, Any] = field(default_factory=dict)


MODELS: Mapping[str, RegisteredModel] = {
    "autoencoder": RegisteredModel(
        factory="autoencoder:ConvAutoencoder", input_shape=(128, 6), sizes=_windows
    ),
    "cnn": RegisteredModel(factory="cnn:Cnn", input_shape=(1, 28, 28), sizes=_square),
    "cnn_prototypes": RegisteredModel(
        factory="cnn:PrototypeCnn", input_shape=(1, 28, 28), sizes=_square
    ),
    "fasttext": RegisteredModel(
        factory="fasttext:FastText",
        input_shape=(200,),
        takes_tokens=True,
        parity_shape=(64,),
        parity_settings={"vocabulary": 2000},
    ),
    "hart": RegisteredModel(
        factory="hart:hart", config="HartConfig", input_shape=(128, 6), sizes=_sensors
    ),
    "hart_alp": RegisteredModel(
        factory="hart:hart_alp", config="HartConfig", input_shape=(128, 6), sizes=_sensors
    ),
    "mlp": RegisteredModel(
        factory="mlp:Mlp",
        input_shape=(64,),
        sizes=_flat,
        parity_shape=(561,),
        parity_settings={"inputs": 561},
    ),
    "mlp_alp": RegisteredModel(
        factory="mlp:mlp_alp",
        input_shape=(64,),
        sizes=_flat,
        parity_shape=(561,),
        parity_settings={"inputs": 561},
    ),
    "mlp_prototypes": RegisteredModel(
        factory="mlp:mlp_prototypes",
        input_shape=(64,),
        sizes=_flat,
        parity_shape=(561,),
        parity_settings={"inputs": 561},
    ),
    "resnet18": RegisteredModel(
        factory="resnet:resnet18",
        input_shape=(3, 64, 64),
        sizes=_residual,
        parity_shape=(3, 32, 32),
    ),
    # At half of that, batch statistics of 3 numbers decide.
    "resnet50": RegisteredModel(
        factory="resnet:resnet50",
        input_shape=(3, 224, 224),
        sizes=_residual,
        parity_shape=(3, 64, 64),
    ),
    "vit": RegisteredModel(
        factory="vit:vit", config="VitConfig", input_shape=(3, 32, 32), sizes=_patched
    ),
    "vit_digits": RegisteredModel(
        factory="vit:vit_digits", config="VitConfig", input_shape=(1, 8, 8), sizes=_square
    ),
}


def sizes_of(spec: str, shape: Shape, *, tokens: int | None = None) -> dict[str, Any]:
    """Settings of a registered model that its examples say; none of another model.

    Args:
        spec: the model.
        shape: of one example.
        tokens: how many words the examples' numbers may be.

    Raises:
        InputError: the model takes no examples of this shape.
    """
    known = MODELS.get(spec)
    if known is None:
        return {}
    try:
        found = known.sizes(shape)
    except InputError as error:
        got = ",".join(map(str, shape))
        raise InputError(f"model '{spec}': {error}; the examples are of shape {got}") from error
    return {"vocabulary": tokens, **found} if known.takes_tokens and tokens else found


def model_names() -> str:
    """All names, for a sentence: ``a, b or c``."""
    *most, last = MODELS
    return f"{', '.join(most)} or {last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDecl:
    """An input of an objective.

    Attributes:
        dtype: of the array.
        shape: dimensions; the strings ``batch``, ``classes``, ``outputs`` and ``features`` stand
            for B, C, the number of outputs and the width of the model's pooled features,
            ``steps`` for those of a segmentation's outputs, and ``batch`` may only come first.
            ``()`` is one number for the whole batch. ``None`` stands for one example's shape, with
            the batch axis before it.
        flags: every entry is 0 or 1.
    """

    dtype: Literal["float32", "int64"]
    shape: tuple[int | str, ...] | None
    flags: bool = False

    @property
    def per_example(self) -> bool:
        """Whether the first axis is the batch."""
        return self.shape is None or self.shape[:1] == ("batch",)


Labels = Literal["classes", "classes of steps", "numbers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What is known of an objective.

    Attributes:
        name: key in ``OBJECTIVES``, and of the training program in a bundle.
        inputs: what a batch must hold, by key; at least one of them per example.
        needs: what it asks of a model beside logits, which not every model has.
    """

    name: str
    inputs: Mapping[str, InputDecl]
    needs: frozenset[Need] = frozenset()

    @property
    def labels(self) -> Labels:
        """What its labels are."""
        y = self.inputs["y"]
        return "classes" if y == Y else "classes of steps" if y == STEPS else "numbers"

    @property
    def sizes(self) -> set[str]:
        """Names of the sizes, beside the batch, that its inputs' shapes depend on."""
        named = {d for decl in self.inputs.values() for d in decl.shape or () if isinstance(d, str)}
        return named - {"batch"}


X = InputDecl(dtype="float32", shape=None)
"""The examples themselves."""
Y = InputDecl(dtype="int64", shape=("batch",))
"""Class of every example."""
STEPS = InputDecl(dtype="int64", shape=("batch", "steps"))
"""Class of every step of every example."""
NUMBERS = InputDecl(dtype="float32", shape=("batch", "outputs"))
"""Targets of every example."""
LABELS = InputDecl(dtype="float32", shape=("batch", "outputs"), flags=True)
"""Which labels every example has."""
SCALAR = InputDecl(dtype="float32", shape=())
"""A number, such as the weight of a term."""
FEATURES = InputDecl(dtype="float32", shape=("batch", "features"))
"""A vector for every example, beside its features."""
OUTPUTS = InputDecl(dtype="float32", shape=("batch", "classes"))
"""Another model's logits of every example."""
PROTOTYPES = InputDecl(dtype="float32", shape=("classes", "features"))
"""A vector for every class."""
PREDICTIONS = InputDecl(dtype="float32", shape=("classes", "classes"))
"""Shares of the classes for every class."""
PRESENT = InputDecl(dtype="float32", shape=("classes",), flags=True)
"""1 for every class that counts."""

OBJECTIVES: Mapping[str, Declared] = {
    declared.name: declared
    for declared in (
        Declared(name="cross_entropy", inputs={"x": X, "y": Y}),
        Declared(name="step_cross_entropy", inputs={"x": X, "y": STEPS}),
        Declared(name="mse", inputs={"x": X, "y": NUMBERS}),
        Declared(name="huber", inputs={"x": X, "y": NUMBERS}),
        Declared(name="bce", inputs={"x": X, "y": LABELS}),
        Declared(
            name="moon",
            needs=frozenset({"features"}),
            inputs={
                "x": X,
                "y": Y,
                "positive": FEATURES,
                "negative": FEATURES,
                "tau": SCALAR,
                "mu": SCALAR,
            },
        ),
        Declared(
            name="prototype_mse",
            needs=frozenset({"features"}),
            inputs={"x": X, "y": Y, "prototypes": PROTOTYPES, "present": PRESENT, "weight": SCALAR},
        ),
        Declared(
            name="prototype_distance",
            needs=frozenset({"features", "prototypes"}),
            inputs={"x": X, "y": Y, "anchors": PROTOTYPES, "weight": SCALAR},
        ),
        Declared(
            name="hyper_knowledge",
            needs=frozenset({"features", "classify"}),
            inputs={
                "x": X,
                "y": Y,
                "prototypes": PROTOTYPES,
                "predictions": PREDICTIONS,
                "present": PRESENT,
                "temperature": SCALAR,
                "prediction_weight": SCALAR,
                "feature_weight": SCALAR,
            },
        ),
        Declared(
            name="reconstruction",
            needs=frozenset({"features", "decode"}),
            inputs={"x": X, "y": Y, "weight": SCALAR},
        ),
        Declared(
            name="head_cross_entropy",
            needs=frozenset({"features"}),
            inputs={"features": FEATURES, "y": Y},
        ),
        Declared(
            name="cdfl",
            needs=frozenset({"features"}),
            inputs={
                "x": X,
                "z": X,
                "y": Y,
                "teacher": FEATURES,
                "centroids": FEATURES,
                "tau": SCALAR,
                "contrastive": SCALAR,
                "distillation": SCALAR,
                "clustering": SCALAR,
            },
        ),
        Declared(
            name="fedphp",
            needs=frozenset({"features"}),
            inputs={
                "x": X,
                "y": Y,
                "teacher": FEATURES,
                "teacher_outputs": OUTPUTS,
                "local": SCALAR,
                "mmd": SCALAR,
                "kl": SCALAR,
            },
        ),
    )
}
"""By name; ``export.objectives`` has a function of the same name for each."""
