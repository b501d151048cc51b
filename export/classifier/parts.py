"""Finds a classifier's parts: which parameters are its head, and what its features are.

The head is the last ``torch.nn.Linear`` on the way from the example to the logits, with what comes
after it; features are what goes in. A head of prototypes or directions counts as well. A module
with methods ``features(x)`` and ``head(features)`` that give its logits is taken at its word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from protofleet.errors import ExportError, InputError
from protofleet.export.classifier.calls import EXAMPLE, Call, CallRecorder, evaluation
from protofleet.export.classifier.layers import LayerFinder, LayerPart
from protofleet.export.models.layers import HEADS

_EQUAL = 1e-5
_LONGEST = 500
"""Of a text that the bundle takes along."""
LATENT = (
    "expected a model with methods features(x), head(features) that gives its logits, and "
    "decode(features) that gives examples again; the registered model 'autoencoder' has them"
)
"""What is asked of a model whose features are decoded, or classified on their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A classifier's parts, by names in the model.

    Attributes:
        head: name of the module that takes the features; ``""``: the model's own methods
            ``features`` and ``head`` do; None: there is none, see ``missing``.
        head_params: names of the head's parameters.
        layers: dense layers and convolutions in the order of a forward pass.
        missing: why there is no head, and what to do.
        no_layers: what there is in the place of hidden layers and a dense head; ``""``: there are
            both.
        decodes: beside its own methods ``features`` and ``head`` the model has ``decode``.
        last: name of the dense layer that ends a head of several layers; ``""``: the head is one,
            or ends otherwise.
    """

    head: str | None
    head_params: tuple[str, ...] = ()
    layers: tuple[LayerPart, ...] = ()
    missing: str = ""
    no_layers: str = ""
    decodes: bool = False
    last: str = ""


def find_parts(model: nn.Module, x: Tensor, *, head: str | None = None) -> Parts:
    """Find the parts of a model with one forward pass, which leaves the model as it is.

    Args:
        model: logits (B, C) of examples.
        x: a few examples.
        head: name of the module that is the head; None: find it.

    Raises:
        InputError: there is no module ``head``, or it does not run once per forward pass.
        ExportError: the model fails on ``x``, or gives no tensor.
    """
    finder = LayerFinder(model, _with_trained_weights(model))
    recorder = CallRecorder(model, x, visit=finder)
    with evaluation(model):
        try:
            logits = recorder.run(model)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ExportError(f"model: fails on examples of {tuple(x.shape)}: {line}") from error
        if not isinstance(logits, Tensor):
            raise ExportError(f"model: expected a tensor of logits, got {type(logits).__name__}")
        found = _head_parts(model, recorder, logits, head)
        found = replace(found, last=_last_of(model, recorder, logits, found.head_params))
    layers = _told(model, finder.parts(recorder), x)
    no_hidden = "" if any(layer.hidden for layer in layers) else finder.instead(recorder)
    return replace(found, layers=layers, no_layers=no_hidden or _no_dense_head(found, layers))


def _no_dense_head(found: Parts, layers: Iterable[LayerPart]) -> str:
    if found.head is None:
        return f"no head: {found.missing}"[:_LONGEST]
    if any(f"{one.name}.weight" in found.head_params for one in layers if not one.hidden):
        return ""
    return f"a head of {', '.join(found.head_params) or 'no parameters'}"


def _head_parts(
    model: nn.Module, recorder: CallRecorder, logits: Tensor, head: str | None
) -> Parts:
    if head is not None:
        return _named(model, recorder, head)
    own = _own_head(model, recorder.example, logits)
    if own is not None:
        return own
    of_classes = [n for n, m in model.named_modules() if isinstance(m, tuple(HEADS.values()))]
    if len(of_classes) == 1 and recorder.runs[of_classes[0]] == 1:
        return _named(model, recorder, of_classes[0])
    return _last_linear(model, recorder, logits)


def _last_of(
    model: nn.Module, recorder: CallRecorder, logits: Tensor, head: Collection[str]
) -> str:
    """The dense layer that ends a head of these parameters, if there are others."""
    last, end = _last_linear(model, recorder, logits), recorder.maker(logits)
    ends = end is not None and bool(last.head) and end.module == last.head
    several = ends and {*last.head_params} < {*head} and logits.dim() == 2
    return last.head or "" if several else ""


def _named(model: nn.Module, recorder: CallRecorder, name: str) -> Parts:
    modules = dict(model.named_modules())
    if not name or name not in modules:
        known = ", ".join(n for n, m in modules.items() if isinstance(m, nn.Linear)) or "none"
        raise InputError(f"--head {name}: no such module in the model; its linear ones are {known}")
    if recorder.runs[name] != 1:
        raise InputError(
            f"--head {name}: expected a module that runs once in a forward pass, it runs "
            f"{recorder.runs[name]} times"
        )
    own = {id(value) for value in modules[name].parameters()}
    params = (n for n, value in model.named_parameters() if id(value) in own)
    return Parts(head=name, head_params=_in_order(model, params))


def _own_head(model: nn.Module, x: Tensor, logits: Tensor) -> Parts | None:
    """The model's own methods, if they say the same as the model."""
    features, head = getattr(model, "features", None), getattr(model, "head", None)
    if not callable(features) or isinstance(features, nn.Module) or not callable(head):
        return None
    try:
        values = features(x)
        recorder = CallRecorder(model, values)
        again = recorder.run(head)
    except Exception:  # noqa: BLE001 - methods of these names that mean something else
        return None
    same = (
        isinstance(values, Tensor)
        and values.dim() == 2
        and isinstance(again, Tensor)
        and again.shape == logits.shape
        and (again.is_meta or bool(torch.allclose(again, logits, rtol=_EQUAL, atol=_EQUAL)))
    )
    params = _params(recorder.calls)
    if not same:
        return None
    decodes = callable(getattr(model, "decode", None))
    return Parts(head="", head_params=_in_order(model, params), decodes=decodes)


def _last_linear(model: nn.Module, recorder: CallRecorder, logits: Tensor) -> Parts:
    end = recorder.maker(logits)
    on_the_way = _ancestors(recorder.calls, end)
    modules = dict(model.named_modules())
    linear = [
        call
        for call in on_the_way
        if call.name == "linear" and isinstance(modules[call.module], nn.Linear)
    ]
    if end is None or not linear:
        return Parts(
            head=None,
            missing="no torch.nn.Linear on the way to the logits: name the module that takes the "
            "features, --head NAME",
        )
    last = linear[-1]
    if not last.module:
        return Parts(head=None, missing="the model is one linear layer, which has no features")
    if _reaches(recorder.calls, end, without=last.index):
        names = sorted({call.module for call in linear if _is_an_end(on_the_way, call, linear)})
        return Parts(
            head=None,
            missing=f"several heads: the logits depend on {', '.join(names)} side by side: name "
            f"the one that takes the features, --head {last.module}",
        )
    return _checked_last(model, recorder, on_the_way, last)


def _checked_last(
    model: nn.Module, recorder: CallRecorder, on_the_way: list[Call], last: Call
) -> Parts:
    behind = _descendants(on_the_way, last)
    earlier = [call for call in on_the_way if call not in behind and call is not last]
    shared = last.params & _params(earlier)
    if shared or recorder.runs[last.module] != 1:
        why = (
            f"shares '{min(shared)}' with the layers before it"
            if shared
            else f"runs {recorder.runs[last.module]} times in a forward pass"
        )
        return Parts(
            head=None,
            missing=f"the last linear layer '{last.module}' {why}: name the module that is the "
            f"head, --head NAME (--head {last.module} for this one)",
        )
    follows = _params(behind) - _params(earlier) - last.params
    if weights := _matrices(model, follows):
        return Parts(
            head=None,
            missing=f"the last torch.nn.Linear is '{last.module}', but '{weights[0]}' makes the "
            "logits behind it: name the module that takes the features, --head NAME; a product "
            "with a parameter becomes one as a torch.nn.Linear",
        )
    params = last.params | follows
    return Parts(head=last.module, head_params=_in_order(model, params))


def own_layers(model: nn.Module) -> Callable[[Tensor], Mapping[str, Tensor]] | None:
    """The model's method ``layers``; an attribute of that name which is a module is none."""
    layers: Any = getattr(model, "layers", None)
    return layers if callable(layers) and not isinstance(layers, nn.Module) else None


def _told(model: nn.Module, found: tuple[LayerPart, ...], x: Tensor) -> tuple[LayerPart, ...]:
    """Where the model has a method ``layers``, hidden layers are those that it tells of."""
    own = own_layers(model)
    if own is None:
        return found
    with evaluation(model):
        told = own(x).keys()
    known = {layer.name: layer for layer in found}
    parts = [
        replace(layer, before=layer.before if layer.before in told else None, hidden=name in told)
        for name, layer in known.items()
        if name in told or not layer.hidden
    ]
    trained = _with_trained_weights(model)
    unseen = (name for name in told if name not in known and name in trained)
    return (*parts, *(LayerPart(name=name, before=None, hidden=True) for name in unseen))


def _with_trained_weights(model: nn.Module) -> frozenset[str]:
    """Names of modules; of a weight that several share, the first one's."""
    trained = (name for name, value in model.named_parameters() if value.requires_grad)
    return frozenset(name.removesuffix(".weight") for name in trained if name.endswith(".weight"))


def _ancestors(calls: Sequence[Call], end: Call | None) -> list[Call]:
    """The calls on which ``end`` depends, itself among them, in order."""
    wanted = set() if end is None else {end.index}
    for call in reversed(calls):
        if call.index in wanted:
            wanted.update(call.sources)
    return [call for call in calls if call.index in wanted]


def _descendants(calls: Sequence[Call], start: Call) -> list[Call]:
    reached = {start.index}
    for call in calls:
        if reached & set(call.sources):
            reached.add(call.index)
    return [call for call in calls if call.index in reached and call is not start]


def _reaches(calls: Sequence[Call], end: Call, *, without: int) -> bool:
    """Whether ``end`` depends on the example by another way than through one call."""
    reached = {EXAMPLE}
    for call in calls:
        if call.index != without and reached & set(call.sources):
            reached.add(call.index)
    return end.index in reached


def _is_an_end(calls: Sequence[Call], call: Call, linear: Sequence[Call]) -> bool:
    behind = _descendants(calls, call)
    return not any(other in behind for other in linear)


def _params(calls: Iterable[Call]) -> frozenset[str]:
    return frozenset(name for call in calls for name in call.params)


def _matrices(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Those that mix units, unlike a bias, a scale or a normalisation of each."""
    shapes = {name: value.shape for name, value in model.named_parameters()}
    return [name for name in _in_order(model, names) if sum(n > 1 for n in shapes[name]) > 1]


def _in_order(model: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """Those that train: what is frozen stays in the bundle, and is no part of a head."""
    wanted = set(names)
    return tuple(
        name for name, value in model.named_parameters() if name in wanted and value.requires_grad
    )
