"""What is told of a model before minutes of export or training: what it is, takes and returns.

Everything here runs the model some dozen times on one or two examples and leaves it as it was. A
message names the module, the line of the user's own code where there is one, and the remedy.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from protofleet.errors import ExportError, InputError
from protofleet.export.batch_of_one import check_one_example
from protofleet.export.capture.functions import TensorsOnly
from protofleet.export.capture.graph_ports import holds_infinity
from protofleet.export.independence import check_independent
from protofleet.export.source_locations import (
    ModuleStack,
    first_line,
    forward_of,
    labelled,
    line_here,
    line_of,
    runs_models,
)
from protofleet.export.training_mode import check_repeatable, mode_of, trained_once
from protofleet.printable import printable
from protofleet.tensors import TaskName
from protofleet.tensors.blobs import MAX_NAME_CHARS

_aten = torch.ops.aten

_NARROW = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedOutput:
    """What a task wants of a model's output ``(n, width)``.

    Attributes:
        loss: as messages call it.
        values: what the output holds, and of what, as messages call them.
        width: how many numbers an example has, by the names that they have; None: any.
        least: fewest numbers of an example, and why.
        scores: the loss is of scores without bounds: a Softmax or Sigmoid before it is an error.
        by_step: an example has them for each of its steps: ``(n, steps, width)``.
    """

    loss: str = "cross-entropy"
    values: tuple[str, str] = ("logits", "classes")
    width: Sequence[str] | None = None
    least: int = 2
    scores: bool = True
    by_step: bool = False

    @property
    def axes(self) -> str:
        """Behind the examples', as messages call them."""
        return f"steps, {self.values[1]}" if self.by_step else self.values[1]


def classification(classes: Sequence[str] | None = None) -> ExpectedOutput:
    """Logits, one of each class; None: of any number of classes."""
    return ExpectedOutput(width=classes)


def expected_output(task: TaskName, names: Sequence[str] | None = None) -> ExpectedOutput:
    """What a task wants, of outputs with these names; None: of any number."""
    kinds: dict[TaskName, ExpectedOutput] = {
        "classification": classification(names),
        "segmentation": ExpectedOutput(width=names, by_step=True),
        "regression": ExpectedOutput(
            loss="a regression", values=("values", "targets"), width=names, least=1, scores=False
        ),
        "multilabel": ExpectedOutput(
            loss="binary cross-entropy", values=("logits", "labels"), width=names, least=1
        ),
    }
    return kinds[task]


def check_model(
    model: nn.Module,
    x: Tensor,
    expected: ExpectedOutput,
    *,
    allow_probabilities: bool = False,
) -> Tensor:
    """All checks; the output for ``x``.

    Args:
        model: its training mode and its values stay as they are.
        x: two examples or more, (n, …).
        expected: what the task wants.
        allow_probabilities: take a model that ends with Softmax or Sigmoid nevertheless.

    Raises:
        InputError: the model cannot be exported or trained for this task.
    """
    check_tensors(model)
    output, end = run_example(model, x, expected)
    check_output(model, output, len(x), expected)
    check_one_example(model, x)
    if expected.scores and end is not None and not allow_probabilities:
        raise InputError(
            f"{end.place}: the model ends with {end.name}, but {expected.loss} takes the scores "
            f"before it and does that itself; with both, gradients nearly vanish: leave {end.name} "
            "out (--allow-probabilities trains it as it is)"
        )
    trained = check_repeatable(model, x)
    if trained is not None and not isinstance(trained, Tensor):
        told, *_ = _unwrap(trained, expected).split("; wrap")
        raise InputError(
            f"{forward_of(model)}: in training mode it {told}, as without it; return what the "
            "classes are told by in both modes, and leave a head that only helps training out of "
            "forward"
        )
    _check_written(model, x)
    check_independent(model, x)
    return output


def _check_written(model: nn.Module, x: Tensor) -> None:
    """Raise InputError where training writes a buffer that is a constant for being infinite."""
    kept = model.state_dict(keep_vars=True).keys()
    buffers = model.named_buffers()
    constant = {name for name, value in buffers if name in kept and holds_infinity(value)}
    if not constant:
        return
    for name in sorted(constant & trained_once(model, x).written):
        raise InputError(
            f"buffer '{name}': holds infinite values, and training writes it: what training writes "
            "travels and must be finite; start it with finite numbers (a mask: -1e9), or do not "
            "write it"
        )


def check_tensors(model: nn.Module) -> None:
    """Raise InputError unless parameters are initialised, float32, finite and in main memory.

    No persistent float32 buffer may hold NaN; one that holds an infinity is a constant.
    """
    for path, module in model.named_modules():
        where = labelled(path, module)
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                f"{where}: expected a module in Python, got TorchScript; leave torch.jit out"
            )
        for name, value in (*module._parameters.items(), *module._buffers.items()):  # noqa: SLF001 - in place, by their owner
            if value is None:
                continue
            _check_name(where, path, name, value)
            _check_tensor(where, name, value)
            kept = name not in module._non_persistent_buffers_set  # noqa: SLF001 - as above
            if kept and value.dtype == torch.float32:
                _check_finite(where, name, value)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(
            f"{labelled('', model)}: has no parameter to train; set requires_grad on some of its "
            "parameters"
        )


def _check_finite(where: str, name: str, value: Tensor) -> None:
    if isinstance(value, nn.Parameter) and not bool(torch.isfinite(value).all()):
        raise InputError(
            f"{where}: parameter '{name}' holds NaN or infinite values; look at what set it"
        )
    if bool(torch.isnan(value).any()):
        raise InputError(f"{where}: buffer '{name}' holds NaN; look at what set it")


def _check_name(where: str, path: str, name: str, value: Tensor) -> None:
    """As ``bundle.rules`` says it of a manifest: there the module that is to be renamed is lost."""
    whole = f"{path}.{name}" if path else name
    odd = next((c for c in whole if c == " " or not c.isprintable()), "")
    if not odd and len(whole) <= MAX_NAME_CHARS:
        return
    kind = "parameter" if isinstance(value, nn.Parameter) else "buffer"
    got = f"got {odd!a}" if odd else f"got {len(whole)}"
    part = max(whole.split("."), key=lambda one: (bool(odd) and odd in one, len(one)))
    raise InputError(
        f"{printable(where[:200])}: {kind} {whole[:80]!a}: a tensor is called by the modules that "
        f"lead to it, in 1 to {MAX_NAME_CHARS} printable characters, letters of any script but no "
        f"space: {got} in {part[:40]!a}; rename that attribute or key, as of nn.ModuleDict or "
        "add_module"
    )


def _check_tensor(where: str, name: str, value: Tensor) -> None:
    kind = "parameter" if isinstance(value, nn.Parameter) else "buffer"
    what = f"{where}: {kind} '{name}'"
    if is_lazy(value):
        raise InputError(
            f"{what} has no shape yet, it is lazy; run the model once where it is made: "
            "model(torch.zeros(1, …)), or give the sizes"
        )
    if value.device.type != "cpu":
        remedy = (
            "has no values; make the model without the device 'meta', or give it values with "
            "to_empty(device='cpu') and load_state_dict"
            if value.is_meta
            else "return model.cpu()"
        )
        raise InputError(f"{what} is on the device '{value.device}': {remedy}")
    if value.is_complex():
        raise InputError(
            f"{what} is {value.dtype}, and programs have no complex numbers; keep the real and the "
            "imaginary part as two float32 tensors"
        )
    if value.dtype in _NARROW or (kind == "parameter" and value.dtype != torch.float32):
        raise InputError(f"{what} is {value.dtype}, expected float32; return model.float()")


@dataclass(frozen=True, slots=True, kw_only=True)
class SquashedEnd:
    """A Softmax or Sigmoid that nothing but views follows.

    Attributes:
        name: ``Softmax`` or ``Sigmoid``.
        place: module and line that asked for it.
    """

    name: str
    place: str


def run_example(
    model: nn.Module, x: Tensor, expected: ExpectedOutput
) -> tuple[Tensor, SquashedEnd | None]:
    """The model's output for ``x`` in evaluation mode, and what squashed it.

    Raises:
        InputError: the forward takes more than ``x``, fails, or returns no tensor.
    """
    _check_signature(model)
    output, squashed = _run(model, x)
    if not isinstance(output, Tensor):
        raise InputError(f"{forward_of(model)}: {_unwrap(output, expected)}")
    return output, squashed.get(id(output))


@runs_models
def _run(model: nn.Module, x: Tensor) -> tuple[Any, dict[int, SquashedEnd]]:
    ends = _Ends(model)
    with mode_of(model, training=False), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            with ends.stack.following(), ends, TensorsOnly():
                return model(x), ends.squashed
        except Exception as error:
            place = ends.stack.place(line_of(error.__traceback__))
            if isinstance(error, ExportError):
                raise InputError(f"{place}: {error}") from error
            raise InputError(
                f"{place}: does not take examples of shape {tuple(x.shape[1:])}: "
                f"{first_line(error)}; set its sizes with --set, or the shape with --input-shape"
            ) from error


def _check_signature(model: nn.Module) -> None:
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (ValueError, TypeError):
        return
    needed = [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in {one.VAR_POSITIONAL, one.VAR_KEYWORD}
    ]
    if len(needed) > 1:
        raise InputError(
            f"{forward_of(model)}: takes {len(needed)} inputs, {', '.join(needed)}, but a program "
            "has one, x (n, …): join them along an axis and split x in forward, or wrap the model "
            "in a module whose forward(self, x) makes the others"
        )


def _unwrap(output: object, expected: ExpectedOutput) -> str:
    """What came instead of a tensor, and how to return the tensor."""
    name, values = type(output).__name__, expected.values[0]
    wanted = f"expected a tensor of {values} (n, {expected.axes})"
    if isinstance(output, Mapping):
        keys = [str(key) for key in output]
        chosen = "logits" if "logits" in keys else (keys or ["logits"])[0]
        found, part = f"a {name} with {', '.join(keys)}", f"['{chosen}']"
    elif dataclasses.is_dataclass(output):
        fields = [field.name for field in dataclasses.fields(output)]
        chosen = "logits" if "logits" in fields else (fields or ["logits"])[0]
        found, part = f"a {name} with {', '.join(fields)}", f".{chosen}"
    elif isinstance(output, tuple | list):
        fields = list(getattr(output, "_fields", ()))
        found, part = f"a {name} of {', '.join(fields) or len(output)}", "[0]"
    else:
        return f"returns {name}, {wanted}"
    return (
        f"returns {found}, {wanted}; wrap the model in a module whose forward(self, x) returns "
        f"self.model(x){part}"
    )


def check_output(model: nn.Module, output: Tensor, examples: int, expected: ExpectedOutput) -> None:
    """Raise InputError unless the output for so many examples is what the task wants."""
    where, got = forward_of(model), tuple(output.shape)
    if not output.is_floating_point():
        raise InputError(
            f"{where}: returns {output.dtype}, expected float32 {expected.values[0]}, no argmax"
        )
    if len(got) != 2 + expected.by_step or got[0] != examples:
        raise InputError(
            f"{where}: returns {got} for {examples} examples, expected ({examples}, "
            f"{expected.axes}); {_other_axes(got, examples, expected)}"
        )
    one = "a step" if expected.by_step else "an example"
    if got[-1] < expected.least:
        raise InputError(
            f"{where}: returns {got[-1]} number for {one}, but {expected.loss} of one class is "
            "always 0; give the model an output for each class, two for yes or no"
        )
    if expected.width is not None and got[-1] != len(expected.width):
        names = ", ".join(expected.width[:8]) + (", …" if len(expected.width) > 8 else "")
        remedy = "set the model's size with --set, or --classes (--targets)"
        if expected.by_step and got[1] == len(expected.width):
            remedy = "classes come last: return x.transpose(1, 2)"
        raise InputError(
            f"{where}: expected {len(expected.width)} numbers for {one}, one for each name "
            f"({names}), got {got[-1]}; {remedy}"
        )


def _other_axes(got: tuple[int, ...], examples: int, expected: ExpectedOutput) -> str:
    """The remedy for an output without its two axes."""
    if got == (examples,):
        one = "a single one is (n, 1)" if expected.least == 1 else "two for yes or no"
        return (
            f"keep an axis for the {expected.values[1]}, {one}: leave out what removes it, such as "
            "Flatten(0) or squeeze()"
        )
    if expected.by_step:
        return "keep an axis of steps, (n, steps, classes), or export with task classification"
    if len(got) == 3:
        return (
            "pool the other axes, as in x.mean(1); classes of each step (n, steps, classes) are a "
            "task of their own, segmentation"
        )
    if len(got) > 2:
        return "pool the other axes, as in x.mean(1)"
    return "keep the batch axis, as nn.Flatten(1) does"


def smallest_batch(model: nn.Module, x: Tensor) -> int:
    """Fewest examples on which the model trains: 2 if one fails or gives what is not finite.

    Batch normalisation of vectors (n, c) has no variance of one example; of (n, c, length) it has.

    Args:
        model: its values and its training mode stay as they are.
        x: two examples or more, (n, …).
    """
    return 2 if not _trains_on(model, x[:1]) and _trains_on(model, x[:2]) else 1


def _trains_on(model: nn.Module, x: Tensor) -> bool:
    try:
        done = trained_once(model, x)
    except Exception:  # noqa: BLE001 - whatever the user's code raises
        return False
    before = dict(model.named_buffers())
    pairs = ((value, before[name]) for name, value in done.buffers.items())
    output = done.output if isinstance(done.output, Tensor) else torch.zeros(())
    return bool(torch.isfinite(output).all()) and all(
        bool((torch.isfinite(value) | (value == old)).all())
        for value, old in pairs
        if value.is_floating_point()
    )


class _Ends(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Which tensors of a forward pass are a Softmax's or a Sigmoid's, and who asked for it."""

    _SQUASHING: Mapping[Any, str] = {
        _aten._softmax.default: "Softmax",  # noqa: SLF001 - an operator's name
        _aten.sigmoid.default: "Sigmoid",
        _aten.sigmoid_.default: "Sigmoid",
    }
    _VIEWS = frozenset(
        {
            _aten.alias.default,
            _aten.clone.default,
            _aten.detach.default,
            _aten.expand.default,
            _aten.permute.default,
            _aten.select.int,
            _aten.slice.Tensor,
            _aten.squeeze.default,
            _aten.squeeze.dim,
            _aten.t.default,
            _aten.transpose.int,
            _aten.unsqueeze.default,
            _aten.view.default,
            _aten._unsafe_view.default,  # noqa: SLF001 - as above
        }
    )

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.squashed: dict[int, SquashedEnd] = {}
        self.stack = ModuleStack(model, outside="model")
        self._kept: list[Tensor] = []  # so that no other tensor gets the id of one of these

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in self._SQUASHING:
            end = SquashedEnd(name=self._SQUASHING[func], place=self.stack.place(line_here()))
            self._note(result, end)
        elif func in self._VIEWS and (known := self.squashed.get(id(args[0]))):
            self._note(result, known)
        return result

    def _note(self, result: Tensor, end: SquashedEnd) -> None:
        self._kept.append(result)
        self.squashed[id(result)] = end
