"""The bundle's manifest: what a signed bundle says about its programs and parameters.

The format is specified in ``docs/bundle.md``; these records are its Python form.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from protofleet.tensors import TaskName

FORMAT_VERSION = 1

MAX_SEQUENCE = 2**53 - 1
"""What every JSON reader keeps exactly."""

MAX_TOKENS = 2**24
"""As far as float32 counts: examples are kept in float32 arrays everywhere."""

MAX_TFLITE_BATCH = 257
"""Largest batch that TFLite programs are written for; smaller ones are exact at any size.

A ``batch_size`` of 256, and the one example that is joined to it where a model normalises over the
batch (``strategies.training.spans``).
"""

PENULTIMATE = "penultimate"
"""Output of ``features``: what goes into the dense layer that ends a head of several layers."""

Role = Literal["param", "state", "input", "noise", "loss", "grad", "output"]

Precision = Literal["float32", "float16", "int8"]
"""How a program holds its weights; ``int8`` also computes with 8 bits."""


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output of a program.

    Attributes:
        name: the name inside the program file.
        role: ``param`` (trained tensor), ``state`` (buffer of the model: as an input its present
            value, as an output its new value), ``input`` (of the batch, by ``key``), ``noise``
            (drawn by the runtime), ``loss`` (scalar), ``grad`` (of the parameter ``key``),
            ``output`` (by ``key``: ``logits``, ``features``, …).
        key: for ``param``/``grad`` a name in ``Manifest.params``, for ``state`` one in
            ``Manifest.state``, for ``input``/``output`` what it is (``x``, ``y``, ``logits``).
        dtype: ``float32`` or ``int64``.
        shape: dimensions; the string ``"batch"`` is the batch size, ``"batch*8"`` a multiple.
        distribution: for ``noise``: ``uniform`` on [0, 1) or standard ``normal``.
    """

    name: str
    role: Role
    key: str
    dtype: Literal["float32", "int64"]
    shape: tuple[int | str, ...]
    distribution: Literal["uniform", "normal"] | None = None


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A pure function compiled at export (``infer``, ``features``, ``train``, …).

    Attributes:
        inputs, outputs: its ports, in the file's order.
        objective: for training programs the objective's name, e.g. ``cross_entropy``.
        file: path of the ONNX model inside the bundle, e.g. ``programs/train.onnx``; None where
            the bundle has none.
        tflite: path of a TFLite model with a signature of the program's name, whose inputs and
            outputs are called as the ports; None where the bundle has none, and then ``file`` is
            not. Several programs may share one file.
        min_batch: fewest examples that a training program takes at once: 2 if it computes something
            of the whole batch that a single example does not have, such as the variance that batch
            normalisation of vectors needs.
        precision: of the weights. A program of another precision than ``float32`` has no ports of
            parameters and state: the bundle's own values are part of it.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    objective: str | None = None
    file: str | None = None
    tflite: str | None = None
    precision: Precision = "float32"
    min_batch: Literal[1, 2] = 1


class TensorDecl(msgspec.Struct, frozen=True, kw_only=True):
    """Name and shape of one float32 tensor."""

    name: str
    shape: tuple[int, ...]


class LayerDecl(msgspec.Struct, frozen=True, kw_only=True):
    """A dense layer or convolution, for strategies that look at single units.

    Attributes:
        name: ``<name>.weight`` is a parameter, ``<name>.bias`` may be one. It is hidden if the
            program ``features`` has an output ``layers.<name>``.
        before: an earlier hidden layer whose units are its inputs, in order, each the same number
            of times; None: no layer is.
    """

    name: str
    before: str | None = None


class Preprocessing(msgspec.Struct, frozen=True, kw_only=True):
    """What turns raw readings into the program's input ``x``.

    Attributes:
        input_shape: shape of one example, without the batch axis.
        rate_hz: sampling rate of windows; None for data that is not a time series.
        window: samples per window; None as above.
        hop: samples between the starts of two windows.
        channels: names of the last axis, in order.
        units: of the channels' readings, such as ``m/s²``, ``g``, ``rad/s``, ``°/s`` or ``µS``;
            absent: not told.
        mean, std: z-normalisation per channel (length = channels) or one value for all.
        tokens: examples are int64 numbers from 0 to below this, such as a text's words, which are
            not normalised; None: float32.
    """

    input_shape: tuple[int, ...]
    rate_hz: float | None = None
    window: int | None = None
    hop: int | None = None
    channels: tuple[str, ...] = ()
    units: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    tokens: int | None = None

    def unit(self, channel: str) -> str | None:
        """Of a channel's readings; None: not told."""
        return self.units[self.channels.index(channel)] if self.units else None


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Size and hash of one file of the bundle."""

    bytes: int
    sha256: str


class StrategyDecl(msgspec.Struct, frozen=True, kw_only=True):
    """The strategy the programs were exported for, and its default settings."""

    name: str
    settings: dict[str, Any]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a device must know before it runs a program of the bundle.

    Attributes:
        task: what the outputs of ``infer`` are: scores of ``classes``, values of ``targets``, or
            a logit for each label in ``targets``.
        classes, targets: names, in the order of the outputs; a bundle has one of the two.
        head: names of the parameters that make outputs of features; empty where none are known.
        sequence: which of the signer's bundles it is; a store that has had one with a larger number
            does not go back to it.
        replaces_up_to: the largest ``sequence`` whose place it may take all the same, where the
            signer wants devices to go back.
        no_layers: what the model has in the place of hidden layers and a dense head, for people;
            empty where it has both, whether ``layers`` tells of them or not.
    """

    format: int
    name: str
    created: str
    layout_hash: str
    params: tuple[TensorDecl, ...]
    state: tuple[TensorDecl, ...]
    programs: dict[str, Program]
    preprocessing: Preprocessing
    task: TaskName = "classification"
    classes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    strategy: StrategyDecl
    provenance: dict[str, str]
    files: dict[str, FileEntry]
    head: tuple[str, ...] = ()
    layers: tuple[LayerDecl, ...] = ()
    no_layers: str = ""
    sequence: int = 0
    replaces_up_to: int = 0

    @property
    def steps(self) -> int:
        """How many steps an example's outputs have; 0 unless the task is segmentation."""
        if self.task != "segmentation":
            return 0
        ports = (port for program in self.programs.values() for port in program.outputs)
        return next((int(port.shape[1]) for port in ports if port.key == "logits"), 0)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, whatever the task."""
        return self.classes or self.targets
