"""Captures a model as a pure function: one flat graph of ATen operators, forward and backward.

The function takes parameters, buffers, batch and noise and gives loss, gradients, changed buffers
and outputs. ``tracing`` records it with a symbolic batch size; ``ports`` names what goes in and
out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from protofleet.bundle.manifest import Port
from protofleet.errors import ExportError
from protofleet.export.capture.functions import ProgramFunctions, symbolic_lengths
from protofleet.export.capture.graph_ports import Names, finish, holds_infinity
from protofleet.export.capture.rematerialise import rematerialise, tidy
from protofleet.export.capture.source import place_of
from protofleet.export.capture.tracing import Trace, trace
from protofleet.export.classifier import ClassifierView, Parts, find_parts
from protofleet.export.functional import call_with
from protofleet.export.objectives import Inputs, Objective
from protofleet.strategies.training import REWRITTEN

SETS_PARAMETERS = "_protofleet_sets_parameters"
"""Attribute of a module: own parameters that its forward pass sets, each of which has a buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensors:
    """A model's tensors by what happens to them, each by its name in the model.

    Attributes:
        params: trained: ``requires_grad``.
        buffers: float32 tensors that are not trained: persistent buffers and frozen parameters.
        rewritten: those of the parameters that a forward pass sets and ``SETS_PARAMETERS`` names.
        constants: the remaining buffers (counters, masks); embedded where a program reads it.
            Among them are persistent ones that hold an infinity: what travels is finite.
    """

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    constants: dict[str, Tensor]
    rewritten: list[str] = field(default_factory=list)

    def all(self) -> dict[str, Tensor]:
        """Parameters, buffers and constants, in this order."""
        return self.params | self.buffers | self.constants


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedProgram:
    """A pure function of the inputs.

    Attributes:
        graph: placeholders are the constants, then the inputs in order.
        inputs, outputs: ports in the graph's order.
        constants: values of the first placeholders, by the placeholders' names.
        objective: what it minimises; None for inference.
        parts: of the model.
        features: an inference program that also gives ``features``.
        layers: which also gives the activations of hidden layers.
    """

    graph: fx.GraphModule
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: dict[str, Tensor] = field(default_factory=dict)
    objective: Objective | None = None
    parts: Parts = field(default_factory=lambda: Parts(head=None))
    features: bool = False
    layers: bool = False


def model_tensors(model: nn.Module) -> ModelTensors:
    """Sort a model's tensors.

    Raises:
        ExportError: a parameter is not float32.
    """
    tensors = ModelTensors(params={}, buffers={}, constants={})
    for name, value in model.named_parameters():
        if value.dtype != torch.float32:
            raise ExportError(f"parameter '{name}': expected float32, got {value.dtype}")
        kind = tensors.params if value.requires_grad else tensors.buffers
        kind[name] = value.detach()
    kept = model.state_dict(keep_vars=True).keys()
    for name, buffer in model.named_buffers():
        travels = name in kept and buffer.dtype == torch.float32 and not holds_infinity(buffer)
        (tensors.buffers if travels else tensors.constants)[name] = buffer
    for path, module in model.named_modules():
        for own in vars(module).get(SETS_PARAMETERS, ()):
            tensors.rewritten.append(f"{path}.{own}" if path else own)
    return tensors


def evaluate(
    classifier: ClassifierView,
    objective: Objective | None,
    batch: Inputs,
    *,
    features: bool = False,
    layers: bool = False,
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Loss (None without an objective) and named outputs of one forward pass."""
    if objective is not None:
        return _loss_and_logits(classifier, objective, batch)
    if features:
        return None, classifier.outputs(batch["x"], layers=layers)
    return None, {"logits": classifier(batch["x"])}


def capture(  # noqa: PLR0913 - options by keyword
    model: nn.Module,
    objective: Objective | None,
    example: Inputs,
    *,
    parts: Parts | None = None,
    features: bool = False,
    layers: bool = False,
) -> CapturedProgram:
    """Capture ``infer``, ``features`` or, with an objective, a training program.

    Args:
        model: any module; its training mode is set here and restored.
        objective: what a training program minimises.
        example: a batch by key; inputs of which the objective says so have no batch axis, all
            others begin with it. Only dtypes and the other axes matter.
        parts: of the model, for its features; None: find them.
        features: an inference program that also gives ``features``. A model with a method
            ``layers`` gives each of its results too, as ``layers.<name>``.
        layers: ``features`` also gives the activations of hidden layers as ``layers.<name>``.

    Raises:
        ExportError: an operator without explicit form, control flow that depends on data, or a
            result that fits one batch size only; the message names module and line.
    """
    if parts is None:
        needed = features or (objective is not None and "features" in objective.sizes)
        parts = find_parts(model, example["x"]) if needed else Parts(head=None)
    whole, batch = _by_axis(objective, example)
    goal = _Goal(objective=objective, parts=parts, features=features, layers=layers)
    pure = _Pure(model, goal, keys=(*whole, *batch))
    with _restored(model):
        model.train(objective is not None)
        return _capture(pure, whole, batch)


@contextlib.contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Give every module its attributes back: some keep what they compute, here without data."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)


def _by_axis(objective: Objective | None, example: Inputs) -> tuple[Inputs, Inputs]:
    """The inputs without and those with a batch axis."""
    declared = {} if objective is None else objective.inputs
    whole = {k: v for k, v in example.items() if k in declared and not declared[k].per_example}
    return whole, {key: value for key, value in example.items() if key not in whole}


def _capture(pure: _Pure, whole: Inputs, batch: Inputs) -> CapturedProgram:
    tensors = pure.tensors
    fixed = [*tensors.all().values(), *whole.values()]
    first = len(tensors.params) + len(tensors.buffers)
    unchanging = dict(enumerate(tensors.constants.values(), start=first))
    result: Trace = trace(pure, pure.joint.model, fixed, list(batch.values()), constants=unchanging)
    if pure.goal.objective is None:
        _refuse_noise(result)
    names = Names(
        params=tuple(tensors.params),
        buffers=tuple(tensors.buffers),
        constants=tensors.constants,
        batch=pure.keys,
        outputs=pure.output_keys,
        trains=pure.goal.objective is not None,
    )
    inputs, outputs, constants = finish(result, names)
    tidy(result.graph)
    if pure.goal.objective is not None:
        rematerialise(result.graph, result.batch_symbol)
    return CapturedProgram(
        graph=result.graph,
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        objective=pure.goal.objective,
        parts=pure.goal.parts,
        features=pure.goal.features,
        layers=pure.goal.layers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Goal:
    """What is computed; fields as in ``CapturedProgram``."""

    objective: Objective | None
    parts: Parts
    features: bool
    layers: bool


def _refuse_noise(result: Trace) -> None:
    placeholders = result.graph.graph.find_nodes(op="placeholder")
    for node in placeholders[len(placeholders) - len(result.noise) :]:
        place = next((place_of(user) for user in node.users), "model")
        raise ExportError(
            f"{place}: draws random numbers in evaluation too, but what a device predicts must not "
            "be random: draw while self.training only, as F.dropout(x, p, self.training)"
        )


class _Joint(nn.Module):
    """Model and objective as one module, for ``call_with``."""

    def __init__(self, model: nn.Module, goal: _Goal) -> None:
        super().__init__()
        self.model = model
        self._goal = goal

    def forward(self, batch: Inputs) -> tuple[Tensor | None, dict[str, Tensor]]:
        goal = self._goal
        return evaluate(
            ClassifierView(self.model, goal.parts),
            goal.objective,
            batch,
            features=goal.features,
            layers=goal.layers,
        )


class _Pure:
    """(params…, buffers…, constants…, batch…) → (loss, grads…, buffers…, outputs…) or outputs."""

    def __init__(self, model: nn.Module, goal: _Goal, *, keys: tuple[str, ...]) -> None:
        self.joint = _Joint(model, goal)
        self.goal, self.keys = goal, keys
        self.tensors = model_tensors(model)
        self.output_keys: tuple[str, ...] = ()

    def __call__(self, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """All results, in order."""
        params, others, batch = self._named(args)
        if self.goal.objective is None:
            _, outputs = self._forward(params | others, batch)
            return tuple(outputs.values())
        for value in params.values():
            value.requires_grad_()
        # call_with writes re-assigned buffers back into the very mapping it was given.
        named = params | others
        loss, outputs = self._forward(named, batch)
        if loss is None or loss.dim() != 0:
            raise ExportError(f"objective '{self.goal.objective.name}': expected a scalar loss")
        grads = torch.autograd.grad(
            loss, list(params.values()), allow_unused=True, materialize_grads=True
        )
        buffers = (named[f"model.{n}"].detach() for n in self.tensors.buffers)
        return loss.detach(), *grads, *buffers, *(value.detach() for value in outputs.values())

    def _named(
        self, args: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        values = iter(args)
        fixed = (*self.tensors.buffers, *self.tensors.constants)
        params = {f"model.{n}": next(values).detach() for n in self.tensors.params}
        params |= {f"model.{n}": params[f"model.{n}"].clone() for n in self.tensors.rewritten}
        others = {f"model.{n}": next(values).clone() for n in fixed}
        return params, others, dict(zip(self.keys, values, strict=True))

    def _forward(
        self, tensors: dict[str, Tensor], batch: Inputs
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        with ProgramFunctions(), symbolic_lengths(self.joint.model):
            loss, outputs = call_with(self.joint, tensors, batch)
        for name in self.tensors.rewritten:
            tensors[f"model.{name}{REWRITTEN}"] = tensors[f"model.{name}"].detach()
        self.output_keys = tuple(outputs)
        return loss, outputs


def _loss_and_logits(
    classifier: ClassifierView, objective: Objective, batch: Inputs
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and the logits if the objective calls the model as a whole."""
    logits: list[Tensor] = []
    hook = classifier.model.register_forward_hook(lambda _model, _args, out: logits.append(out))
    try:
        loss = objective.loss(classifier, batch)
    finally:
        hook.remove()
    return loss, {"logits": logits[0]} if logits else {}
