"""Captures a model as a pure function: one flat graph of ATen operators, forward and backward.

The function takes parameters, buffers, batch and noise and gives loss, gradients, changed buffers
and outputs. ``tracing`` records it with a symbolic batch size; ``ports`` names what goes in and
out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from protofleet.bundle.manifest import Port
from protofleet.errors import ExportError
from protofleet.export.capture.functions import ProgramFunctions
from protofleet.export.capture.ports import Names, finish
from protofleet.export.capture.rematerialise import rematerialise, tidy
from protofleet.export.capture.tracing import Trace, trace
from protofleet.export.objectives import Inputs, ModelCall, Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensors:
    """A model's tensors by what happens to them, each by its name in the model.

    Attributes:
        params: trained: ``requires_grad``.
        buffers: float32 tensors that are not trained: persistent buffers and frozen parameters.
        constants: the remaining buffers (counters, masks); embedded where a program reads it.
    """

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    constants: dict[str, Tensor]

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
        features: an inference program that also gives ``features``.
    """

    graph: fx.GraphModule
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: dict[str, Tensor] = field(default_factory=dict)
    objective: Objective | None = None
    features: bool = False


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
        travels = name in kept and buffer.dtype == torch.float32
        (tensors.buffers if travels else tensors.constants)[name] = buffer
    return tensors


def evaluate(
    model: nn.Module, objective: Objective | None, batch: Inputs, *, features: bool = False
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Loss (None without an objective) and named outputs of one forward pass."""
    if objective is not None:
        return _loss_and_logits(model, objective, batch)
    if features:
        return None, _features_and_logits(model, batch["x"]) | _layers(model, batch["x"])
    return None, {"logits": model(batch["x"])}


def capture(
    model: nn.Module,
    objective: Objective | None,
    example: Inputs,
    *,
    features: bool = False,
) -> CapturedProgram:
    """Capture ``infer``, ``features`` or, with an objective, a training program.

    Args:
        model: any module; its training mode is set here and restored.
        objective: what a training program minimises.
        example: a batch by key; inputs of which the objective says so have no batch axis, all
            others begin with it. Only dtypes and the other axes matter.
        features: an inference program that also gives ``features``: the result of the model's
            method ``features``, whose logits are then ``head(features(x))``; for a model without
            these two methods, the input of its last linear layer. A model with a method
            ``layers`` gives each of its results too, as ``layers.<name>``.

    Raises:
        ExportError: an operator without explicit form, control flow that depends on data, or a
            result that fits one batch size only; the message names module and line.
    """
    whole, batch = _by_axis(objective, example)
    pure = _Pure(model, objective, features=features, keys=(*whole, *batch))
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
    result: Trace = trace(pure, pure.joint, fixed, list(batch.values()), constants=unchanging)
    names = Names(
        params=tuple(tensors.params),
        buffers=tuple(tensors.buffers),
        constants=tensors.constants,
        batch=pure.keys,
        outputs=pure.output_keys,
        trains=pure.objective is not None,
    )
    inputs, outputs, constants = finish(result, names)
    tidy(result.graph)
    if pure.objective is not None:
        rematerialise(result.graph, result.batch_symbol)
    return CapturedProgram(
        graph=result.graph,
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        objective=pure.objective,
        features=pure.features,
    )


class _Joint(nn.Module):
    """Model and objective as one module, for ``functional_call``."""

    def __init__(self, model: nn.Module, objective: Objective | None, *, features: bool) -> None:
        super().__init__()
        self.model = model
        self._objective, self._features = objective, features

    def forward(self, batch: Inputs) -> tuple[Tensor | None, dict[str, Tensor]]:
        return evaluate(self.model, self._objective, batch, features=self._features)


class _Pure:
    """(params…, buffers…, constants…, batch…) → (loss, grads…, buffers…, outputs…) or outputs."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective | None,
        *,
        features: bool,
        keys: tuple[str, ...],
    ) -> None:
        self.joint = _Joint(model, objective, features=features)
        self.objective, self.features, self.keys = objective, features, keys
        self.tensors = model_tensors(model)
        self.output_keys: tuple[str, ...] = ()

    def __call__(self, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """All results, in order."""
        params, others, batch = self._named(args)
        if self.objective is None:
            _, outputs = self._forward(params | others, batch)
            return tuple(outputs.values())
        for value in params.values():
            value.requires_grad_()
        # functional_call writes re-assigned buffers back into the very mapping it was given.
        named = params | others
        loss, outputs = self._forward(named, batch)
        if loss is None or loss.dim() != 0:
            raise ExportError(f"objective '{self.objective.name}': expected a scalar loss")
        grads = torch.autograd.grad(
            loss, list(params.values()), allow_unused=True, materialize_grads=True
        )
        buffers = (named[f"model.{n}"].detach() for n in self.tensors.buffers)
        return loss.detach(), *grads, *buffers, *(value.detach() for value in outputs.values())

    def forward(self, args: Sequence[Tensor]) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Loss and outputs."""
        params, others, batch = self._named(args)
        return self._forward(params | others, batch)

    def _named(
        self, args: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        values = iter(args)
        fixed = (*self.tensors.buffers, *self.tensors.constants)
        params = {f"model.{n}": next(values).detach() for n in self.tensors.params}
        others = {f"model.{n}": next(values).clone() for n in fixed}
        return params, others, dict(zip(self.keys, values, strict=True))

    def _forward(
        self, tensors: dict[str, Tensor], batch: Inputs
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        with ProgramFunctions():
            loss, outputs = functional_call(self.joint, tensors, (batch,))
        self.output_keys = tuple(outputs)
        return loss, outputs


def _loss_and_logits(
    model: nn.Module, objective: Objective, batch: Inputs
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and the logits if the objective calls the model as a whole."""
    logits: list[Tensor] = []
    hook = model.register_forward_hook(lambda _module, _args, output: logits.append(output))
    try:
        loss = objective.loss(cast("ModelCall", model), batch)
    finally:
        hook.remove()
    return loss, {"logits": logits[-1]} if logits else {}


def _features_and_logits(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    if callable(getattr(model, "features", None)) and callable(getattr(model, "head", None)):
        call = cast("ModelCall", model)
        features = call.features(x)
        return {"features": features, "logits": call.head(features)}
    return _input_of_last_linear(model, x)


def _layers(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Activations of the hidden layers that the model tells of.

    What they share with the features is computed once: the ONNX writer merges equal nodes.
    """
    layers = getattr(model, "layers", None)
    if not callable(layers) or isinstance(layers, nn.Module):
        return {}
    return {f"layers.{name}": values for name, values in layers(x).items()}


def _input_of_last_linear(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    seen: list[Tensor] = []
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [
        layer.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
        for layer in layers
    ]
    try:
        logits = model(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        raise ExportError(
            f"features of {type(model).__qualname__}: expected methods features(x) and "
            "head(features), or a torch.nn.Linear, found neither"
        )
    return {"features": seen[-1], "logits": logits}
