"""Recurrent layers in ONNX: single nodes, defined by functions of ordinary operators.

Domain ``protofleet``, version 1; symbols as in ``protofleet.export.capture.recurrent_ops``. A layer
that trains is a ``Scan``, forward and backward: its body holds what one step needs of the step
before, so the file does not grow with the number of steps. Without a gradient it is the standard
``LSTM``, ``GRU`` or ``RNN``, for which runtimes have kernels; these order the gates in their way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnx.inliner
import torch
from torch import fx

from protofleet.export.capture.alp_nodes import DOMAIN, VERSION

_FLOAT = int(onnx.TensorProto.FLOAT)
_REVERSE, _ONCE = "Reverse", "Once"
"""Last parts of a function's name: from the last step to the first; of a single step, no loop."""

Text = Callable[[str], str]
"""A function's definition for its name."""

_HEADER = f'<domain: "{DOMAIN}", opset_import: ["" : 18]>\n'
_EMPTY = ("attr_floats", "attr_strs", "metadata_props_keys", "metadata_props_values")
_multi_out = torch.ops.onnx_symbolic._symbolic_multi_out.default  # noqa: SLF001 - its name


def name_nodes(graph: fx.Graph) -> None:
    """Turn recurrent operators into nodes that ``define_functions`` defines. Changes ``graph``."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _OPERATORS:
            _name(graph, node)


def _name(graph: fx.Graph, node: fx.Node) -> None:
    tensors = [argument for argument in node.args if isinstance(argument, fx.Node)]
    flags = [argument for argument in node.args if isinstance(argument, bool)]
    results = node.meta["val"]
    with graph.inserting_before(node):
        # All steps of the first tensor lie before its batch.
        batch = graph.call_function(torch.ops.aten.sym_size.int, (tensors[0], 1))
    batch.meta["val"] = tensors[0].meta["val"].shape[1]
    described: dict[str, Any] = dict.fromkeys(_EMPTY, ())
    described |= {"attr_keys": ["hidden_size"], "attr_types": ["i"], "attr_pos": [(0, 1)]}
    node.kwargs = described | {
        "attr_ints": [int(results[1].shape[-1])],
        "shapes": [[d if isinstance(d, int) else batch for d in one.shape] for one in results],
        "domain": DOMAIN,
        "version": VERSION,
    }
    once = tensors[0].meta["val"].shape[0] == 1
    node.args = (tensors, _op_type(node.target, flags, once=once), [_FLOAT] * len(results))
    node.target = _multi_out


def define_functions(model: onnx.ModelProto) -> None:
    """Add the definitions of the recurrent nodes that ``model`` uses.

    Single steps are put in place of their nodes: a user's loop has hundreds, and ONNX Runtime's
    time to load so many calls of functions grows with the square of their number.
    """
    used = {node.op_type for node in model.graph.node if node.domain == DOMAIN}
    for op_type in sorted(used.intersection(_FUNCTIONS)):
        text = _FUNCTIONS[op_type](op_type)
        model.functions.append(onnx.parser.parse_function(text))
    single = [(DOMAIN, op_type) for op_type in sorted(used) if op_type.endswith(_ONCE)]
    if single:
        model.CopyFrom(onnx.inliner.inline_selected_functions(model, single))


def _op_type(target: Any, flags: Sequence[bool], *, once: bool) -> str:
    """``LstmForward``, ``RnnReluBackwardReverse``, …: one function for each."""
    kind, *part = _OPERATORS[target]
    *relu, reverse = flags
    name = "".join((kind, "Relu" if any(relu) else "", *part))
    return "".join((name, _REVERSE if reverse else "", _ONCE if once else ""))


_ops = torch.ops.protofleet
_OPERATORS: dict[Any, tuple[str, ...]] = {
    _ops.lstm.default: ("Lstm",),
    _ops.lstm_forward.default: ("Lstm", "Forward"),
    _ops.lstm_backward.default: ("Lstm", "Backward"),
    _ops.gru.default: ("Gru",),
    _ops.gru_forward.default: ("Gru", "Forward"),
    _ops.gru_backward.default: ("Gru", "Backward"),
    _ops.rnn.default: ("Rnn",),
    _ops.rnn_forward.default: ("Rnn", "Forward"),
    _ops.rnn_backward.default: ("Rnn", "Backward"),
}

_LSTM_STEP = """
    total = Gemm (h, across, gates_t)
    i_sum, f_sum, g_sum, o_sum = Split <axis = 1, num_outputs = 4> (total)
    i_t = Sigmoid (i_sum)
    f_t = Sigmoid (f_sum)
    g_t = Tanh (g_sum)
    o_t = Sigmoid (o_sum)
    kept = Mul (f_t, c)
    added = Mul (i_t, g_t)
    c_next = Add (kept, added)
    bent = Tanh (c_next)
    h_next = Mul (o_t, bent)
    y_t = Identity (h_next)
    cells_t = Identity (c_next)
"""

_LSTM_STEP_BACK = """
    bent = Tanh (cells_t)
    by_h = Add (grad_h, grad_t)
    by_o = Mul (by_h, o_t)
    o_part = Mul (by_o, bent)
    lost = Mul (o_part, bent)
    through = Sub (by_o, lost)
    by_c = Add (grad_c, through)
    by_i = Mul (by_c, i_t)
    c_next = Mul (by_c, f_t)
    i_rest = Sub (one, i_t)
    i_part = Mul (by_i, g_t)
    i_sum = Mul (i_part, i_rest)
    f_rest = Sub (one, f_t)
    f_part = Mul (c_next, before_t)
    f_sum = Mul (f_part, f_rest)
    g_lost = Mul (i_part, g_t)
    g_sum = Sub (by_i, g_lost)
    o_rest = Sub (one, o_t)
    o_sum = Mul (o_part, o_rest)
    by_gates_t = Concat <axis = 1> (i_sum, f_sum, g_sum, o_sum)
    h_next = MatMul (by_gates_t, w_hh)
"""

_GRU_STEP = """
    own = Gemm (h, across, b_hh)
    r_sum, z_sum, n_sum = Split <axis = 1, num_outputs = 3> (gates_t)
    r_own, z_own, inner_t = Split <axis = 1, num_outputs = 3> (own)
    r_total = Add (r_sum, r_own)
    r_t = Sigmoid (r_total)
    z_total = Add (z_sum, z_own)
    z_t = Sigmoid (z_total)
    reset = Mul (r_t, inner_t)
    n_total = Add (n_sum, reset)
    n_t = Tanh (n_total)
    difference = Sub (h, n_t)
    kept = Mul (z_t, difference)
    h_next = Add (n_t, kept)
    y_t = Identity (h_next)
"""

_GRU_STEP_BACK = """
    by_h = Add (grad_h, grad_t)
    kept = Mul (by_h, z_t)
    moved = Sub (by_h, kept)
    n_square = Mul (n_t, n_t)
    n_slope = Sub (one, n_square)
    n_sum = Mul (moved, n_slope)
    inner_sum = Mul (n_sum, r_t)
    r_rest = Sub (one, r_t)
    r_part = Mul (inner_sum, inner_t)
    r_sum = Mul (r_part, r_rest)
    difference = Sub (before_t, n_t)
    z_part = Mul (moved, z_t)
    z_sum = Mul (z_part, difference)
    by_gates_t = Concat <axis = 1> (r_sum, z_sum, n_sum)
    own_t = Concat <axis = 1> (r_sum, z_sum, inner_sum)
    through = MatMul (own_t, w_hh)
    h_next = Add (kept, through)
"""


def _rnn_step(activation: str) -> str:
    return f"""
    total = Gemm (h, across, gates_t)
    h_next = {activation} (total)
    y_t = Identity (h_next)
"""


_TANH_SLOPE = """
    square = Mul (y_t, y_t)
    slope = Sub (one, square)
"""

_RELU_SLOPE = """
    is_positive = Greater (y_t, zero)
    slope = CastLike (is_positive, y_t)
"""


def _rnn_step_back(slope: str) -> str:
    return f"""
    by_h = Add (grad_h, grad_t){slope}
    by_gates_t = Mul (by_h, slope)
    h_next = MatMul (by_gates_t, w_hh)
"""


_CONSTANTS = {
    "zero_at": "zero_at = Constant <value_ints = [0]> ()",
    "(one,": "one = Constant <value_float = 1.0> ()",
    ", zero)": "zero = Constant <value_float = 0.0> ()",
    "across": "across = Transpose <perm = [1, 0]> (w_hh)",
}
"""What a body may read → its definition."""


def _scan(  # noqa: PLR0913 - a function's parts
    name: str,
    signature: str,
    *,
    states: Sequence[str],
    read: dict[str, str],
    written: dict[str, str],
    step: str,
) -> Text:
    """A function that goes through all steps, forward or from the last one.

    Args:
        name: of the function for the forward direction; a gradient runs against it.
        signature: inputs and outputs.
        states: what the body makes of ``h`` or ``grad_h`` is ``h_next``, and the last one ``h_n``.
        read: name in the body → what is read step by step.
        written: name in the body → what comes out step by step.
        step: the body.
    """
    nexts = [state.removeprefix("grad_") for state in states]
    inputs = ", ".join(f"float[B, n_{one}] {one}" for one in (*states, *read))
    outputs = [*(f"{one}_next" for one in nexts), *written]
    results = ", ".join(f"float[B, n_{one}] {one}" for one in outputs)

    def loop(turned: int) -> str:
        return f"""{", ".join((*(f"{one}_n" for one in nexts), *written.values()))} = Scan <
        num_scan_inputs = {len(read)},
        scan_input_directions = {[turned] * len(read)},
        scan_output_directions = {[turned] * len(written)},
        body = step ({inputs}) => ({results})
        {{{step}}}
    > ({", ".join((*states, *read.values()))})"""

    def single() -> str:
        before = (f"{one} = Squeeze ({source}, zero_at)" for one, source in read.items())
        behind = (f"{result} = Unsqueeze ({one}, zero_at)" for one, result in written.items())
        final = (f"{one}_n = Identity ({one}_next)" for one in nexts)
        return "\n    ".join((*before, step, *behind, *final))

    def text(full_name: str) -> str:
        turned = int((_REVERSE in full_name) != name.endswith("Backward"))
        body = single() if full_name.endswith(_ONCE) else loop(turned)
        constants = "\n    ".join(line for one, line in _CONSTANTS.items() if one in body)
        return f"""{_HEADER}{full_name} <hidden_size> {signature}
{{
    {constants}
    {body}
}}
"""

    return text


def _rnn(relu: str, activation: str, slope: str) -> dict[str, Text]:
    return {
        f"Rnn{relu}": _standard(
            "(x, w_ih, w_hh, bias, h) => (y, h_n)",
            _RNN.replace("BEND", activation),
        ),
        f"Rnn{relu}Forward": _scan(
            f"Rnn{relu}Forward",
            "(gates, w_hh, h) => (y, h_n)",
            states=("h",),
            read={"gates_t": "gates"},
            written=_each("y"),
            step=_rnn_step(activation),
        ),
        f"Rnn{relu}Backward": _scan(
            f"Rnn{relu}Backward",
            "(grad_y, grad_h, w_hh, y) => (by_gates, h_n)",
            states=("grad_h",),
            read={"grad_t": "grad_y"} | _each("y"),
            written=_each("by_gates"),
            step=_rnn_step_back(slope),
        ),
    }


def _standard(signature: str, body: str) -> Text:
    """A function around the runtime's own operator, with a leading axis for its directions."""

    def text(full_name: str) -> str:
        direction = f'direction = "{"reverse" if _REVERSE in full_name else "forward"}"'
        full = body.replace("DIRECTION", f"hidden_size: int = @hidden_size, {direction}")
        return f"""{_HEADER}{full_name} <hidden_size> {signature}
{{
    zero_at = Constant <value_ints = [0]> ()
    one_at = Constant <value_ints = [1]> ()
    h_one = Unsqueeze (h, zero_at){full}
    y = Squeeze (y_one, one_at)
    h_n = Squeeze (h_last, zero_at)
}}
"""

    return text


def _each(*names: str) -> dict[str, str]:
    return {f"{name}_t": name for name in names}


# Gates i, o, f, c, and two biases whose sum counts.
_LSTM = """
    i_in, f_in, g_in, o_in = Split <axis = 0, num_outputs = 4> (w_ih)
    i_hid, f_hid, g_hid, o_hid = Split <axis = 0, num_outputs = 4> (w_hh)
    i_bias, f_bias, g_bias, o_bias = Split <axis = 0, num_outputs = 4> (bias)
    none = Sub (bias, bias)
    w = Concat <axis = 0> (i_in, o_in, f_in, g_in)
    r = Concat <axis = 0> (i_hid, o_hid, f_hid, g_hid)
    b = Concat <axis = 0> (i_bias, o_bias, f_bias, g_bias, none)
    w_one = Unsqueeze (w, zero_at)
    r_one = Unsqueeze (r, zero_at)
    b_one = Unsqueeze (b, zero_at)
    c_one = Unsqueeze (c, zero_at)
    y_one, h_last, c_last = LSTM <DIRECTION> (x, w_one, r_one, b_one, , h_one, c_one)
    c_n = Squeeze (c_last, zero_at)"""

# Gates z, r, n; the reset gate after the product, as in PyTorch.
_GRU = """
    r_in, z_in, n_in = Split <axis = 0, num_outputs = 3> (w_ih)
    r_hid, z_hid, n_hid = Split <axis = 0, num_outputs = 3> (w_hh)
    r_bias, z_bias, n_bias = Split <axis = 0, num_outputs = 3> (b_ih)
    r_own, z_own, n_own = Split <axis = 0, num_outputs = 3> (b_hh)
    w = Concat <axis = 0> (z_in, r_in, n_in)
    r = Concat <axis = 0> (z_hid, r_hid, n_hid)
    b = Concat <axis = 0> (z_bias, r_bias, n_bias, z_own, r_own, n_own)
    w_one = Unsqueeze (w, zero_at)
    r_one = Unsqueeze (r, zero_at)
    b_one = Unsqueeze (b, zero_at)
    y_one, h_last = GRU <DIRECTION, linear_before_reset = 1> (x, w_one, r_one, b_one, , h_one)"""

_RNN = """
    none = Sub (bias, bias)
    b = Concat <axis = 0> (bias, none)
    w_one = Unsqueeze (w_ih, zero_at)
    r_one = Unsqueeze (w_hh, zero_at)
    b_one = Unsqueeze (b, zero_at)
    y_one, h_last = RNN <DIRECTION, activations = ["BEND"]> (x, w_one, r_one, b_one, , h_one)"""

_BY_KIND: dict[str, Text] = {
    "Lstm": _standard("(x, w_ih, w_hh, bias, h, c) => (y, h_n, c_n)", _LSTM),
    "LstmForward": _scan(
        "LstmForward",
        "(gates, w_hh, h, c) => (y, h_n, c_n, cells, i, f, g, o)",
        states=("h", "c"),
        read={"gates_t": "gates"},
        written=_each("y", "cells", "i", "f", "g", "o"),
        step=_LSTM_STEP,
    ),
    "LstmBackward": _scan(
        "LstmBackward",
        "(grad_y, grad_h, grad_c, w_hh, cells, before, i, f, g, o) => (by_gates, h_n, c_n)",
        states=("grad_h", "grad_c"),
        read={"grad_t": "grad_y"} | _each("cells", "before", "i", "f", "g", "o"),
        written=_each("by_gates"),
        step=_LSTM_STEP_BACK,
    ),
    "Gru": _standard("(x, w_ih, w_hh, b_ih, b_hh, h) => (y, h_n)", _GRU),
    "GruForward": _scan(
        "GruForward",
        "(gates, w_hh, b_hh, h) => (y, h_n, r, z, n, inner)",
        states=("h",),
        read={"gates_t": "gates"},
        written=_each("y", "r", "z", "n", "inner"),
        step=_GRU_STEP,
    ),
    "GruBackward": _scan(
        "GruBackward",
        "(grad_y, grad_h, w_hh, before, r, z, n, inner) => (by_gates, own, h_n)",
        states=("grad_h",),
        read={"grad_t": "grad_y"} | _each("before", "r", "z", "n", "inner"),
        written=_each("by_gates", "own"),
        step=_GRU_STEP_BACK,
    ),
    **_rnn("", "Tanh", _TANH_SLOPE),
    **_rnn("Relu", "Relu", _RELU_SLOPE),
}
_FUNCTIONS: dict[str, Text] = {
    f"{kind}{direction}{number}": text
    for kind, text in _BY_KIND.items()
    for direction in ("", _REVERSE)
    for number in ("", _ONCE)
}
