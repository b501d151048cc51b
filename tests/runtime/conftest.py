"""Hand-built programs that show what the runtime does with every role of port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from onnx import TensorProto, checker, helper

from protofleet.bundle.manifest import (
    FORMAT_VERSION,
    Manifest,
    Port,
    Preprocessing,
    Program,
    StrategyDecl,
    TensorDecl,
)
from protofleet.tensors import Layout

_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
OPSET = 17


@dataclass
class HandMade:
    """A bundle in memory, with the two members that the runtime needs."""

    params: Mapping[str, tuple[int, ...]]
    state: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, program: Program, nodes: Sequence[Any], functions: Any = ()) -> None:
        self.programs[name] = program
        self.files[program.file] = onnx_bytes(program, nodes, functions)

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        return Layout.of(self.params), Layout.of(self.state)

    @property
    def manifest(self) -> Manifest:
        return Manifest(
            format=FORMAT_VERSION,
            name="hand-made",
            created="2026-01-01T00:00:00Z",
            layout_hash=self.layouts[0].hash,
            params=tuple(TensorDecl(name=n, shape=s) for n, s in self.params.items()),
            state=tuple(TensorDecl(name=n, shape=s) for n, s in self.state.items()),
            programs=self.programs,
            preprocessing=Preprocessing(input_shape=(3,)),
            classes=("a", "b"),
            strategy=StrategyDecl(name="fedavg", settings={}),
            provenance={},
            files={},
        )

    def read(self, name: str) -> bytes:
        return self.files[name]


def port(name: str, role: Any, shape: tuple[int | str, ...], **more: Any) -> Port:
    return Port(
        name=name,
        role=role,
        key=more.pop("key", name),
        dtype=more.pop("dtype", "float32"),
        shape=shape,
        **more,
    )


def onnx_bytes(program: Program, nodes: Sequence[Any], functions: Any = ()) -> bytes:
    """The program's ports as graph inputs and outputs around ``nodes``."""

    def infos(ports: Sequence[Port]) -> list[Any]:
        return [
            helper.make_tensor_value_info(
                p.name, _TYPES[p.dtype], [str(d) if isinstance(d, str) else d for d in p.shape]
            )
            for p in ports
        ]

    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [0])
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    graph = helper.make_graph(
        nodes, "hand", infos(program.inputs), infos(program.outputs), initializer=[axis, one]
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("protofleet", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
    checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def train_program(**changes: Any) -> tuple[Program, list[Any]]:
    """loss = Σw·x̄; ∂w = x̄; ∂v = (Σuniform, Σnormal); new s = s + 1; t is not written."""
    inputs = (
        port("w", "param", (3,)),
        port("s", "state", (4,)),
        port("x", "input", ("batch", 3)),
        port("y", "input", ("batch",), dtype="int64"),
        port("u", "noise", ("batch*2", 3), distribution="uniform"),
        port("n", "noise", ("batch",), distribution="normal"),
    )
    outputs = (
        port("loss", "loss", ()),
        port("dw", "grad", (3,), key="w"),
        port("dv", "grad", (2,), key="v"),
        port("s_new", "state", (4,), key="s"),
    )
    node = helper.make_node
    nodes = [
        node("ReduceMean", ["x"], ["dw"], axes=[0], keepdims=0),
        node("Mul", ["w", "dw"], ["wx"]),
        node("ReduceSum", ["wx", "axis"], ["loss"], keepdims=0),
        node("ReduceSum", ["u"], ["sum_u"], keepdims=0),
        node("ReduceSum", ["n"], ["sum_n"], keepdims=0),
        node("Unsqueeze", ["sum_u", "axis"], ["u1"]),
        node("Unsqueeze", ["sum_n", "axis"], ["n1"]),
        node("Concat", ["u1", "n1"], ["dv"], axis=0),
        node("Add", ["s", "one"], ["s_new"]),
    ]
    fields: dict[str, Any] = {
        "file": "programs/train.onnx",
        "inputs": inputs,
        "outputs": outputs,
        "objective": "toy",
    }
    return Program(**{**fields, **changes}), nodes


def infer_program(key: str = "logits") -> tuple[Program, list[Any]]:
    """Rows minus the batch's sum, so that the batch shows in the result; times w."""
    program = Program(
        file=f"programs/{key}.onnx",
        inputs=(port("w", "param", (3,)), port("x", "input", ("batch", 3))),
        outputs=(port(key, "output", ("batch", 3)),),
    )
    node = helper.make_node
    return program, [
        node("ReduceSum", ["x", "axis"], ["total"], keepdims=1),
        node("Sub", ["x", "total"], ["centred"]),
        node("Mul", ["centred", "w"], [key]),
    ]


def layered_program() -> tuple[Program, list[Any]]:
    """Features with two hidden layers: the rows times w and its square; a third output is extra."""
    program, nodes = infer_program("features")
    outputs = (
        *program.outputs,
        port("h0", "output", ("batch", 3), key="layers.body.0"),
        port("extra", "output", ("batch", 3)),
        port("h1", "output", ("batch", 3), key="layers.body.2"),
    )
    node = helper.make_node
    nodes += [
        node("Mul", ["x", "w"], ["h0"]),
        node("Mul", ["h0", "w"], ["h1"]),
        node("Neg", ["h1"], ["extra"]),
    ]
    return msgspec.structs.replace(program, outputs=outputs), nodes


@pytest.fixture
def bundle() -> HandMade:
    made = HandMade(params={"w": (3,), "v": (2,)}, state={"t": (2,), "s": (4,)})
    made.add("train", *train_program())
    made.add("infer", *infer_program())
    made.add("features", *infer_program("features"))
    return made


@pytest.fixture
def make_port() -> Any:
    return port


@pytest.fixture
def make_layered() -> Any:
    return layered_program


@pytest.fixture
def make_train() -> Any:
    return train_program
