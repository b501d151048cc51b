"""ALP's operators in ONNX: single nodes, defined by functions of ordinary operators.

Domain ``protofleet``, version 1, nodes ``AlpTrain`` and ``AlpInfer`` with the arguments of
``protofleet.export.models.alp``, where symbols and source stand. A runtime that knows the domain
replaces them by its own kernels; any other runs the definition that the model carries.
``AlpAblationTrain`` and ``AlpAblationInfer`` have the definition alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import onnx

from protofleet.errors import ExportError
from protofleet.export.capture.alp_nodes import DOMAIN


def define_functions(model: onnx.ModelProto) -> None:
    """Add the definitions of the ALP nodes that ``model`` uses.

    Raises:
        ExportError: nodes of one kind differ in what their definition is written for.
    """
    forms: dict[str, set[_Form]] = {}
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type in _DEFINITIONS:
            forms.setdefault(node.op_type, set()).add(_form(node))
    for op_type, found in sorted(forms.items()):
        if len(found) > 1:
            raise ExportError(
                f"{op_type}: expected layers of a model to agree in all but gamma and epsilon, got "
                f"{' and '.join(sorted(map(str, found)))}"
            )
        text = _DEFINITIONS[op_type](found.pop())
        model.functions.append(onnx.parser.parse_function(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What a definition is written for; of the operators' arguments those that are no number."""

    variant: str = ""
    iterations: int = 0
    banks: str = "both"
    assignment: str = "transport"

    def __str__(self) -> str:
        return f"{self.variant or 'inference'}, {self.banks}, {self.assignment}, {self.iterations}"


def _form(node: onnx.NodeProto) -> _Form:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    found: dict[str, Any] = {
        one.name: value.decode() if isinstance(value := attributes[one.name], bytes) else value
        for one in fields(_Form)
        if one.name in attributes
    }
    return _Form(**found)


_HEADER = f'<domain: "{DOMAIN}", opset_import: ["" : 18]>\n'

_CONSTANTS = """
    one = Constant <value_float = 1.0> ()
    floor = Constant <value_float = 1e-12> ()
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
_EPSILON = """
    epsilon_value = Constant <value_float: float = @epsilon> ()
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


def _cosine(prototypes: str, result: str) -> str:
    return f"""{_normalised("rows", "unit_rows")}{_normalised(prototypes, "unit_prototypes")}
    prototypes_t = Transpose <perm = [1, 0]> (unit_prototypes)
    {result} = MatMul (unit_rows, prototypes_t)
"""


def _closeness(prototypes: str) -> str:
    """Minus the squared Euclidean distances, multiplied out."""
    return f"""
    row_squares = Mul (rows, rows)
    row_lengths = ReduceSum <keepdims = 1> (row_squares, one_at)
    prototype_squares = Mul ({prototypes}, {prototypes})
    prototype_lengths = ReduceSum <keepdims = 1> (prototype_squares, one_at)
    prototype_lengths_t = Transpose <perm = [1, 0]> (prototype_lengths)
    squares = Add (row_lengths, prototype_lengths_t)
    prototypes_t = Transpose <perm = [1, 0]> ({prototypes})
    products = MatMul (rows, prototypes_t)
    twice = Add (products, products)
    plan = Sub (twice, squares)
"""


def _scores(prototypes: str, form: _Form) -> str:
    """What rows and prototypes are matched by, as ``plan`` (N, P)."""
    if form.assignment == "transport":
        return _plan(prototypes, form.iterations)
    of = _cosine(prototypes, "plan") if form.assignment == "cosine" else _closeness(prototypes)
    return f"""{of}
    count_at = Shape <start = 0, end = 1> ({prototypes})
"""


def _best(scores: str, result: str, form: _Form) -> str:
    """The best column of every row; of a single row's plan, where all are equal, the first."""
    if form.assignment != "transport":
        return f"""
    {result} = ArgMax <axis = 1, keepdims = 0> ({scores})
"""
    return f"""
    {result}_found = ArgMax <axis = 1, keepdims = 0> ({scores})
    {result}_several = Greater (number_at, one_at)
    {result}_factor = Cast <to = 7> ({result}_several)
    {result} = Mul ({result}_found, {result}_factor)
"""


def _plan(prototypes: str, iterations: int) -> str:
    """The plan (N, P), rows first and columns last, by scaling vectors."""
    text = _cosine(prototypes, "cosine")
    text += f"""{_EPSILON}
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


def _infer(form: _Form) -> str:
    return f"""{_HEADER}AlpInfer <epsilon, iterations> (x, local) => (chosen)
{{{_CONSTANTS}{_scores("local", form)}{_best("plan", "best", form)}
    picked = Gather <axis = 0> (local, best)
    chosen = Reshape (picked, x_shape)
}}
"""


def _ablation_infer(form: _Form) -> str:
    return f"""{_HEADER}AlpAblationInfer <assignment> (x, prototypes) => (chosen)
{{{_CONSTANTS}{_scores("prototypes", form)}{_best("plan", "best", form)}
    picked = Gather <axis = 0> (prototypes, best)
    chosen = Reshape (picked, x_shape)
}}
"""


def _train(form: _Form) -> str:
    names = "variant, gamma, epsilon, iterations"
    return _training(f"AlpTrain <{names}>", form)


def _ablation_train(form: _Form) -> str:
    names = "variant, banks, assignment, gamma, epsilon, iterations"
    return _training(f"AlpAblationTrain <{names}>", form)


_HALVES = """
    local_plan = Slice (plan, zero_at, size_at, one_at)
    global_plan = Slice (plan, size_at, count_at, one_at)
"""
_WHOLE = """
    local_plan = Identity (plan)
    global_plan = Identity (plan)
"""


def _training(head: str, form: _Form) -> str:
    """Definition of an operator that trains.

    Adding ``nothing``, a difference of equal sizes, makes ``chosen`` wait until the update has read
    the plan. Else ONNX Runtime puts the update off to the end, and keeps the plans of all layers.
    """
    update = _single(form) if form.variant == "single_code" else _bulk(form)
    active = {"both": "both", "local": "local", "global": "global_"}[form.banks]
    bank = "local" if form.banks == "local" else "global_"
    return f"""{_HEADER}{head}
(x, local, global_) => (chosen, new_local)
{{{_CONSTANTS}
    gamma_value = Constant <value_float: float = @gamma> ()
    moving = Sub (one, gamma_value)
    both = Concat <axis = 0> (local, global_){_scores(active, form)}
    size_at = Shape <start = 0, end = 1> (local){_HALVES if form.banks == "both" else _WHOLE}
    {_best("global_plan", "best", form)}
    picked = Gather <axis = 0> ({bank}, best){update}
    nothing = Sub (read_at, due_at)
    chosen_shape = Add (x_shape, nothing)
    chosen = Reshape (picked, chosen_shape)
}}
"""


def _single(form: _Form) -> str:
    """Every row overwrites its best prototype; of colliding rows the last one wins."""
    return f"""{_best("local_plan", "writes", form)}
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


def _bulk(form: _Form) -> str:
    """Every prototype moves towards the k rows that fit it best, without a plan to their mean."""
    if form.variant == "bulk_code":
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
    if form.assignment != "transport":
        weights, source = (
            """
    rank_shape = Shape (best_values)
    equal_values = Expand (one, rank_shape)
    total = ReduceSum <keepdims = 1> (equal_values, one_at)
    weights = Div (equal_values, total)""",
            "rows",
        )
    elif form.variant == "paper_pseudo":
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


_DEFINITIONS: dict[str, Callable[[_Form], str]] = {
    "AlpAblationInfer": _ablation_infer,
    "AlpAblationTrain": _ablation_train,
    "AlpInfer": _infer,
    "AlpTrain": _train,
}
