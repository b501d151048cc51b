"""A personal model as a file that any ONNX Runtime or LiteRT runs, without Protofleet.

The program ``infer`` (or ``features``, where a strategy classifies by these) gets its values
inside, and around it what makes it whole: the layer that stands for the strategy's rule, a softmax,
and, if asked for, the normalisation of raw readings in front. What the numbers mean stands in the
file's metadata, as JSON under ``task``, ``outputs`` (names of classes, labels or targets),
``preprocessing`` and ``provenance``.

Inputs are called ``x``, or ``readings`` if the file normalises. Outputs are ``probabilities`` and
what they come from, ``logits`` of the model's own head or ``scores`` of the rule: by a softmax for
classes, by the logistic function for labels. A regression's file has ``logits`` alone, its values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest, Port, Preprocessing, Program
from protofleet.errors import InputError, ProvisionError
from protofleet.runtime._freeze import Frozen, onnx_messages
from protofleet.runtime.classifier import ModelSource
from protofleet.strategies.prototypes import NearestPrototype
from protofleet.strategies.types import Score
from protofleet.tensors import Network, TaskName

FORMATS = ("onnx", "tflite")

Array = NDArray[np.float32]
Layer = tuple[Array, Array]
"""A dense layer: weight ``(C, d)``, bias ``(C,)``."""

_FLOAT = 1  # TensorProto.DataType.FLOAT of the ONNX specification
_OWN = "protofleet/"
"""What our names inside a file begin with, so that they meet none of the program's."""
_RULE, _SHARES, _READINGS = "scores", "probabilities", "readings"


@dataclass(frozen=True, slots=True)
class _Link:
    """The operator that makes probabilities of scores, in each format."""

    onnx: str
    tflite: str
    options: Mapping[str, Any]


_LINKS: Mapping[TaskName, _Link] = {
    "classification": _Link("Softmax", "SOFTMAX", {"beta": 1.0}),
    "segmentation": _Link("Softmax", "SOFTMAX", {"beta": 1.0}),
    "multilabel": _Link("Sigmoid", "LOGISTIC", {}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What goes around a program.

    Attributes:
        x, y: the program's input, and the output that counts.
        link: kind of operator that makes probabilities; None: there are none.
        layer: follows on ``y``; None: nothing.
        scale: mean and std in front of ``x``, each ``(channels,)`` or ``(1,)``; None: nothing.
        metadata: JSON by name.
    """

    x: Port
    y: Port
    link: _Link | None
    layer: Layer | None
    scale: Layer | None
    metadata: Mapping[str, str]


def plain_model(  # noqa: PLR0913 - whose model, and what a caller chooses, each by keyword
    bundle: ModelSource,
    format_: str,
    *,
    model: Network,
    score: Score | None = None,
    raw: bool = False,
    provenance: Mapping[str, Any],
) -> bytes:
    """A file with a model inside, for a stock runtime.

    Args:
        bundle: a verified bundle.
        format_: ``onnx`` or ``tflite``.
        model: parameters and buffers.
        score: what classifies the model's features; None: its own head.
        raw: the file takes readings as they come and normalises them with the bundle's mean and
            std; otherwise it takes what the bundle's programs take.
        provenance: for the metadata: what JSON can hold.

    Raises:
        InputError: another format, the rule is no part of a program, the bundle's examples are no
            numbers to normalise, or the package that writes the format is not installed.
        ProvisionError: the bundle has no such program, or none in this format.
    """
    if format_ not in FORMATS:
        raise InputError(f"format: expected {' or '.join(FORMATS)}, got '{format_}'")
    name, output = ("infer", "logits") if score is None else ("features", "features")
    program = bundle.manifest.programs.get(name)
    file = None if program is None else _FILE[format_](program)
    if program is None or file is None:
        raise ProvisionError(
            f"bundle '{bundle.manifest.name}': has no program '{name}' as {format_}; export it "
            f"with --formats {','.join(FORMATS)}"
        )
    plan = _Plan(
        x=next(port for port in program.inputs if port.role == "input" and port.key == "x"),
        y=next(port for port in program.outputs if port.key == output),
        link=_LINKS.get(bundle.manifest.task),
        layer=_layer(score),
        scale=_scale(bundle.manifest.preprocessing) if raw else None,
        metadata=_metadata(bundle.manifest, provenance, raw=raw),
    )
    return _WRITE[format_](Frozen(bundle, name, model).read(file), plan)


def _layer(score: Score | None) -> Layer | None:
    if score is None:
        return None
    if isinstance(score, NearestPrototype):
        return score.linear()
    raise InputError("model: its strategy classifies by a rule that no program can stand for")


def _scale(preprocessing: Preprocessing) -> Layer | None:
    if preprocessing.tokens is not None:
        raise InputError("model: its examples are tokens, which are not normalised; leave out raw")
    mean, std = (np.array(v, np.float32) for v in (preprocessing.mean, preprocessing.std))
    return None if not mean.any() and (std == 1).all() else (mean, std)


def _metadata(manifest: Manifest, provenance: Mapping[str, Any], *, raw: bool) -> dict[str, str]:
    prepared = msgspec.to_builtins(manifest.preprocessing)
    # What the file does itself, nobody must do before.
    inside = {"mean": [0.0], "std": [1.0]} if raw else {}
    values = {
        "task": manifest.task,
        "outputs": list(manifest.outputs),
        "preprocessing": {**prepared, **inside},
        "provenance": {"bundle": manifest.name, **provenance},
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}


def _write_onnx(frozen: bytes, plan: _Plan) -> bytes:
    """The frozen model between the nodes of ``plan``; their names are those of their outputs."""
    messages = onnx_messages()
    model = messages["Model"]()
    model.ParseFromString(frozen)
    graph = model.graph

    def constant(name: str, value: Array) -> str:
        name, data = _OWN + name, value.tobytes()
        graph.initializer.add(dims=value.shape, data_type=_FLOAT, name=name, raw_data=data)
        return name

    def node(kind: str, output: str, *inputs: str) -> Any:
        return messages["Node"](op_type=kind, input=inputs, output=[output], name=output)

    nodes = list(graph.node)
    (shown,) = [one for one in graph.output if one.name == plan.y.name]
    if plan.layer is not None:
        weight, bias = plan.layer
        nodes.append(node("MatMul", f"{_OWN}product", shown.name, constant("weight", weight.T)))
        nodes.append(node("Add", _RULE, f"{_OWN}product", constant("bias", bias)))
        shown.name = _RULE
        shown.type.tensor_type.shape.dim[-1].dim_value = len(bias)
    if plan.link is not None:
        nodes.append(node(plan.link.onnx, _SHARES, shown.name))
    if plan.scale is not None:
        mean, std = plan.scale
        centred = node("Sub", f"{_OWN}centred", _READINGS, constant("mean", mean))
        nodes[:0] = centred, node("Div", plan.x.name, f"{_OWN}centred", constant("std", std))
        (entry,) = [one for one in graph.input if one.name == plan.x.name]
        entry.name = _READINGS
    outputs = [shown]
    if plan.link is not None:
        shares = messages["Value"]()
        shares.CopyFrom(shown)
        shares.name = _SHARES
        outputs.insert(0, shares)
    _replace(graph.output, outputs)
    _replace(graph.node, nodes)
    for key, value in plan.metadata.items():
        model.metadata_props.add(key=key, value=value)
    return bytes(model.SerializeToString())


def _replace(repeated: Any, values: list[Any]) -> None:
    del repeated[:]
    repeated.extend(values)


def _write_tflite(frozen: bytes, plan: _Plan) -> bytes:
    """The frozen model between the operators of ``plan``, with one signature, the default one."""
    import flatbuffers  # noqa: PLC0415 only who writes such a file needs it
    from ai_edge_litert import schema_py_generated as schema  # noqa: PLC0415 as above

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(frozen))
    drawing = _Drawing(schema, model)
    (signature,) = model.signatureDefs
    inputs = {entry.name.decode(): entry.tensorIndex for entry in signature.inputs}
    outputs = {entry.name.decode(): entry.tensorIndex for entry in signature.outputs}
    x, y = inputs[plan.x.name], outputs[plan.y.name]
    shown = plan.y.name
    if plan.layer is not None:
        weights = [drawing.constant(value) for value in plan.layer]
        y = drawing.add("FULLY_CONNECTED", [y, *weights], (1, len(plan.layer[1])))
        shown = _RULE
    results = {shown: y}
    if plan.link is not None:
        kind, options = plan.link.tflite, plan.link.options
        results = {_SHARES: drawing.add(kind, [y], drawing.shape(y), **options), **results}
    taken = plan.x.name
    if plan.scale is not None:
        taken, normalised = _READINGS, x
        x = drawing.tensor(drawing.shape(normalised))
        centred = drawing.add("SUB", [x, drawing.constant(plan.scale[0])], drawing.shape(x), at=0)
        drawing.add("DIV", [centred, drawing.constant(plan.scale[1])], to=normalised, at=1)
    graph = drawing.graph
    graph.inputs, graph.outputs = [x], list(results.values())
    signature.signatureKey = b"serving_default"
    signature.inputs = [schema.TensorMapT(name=taken, tensorIndex=x)]
    signature.outputs = [
        schema.TensorMapT(name=name, tensorIndex=index) for name, index in results.items()
    ]
    drawing.keep_used_buffers()
    model.metadata = [
        schema.MetadataT(name=name, buffer=drawing.buffer(np.frombuffer(text.encode(), np.uint8)))
        for name, text in plan.metadata.items()
    ]
    builder = flatbuffers.Builder(len(frozen))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


class _Drawing:
    """Adds tensors and operators to the graph of a TFLite model in the schema's objects."""

    def __init__(self, schema: Any, model: Any) -> None:
        self._schema, self._model = schema, model
        self.graph = model.subgraphs[model.signatureDefs[0].subgraphIndex]

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Of a tensor, with 1 in the place of the batch."""
        return tuple(int(axis) for axis in self.graph.tensors[tensor].shape)

    def tensor(self, shape: tuple[int, ...]) -> int:
        """A new tensor whose first axis is the batch."""
        return self._tensor(shape, 0, signature=[-1, *shape[1:]])

    def constant(self, value: Array) -> int:
        """A new tensor of fixed numbers."""
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return self._tensor(value.shape, self.buffer(data))

    def buffer(self, data: NDArray[np.uint8]) -> int:
        """A new buffer."""
        self._model.buffers.append(self._schema.BufferT(data=data))
        return len(self._model.buffers) - 1

    def add(
        self,
        kind: str,
        inputs: list[int],
        shape: tuple[int, ...] = (),
        *,
        to: int | None = None,
        at: int | None = None,
        **options: Any,
    ) -> int:
        """A new operator with one output.

        Args:
            kind: as the schema calls it.
            inputs: tensors.
            shape: of a new output.
            to: a tensor that becomes its output instead.
            at: its place in the order; None: the last.
            options: of its kind.

        Returns:
            The output.
        """
        schema = self._schema
        output = self.tensor(shape) if to is None else to
        made = schema.OperatorT(
            opcodeIndex=self._code(getattr(schema.BuiltinOperator, kind)),
            inputs=inputs,
            outputs=[output],
        )
        name = _OPTIONS.get(kind)
        if name is not None:
            made.builtinOptionsType = getattr(schema.BuiltinOptions, name)
            made.builtinOptions = getattr(schema, f"{name}T")(**options)
        operators = self.graph.operators
        operators.insert(len(operators) if at is None else at, made)
        return output

    def keep_used_buffers(self) -> None:
        """Drop what belongs to programs that are not in the file."""
        tensors = [tensor for graph in self._model.subgraphs for tensor in graph.tensors]
        used = sorted({0, *(tensor.buffer for tensor in tensors)})
        places = {old: new for new, old in enumerate(used)}
        for tensor in tensors:
            tensor.buffer = places[tensor.buffer]
        self._model.buffers = [self._model.buffers[old] for old in used]

    def _tensor(
        self, shape: tuple[int, ...], buffer: int, signature: list[int] | None = None
    ) -> int:
        tensors = self.graph.tensors
        made = self._schema.TensorT(
            name=f"{_OWN}{len(tensors)}",
            shape=list(shape),
            shapeSignature=signature,
            type=self._schema.TensorType.FLOAT32,
            buffer=buffer,
        )
        tensors.append(made)
        return len(tensors) - 1

    def _code(self, builtin: int) -> int:
        codes = self._model.operatorCodes
        # Kinds below 127 stand in the older field, too, which older readers look at alone.
        old = min(builtin, 127)
        codes.append(
            self._schema.OperatorCodeT(deprecatedBuiltinCode=old, builtinCode=builtin, version=1)
        )
        return len(codes) - 1


_OPTIONS = {
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "SOFTMAX": "SoftmaxOptions",
    "SUB": "SubOptions",
    "DIV": "DivOptions",
}
_FILE: Mapping[str, Callable[[Program], str | None]] = {
    "onnx": lambda program: program.file,
    "tflite": lambda program: program.tflite,
}
_WRITE: Mapping[str, Callable[[bytes, _Plan], bytes]] = {
    "onnx": _write_onnx,
    "tflite": _write_tflite,
}
