"""The hidden layers of any model: dense layers and convolutions with a ReLU or its like.

A layer whose weights are frozen is none: no method may choose among units that stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from protofleet.export.classifier.calls import Call, CallRecorder

_LAYERS: dict[str, tuple[type[nn.Module], ...]] = {
    "linear": (nn.Linear,),
    "conv1d": (nn.Conv1d,),
    "conv2d": (nn.Conv2d,),
    "conv3d": (nn.Conv3d,),
}
"""Functions that compute a layer, and the modules whose weights have the right order of axes."""

_RECTIFIERS = frozenset(
    {"relu", "relu6", "leaky_relu", "prelu", "elu", "celu", "selu", "gelu", "silu", "mish"}
    | {"hardswish"}
)
_BETWEEN = frozenset(
    {"batch_norm", "instance_norm", "dropout", "dropout1d", "dropout2d", "dropout3d"}
    | {"alpha_dropout", "feature_alpha_dropout", "contiguous", "clone", "to", "float"}
)
"""May stand between a layer and its activation: every unit stays by itself."""

_AFTER = (
    _BETWEEN
    | {f"{kind}_pool{n}d" for kind in ("avg", "max", "lp") for n in (1, 2, 3)}
    | {f"adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)}
    | {"flatten", "view", "reshape", "squeeze", "mean", "amax"}
)
"""May stand between an activation and the next layer: its inputs are still one unit's each."""


_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPart:
    """A dense layer or convolution.

    Attributes:
        name: of its module: ``<name>.weight`` is a parameter.
        before: the hidden layer whose units are its inputs, in order; None: none is.
        hidden: whether it has a ReLU or its like.
    """

    name: str
    before: str | None
    hidden: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """That a value is a layer's, before or behind its activation."""

    layer: str
    active: bool


class LayerFinder:
    """Visits the calls of a forward pass in order and notes the layers among them.

    Args:
        model: whose pass it is.
        names: of the modules that may be layers, those whose weights train.

    Attributes:
        before: by layer, ``LayerPart.before``, in the order of the pass.
        activations: ``(B, units)`` by hidden layer, means over positions (images, series, tokens).
        behind: by layer without an activation, the function that follows it.
    """

    def __init__(self, model: nn.Module, names: Collection[str]) -> None:
        self._modules = dict(model.named_modules())
        self._names = names
        self._places: dict[int, _Place] = {}
        self.before: dict[str, str | None] = {}
        self.activations: dict[str, Tensor] = {}
        self.behind: dict[str, str] = {}

    def __call__(self, call: Call) -> None:
        """Note one call."""
        places = [self._places.get(source) for source in call.sources]
        place = places[0] if len(places) == 1 else None
        if self._is_layer(call):
            self.before[call.module] = self._layer_before(call.module, place)
            self._places[call.index] = _Place(call.module, active=False)
        elif place is None:
            pass
        elif call.name in (_AFTER if place.active else _BETWEEN):
            self._places[call.index] = place
        elif self._rectifies(call) and not place.active:
            self._places[call.index] = _Place(place.layer, active=True)
            if place.layer not in self.activations:
                self.activations[place.layer] = self._by_unit(place.layer, call.output)
        if call.index not in self._places or self._is_layer(call):
            ended = [one.layer for one in places if one is not None and not one.active]
            self.behind |= {layer: call.name for layer in ended if layer not in self.behind}

    def parts(self, recorder: CallRecorder) -> tuple[LayerPart, ...]:
        """The layers that ran once."""
        once = {name for name, runs in recorder.runs.items() if runs == 1}
        hidden = self.activations.keys() & once - self._split(recorder)
        return tuple(
            LayerPart(name=name, before=before if before in hidden else None, hidden=name in hidden)
            for name, before in self.before.items()
            if name in once
        )

    def _split(self, recorder: CallRecorder) -> set[str]:
        """Layers to which the parts of an example, such as its channels, are examples."""
        count = recorder.example.shape[0]
        return {name for name, values in self.activations.items() if values.shape[0] != count}

    def instead(self, recorder: CallRecorder) -> str:
        """What the model has where hidden layers are looked for, for people."""
        found = [
            f"{name} behind {_some([layer for layer, n in self.behind.items() if n == name])}"
            for name in dict.fromkeys(self.behind.values())
        ]
        often = [name for name in self.before if recorder.runs[name] > 1]
        if often:
            found.append(f"several runs of {_some(often)} in a pass")
        if split := self._split(recorder):
            found.append(f"several rows of each example in {_some(sorted(split))}")
        kinds: dict[str, list[str]] = {}
        for name, module in self._modules.items():
            own = next(module.parameters(recurse=False), None) is not None
            if own and name not in self.before and "Norm" not in type(module).__name__:
                kinds.setdefault(type(module).__name__, []).append(name)
        found += [f"{kind} {_some(names)}" for kind, names in kinds.items()]
        return ", ".join(found[:_SHOWN]) or "none"

    def _rectifies(self, call: Call) -> bool:
        # torch.nn.ReLU6 calls it so.
        as_hardtanh = call.name == "hardtanh" and isinstance(self._modules[call.module], nn.ReLU6)
        return call.name in _RECTIFIERS or as_hardtanh

    def _is_layer(self, call: Call) -> bool:
        kinds = _LAYERS.get(call.name, ())
        return (
            isinstance(self._modules[call.module], kinds)
            and call.module in self._names
            and f"{call.module}.weight" in call.params
        )

    def _layer_before(self, name: str, place: _Place | None) -> str | None:
        if place is None or not place.active:
            return None
        inputs, units = (self._weight(one).shape for one in (name, place.layer))
        flat = isinstance(self._modules[name], nn.Linear)
        fits = inputs[1] % units[0] == 0 if flat else inputs[1] == units[0]
        return place.layer if fits else None

    def _by_unit(self, name: str, values: Tensor) -> Tensor:
        if isinstance(self._modules[name], nn.Linear):
            return values if values.dim() == 2 else values.flatten(1, -2).mean(1)
        return values.flatten(2).mean(2)

    def _weight(self, name: str) -> Tensor:
        weight = self._modules[name].weight
        if not isinstance(weight, Tensor):
            raise TypeError(f"layer '{name}': no weight")
        return weight


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name or 'model'}'" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
