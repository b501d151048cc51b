"""ALP's operators in ONNX: single nodes, defined by functions of ordinary operators.

Domain ``protofleet``, version 1, nodes ``AlpTrain`` and ``AlpInfer`` with the arguments of
``protofleet.export.models.alp``, where symbols and source stand. A runtime that knows the domain
replaces them by its own kernels; any other runs the definition that the model carries.
"""

from __future__ import annotations

import onnx

from protofleet.errors import ExportError
from protofleet.export.capture.alp_nodes import DOMAIN

_OP_TYPES = ("AlpInfer", "AlpTrain")


def define_functions(model: onnx.ModelProto) -> None:
    """Add the definitions of the ALP nodes that ``model`` uses.

    Raises:
        ExportError: nodes of one kind differ in variant or iterations: a definition fits one.
    """
    forms: dict[str, set[tuple[str, int]]] = {}
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type in _OP_TYPES:
            forms.setdefault(node.op_type, set()).add(_form(node))
    for op_type, found in sorted(forms.items()):
        if len(found) > 1:
            raise ExportError(
                f"{op_type}: expected one variant and number of iterations in a model, got "
                f"{sorted(found)}"
            )
        variant, iterations = found.pop()
        text = _infer(iterations) if op_type == "AlpInfer" else _train(variant, iterations)
        model.functions.append(onnx.parser.parse_function(text))


def _form(node: onnx.NodeProto) -> tuple[str, int]:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return attributes.get("variant", b"").decode(), attributes["iterations"]


_HEADER = f'<domain: "{DOMAIN}", opset_import: ["" : 18]>\n'

_CONSTANTS = """
    one = Constant <value_float = 1.0> ()
    floor = Constant <value_float = 1e-12> ()
    epsilon_value = Constant <value_float: float = @epsilon> ()
    zero_at = Constant <value_ints = [0]> ()
    one_at = Constant <value_ints = [1]> ()
    two_at = Constant <value_ints = [2]> ()
    x_shape = Shape (x)
    width_at = Shape <start = 2, end = 3> (x)
    minus_one = Constant <value_ints = [-1]> ()
    rows_shape = Concat <axis = 0> (minus_one, width_at)
    rows = Reshape (x, rows_shape)
    number_at = Shape <start = 0, end = 1> (rows)
"""


def _normalised(source: str, result: str) -> str:
    """L2 norm over the last axis, with the reference's floor under the root."""
    return f"""
    {result}_squares = Mul ({source}, {source})
    {result}_sum = ReduceSum <keepdims = 1> ({result}_squares, one_at)
    {result}_floored = Max ({result}_sum, floor)
    {result}_norm = Sqrt ({result}_floored)
    {result} = Div ({source}, {result}_norm)
"""


def _plan(prototypes: str, iterations: int) -> str:
    """The plan (N, P), rows first and columns last, by scaling vectors."""
    text = _normalised("rows", "unit_rows") + _normalised(prototypes, "unit_prototypes")
    text += """
    prototypes_t = Transpose <perm = [1, 0]> (unit_prototypes)
    cosine = MatMul (unit_rows, prototypes_t)
    sharpened = Div (cosine, epsilon_value)
    kernel = Exp (sharpened)
"""
    column = "ones_column"
    row = "ones_row"
    # Sizes come from what is small: a late reader would keep the plan's memory until then.
    text += f"""
    count_at = Shape <start = 0, end = 1> ({prototypes})
    column_shape = Concat <axis = 0> (count_at, one_at)
    ones_column = Expand (one, column_shape)
"""
    if not iterations:
        text += """
    row_shape = Concat <axis = 0> (one_at, number_at)
    ones_row = Expand (one, row_shape)
"""
    for i in range(iterations):
        text += f"""
    row_sum_{i} = MatMul (kernel, {column})
    row_up_{i} = Div (one, row_sum_{i})
    row_{i} = Transpose <perm = [1, 0]> (row_up_{i})
    column_sum_{i} = MatMul (row_{i}, kernel)
    column_flat_{i} = Div (one, column_sum_{i})
    column_{i} = Transpose <perm = [1, 0]> (column_flat_{i})
"""
        row, column = f"row_{i}", f"column_{i}"
    return (
        text
        + f"""
    row_scale = Transpose <perm = [1, 0]> ({row})
    column_scale = Transpose <perm = [1, 0]> ({column})
    row_scaled = Mul (row_scale, kernel)
    plan = Mul (row_scaled, column_scale)
"""
    )


def _infer(iterations: int) -> str:
    return f"""{_HEADER}AlpInfer <epsilon, iterations> (x, local) => (chosen)
{{{_CONSTANTS}{_plan("local", iterations)}
    best = ArgMax <axis = 1, keepdims = 0> (plan)
    picked = Gather <axis = 0> (local, best)
    chosen = Reshape (picked, x_shape)
}}
"""


def _train(variant: str, iterations: int) -> str:
    """Definition of ``AlpTrain``.

    Adding ``nothing``, a difference of equal sizes, makes ``chosen`` wait until the update has read
    the plan. Else ONNX Runtime puts the update off to the end, and keeps the plans of all layers.
    """
    update = _single() if variant == "single_code" else _bulk(variant)
    return f"""{_HEADER}AlpTrain <variant, gamma, epsilon, iterations>
(x, local, global_) => (chosen, new_local)
{{{_CONSTANTS}
    gamma_value = Constant <value_float: float = @gamma> ()
    moving = Sub (one, gamma_value)
    both = Concat <axis = 0> (local, global_){_plan("both", iterations)}
    size_at = Shape <start = 0, end = 1> (local)
    local_plan = Slice (plan, zero_at, size_at, one_at)
    global_plan = Slice (plan, size_at, count_at, one_at)
    best = ArgMax <axis = 1, keepdims = 0> (global_plan)
    picked = Gather <axis = 0> (global_, best){update}
    nothing = Sub (read_at, due_at)
    chosen_shape = Add (x_shape, nothing)
    chosen = Reshape (picked, chosen_shape)
}}
"""


def _single() -> str:
    """Every row overwrites its best prototype; of colliding rows the last one wins."""
    return """
    writes = ArgMax <axis = 1, keepdims = 0> (local_plan)
    read_at = Shape (writes)
    due_at = Identity (number_at)
    zero = Constant <value_int = 0> ()
    step = Constant <value_int = 1> ()
    rows_number = Squeeze (number_at, zero_at)
    order = Range (zero, rows_number, step)
    nobody = Expand (minus_one, size_at)
    writer = ScatterElements <axis = 0, reduction = "max"> (nobody, writes, order)
    is_written = GreaterOrEqual (writer, zero)
    is_written_column = Unsqueeze (is_written, one_at)
    some_writer = Max (writer, zero)
    written = Gather <axis = 0> (rows, some_writer)
    kept = Mul (gamma_value, local)
    added = Mul (moving, written)
    moved = Add (kept, added)
    new_local = Where (is_written_column, moved, local)
"""


def _bulk(variant: str) -> str:
    """Every prototype moves towards the k rows that its plan column weighs most."""
    if variant == "bulk_code":
        # max(1, B // G): the reference counts samples, not tokens.
        count = """
    batch_at = Shape <start = 0, end = 1> (x)
    per_prototype = Div (batch_at, size_at)
    k = Max (per_prototype, one_at)
"""
    else:
        # B·Z / G, rounded up.
        count = """
    padded = Add (number_at, size_at)
    padded_less = Sub (padded, one_at)
    k = Div (padded_less, size_at)
"""
    if variant == "paper_pseudo":
        weights, source = "\n    weights = Identity (best_values)", "unit_rows"
    else:
        weights, source = (
            """
    total = ReduceSum <keepdims = 1> (best_values, one_at)
    weights = Div (best_values, total)""",
            "rows",
        )
    return f"""{count}
    by_prototype = Transpose <perm = [1, 0]> (local_plan)
    best_values, best_rows = TopK <axis = 1, largest = 1, sorted = 1> (by_prototype, k){weights}
    read_at = Shape <start = 1, end = 2> (best_rows)
    due_at = Identity (k)
    members = Gather <axis = 0> ({source}, best_rows)
    weights_row = Unsqueeze (weights, one_at)
    pulled_row = MatMul (weights_row, members)
    pulled = Squeeze (pulled_row, one_at)
    kept = Mul (gamma_value, local)
    added = Mul (moving, pulled)
    new_local = Add (kept, added)
"""
