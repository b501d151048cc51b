"""Puts FedAli's alignment (ALP) behind modules of any model.

Tensors of the model keep their names and values: a layer is a child ``align`` of the module whose
output it aligns, or of the last one in a ``Sequential``. The prototypes' width is that of the
output's channels; positions, be they tokens, samples or pixels, are the tokens of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.classifier.calls import evaluation
from protofleet.export.models.alp import Alignment, generator_beside

_CHILD = "align"
_DEFAULT_PROTOTYPES = (64, 32)
"""Of the layers that are put by default, the first ones where there are more blocks: FedAli's
counts fall towards the head, to 64."""

_CHANNELS_FIRST = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.modules.batchnorm._BatchNorm,  # noqa: SLF001 - the class that all of them share
    nn.modules.instancenorm._InstanceNorm,  # noqa: SLF001 - as above
    nn.GroupNorm,
)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)


class AlignedOutput(Alignment):
    """An ``Alignment`` that takes a module's output as it is and gives it back in the same form.

    Args:
        width: channels of the output.
        count: G, the number of local and of global prototypes.
        axis: of the channels, 1 or -1.
        batch_axis: 0, or 1 for modules that put time first.
        beta: initial share of the prototypes in the output.
        generator: as of ``Alignment``.
    """

    beta: Tensor

    def __init__(  # noqa: PLR0913 - what it is of, and how it starts
        self,
        width: int,
        count: int,
        *,
        axis: int,
        batch_axis: int = 0,
        beta: float = 0.2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(width, count, generator=generator)
        self.width, self.axis, self.batch_axis = width, axis, batch_axis
        self.register_buffer("beta", torch.tensor(beta))

    def of_output(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """A forward hook: aligns the output, of a tuple its first element."""
        if isinstance(output, tuple):
            return (self.aligned(output[0]), *output[1:])
        return self.aligned(output)

    def of_input(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """A forward pre-hook: aligns the first argument."""
        return (self.aligned(args[0]), *args[1:])

    def aligned(self, x: Tensor) -> Tensor:
        """Align (B, d), (B, …, d) or (B, d, …).

        Raises:
            InputError: there are no such channels.
        """
        if x.dim() < 2 or x.shape[self.axis] != self.width:
            raise InputError(
                f"align: expected {self.width} channels on axis {self.axis}, got {tuple(x.shape)}"
            )
        if x.dim() == 2:
            alone: Tensor = self(x[:, None], self.beta)
            return alone[:, 0]
        first = x.transpose(0, 1) if self.batch_axis else x
        last = first.movedim(self.axis, -1)
        mixed: Tensor = self(last.flatten(1, -2), self.beta)
        back = mixed.reshape(last.shape).movedim(-1, self.axis)
        return back.transpose(0, 1) if self.batch_axis else back


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a layer was put: behind a module, or before one, and how many prototypes it has."""

    module: str
    prototypes: int
    before: bool = False

    def __str__(self) -> str:
        side = "before" if self.before else "after"
        return f"{side} '{self.module}' with {self.prototypes} prototypes"


def align(model: nn.Module, *, after: Sequence[str], prototypes: Sequence[int]) -> nn.Module:
    """Put an alignment layer behind each module that a name or pattern says.

    Args:
        model: changed in place.
        after: names of modules, or patterns such as ``encoder.layers.*``, in which ``*`` stands
            for one part of a name. Patterns must match.
        prototypes: G of the modules that each pattern matches; one number counts for all.

    Returns:
        The model.

    Raises:
        InputError: a pattern that matches nothing, as many numbers as patterns are expected and
            others came, a module whose width cannot be told, or one that is aligned already.
    """
    if len(prototypes) not in {1, len(after)}:
        raise InputError(
            f"align: expected one number of prototypes or {len(after)}, got {len(prototypes)}"
        )
    counts = [*prototypes] * len(after) if len(prototypes) == 1 else [*prototypes]
    place(model, dict(zip(after, counts, strict=True)))
    return model


def place(
    model: nn.Module, wanted: Mapping[str, int], x: Tensor | None = None
) -> tuple[Placed, ...]:
    """``align`` by pattern; says what was put where.

    Args:
        model: changed in place.
        wanted: prototypes by name or pattern.
        x: a few examples, by which outputs are measured: a module may be wider than its last layer,
            as one that joins its input to what it makes of it. None: what the last layer says.
    """
    modules = dict(model.named_modules())
    placed: dict[str, int] = {}
    for pattern, count in wanted.items():
        matched = [name for name in modules if _matches(name, pattern)]
        if not matched:
            raise InputError(
                f"align: no module is called '{pattern}'; modules are "
                f"{', '.join(name for name in modules if name)}"
            )
        placed |= dict.fromkeys(matched, count)
    shapes = {} if x is None else _output_shapes(model, {n: modules[n] for n in placed}, x)
    generator = generator_beside(_layers_in(model))
    for name, count in placed.items():
        _put(modules[name], name, count, shapes.get(name), generator)
    return tuple(Placed(module=name, prototypes=count) for name, count in placed.items())


def place_by_default(model: nn.Module, head: str, x: Tensor, width: int) -> tuple[Placed, ...]:
    """Behind the last blocks of an encoder, or before the head where there are no blocks.

    Args:
        model: changed in place.
        head: name of the module that takes the features.
        x: a few examples.
        width: d of the features.
    """
    blocks = _blocks(model, head)[-len(_DEFAULT_PROTOTYPES) :]
    if blocks:
        counts = _DEFAULT_PROTOTYPES[-len(blocks) :]
        return place(model, dict(zip(blocks, counts, strict=True)), x)
    count = _DEFAULT_PROTOTYPES[0]
    layer = AlignedOutput(width, count, axis=-1)
    module = _inner(model.get_submodule(head), 0)
    module.add_module(_CHILD, layer)
    module.register_forward_pre_hook(layer.of_input)
    return (Placed(module=head, prototypes=count, before=True),)


def is_aligned(model: nn.Module) -> bool:
    """Whether there is an alignment layer in the model."""
    return _layers_in(model) > 0


def _layers_in(model: nn.Module) -> int:
    return sum(isinstance(module, Alignment) for module in model.modules())


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    pairs = zip(parts, wanted, strict=False)
    return len(parts) == len(wanted) and all(fnmatchcase(part, one) for part, one in pairs)


def _blocks(model: nn.Module, head: str) -> list[str]:
    """The longest run of modules of one class that lie side by side, such as encoder layers.

    Of runs of one length the last one, as in a ResNet. Layers alone and plain containers are none.
    """
    runs: list[list[str]] = []
    for name, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        children = [(f"{name}.{key}".lstrip("."), child) for key, child in module.named_children()]
        for kind, run in groupby(children, key=lambda child: type(child[1])):
            names = [key for key, child in run if next(child.children(), None) is not None]
            inside = any(f"{head}.".startswith(f"{key}.") for key in names)
            if len(names) > 1 and kind not in {nn.Sequential, nn.ModuleList} and not inside:
                runs.append(names)
    return max(reversed(runs), key=len, default=[])


def _output_shapes(
    model: nn.Module, modules: Mapping[str, nn.Module], x: Tensor
) -> dict[str, torch.Size]:
    shapes: dict[str, torch.Size] = {}

    def noted(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(_module: nn.Module, _args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            shapes[name] = getattr(first, "shape", torch.Size())

        return note

    hooks = [module.register_forward_hook(noted(name)) for name, module in modules.items()]
    try:
        with evaluation(model):
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def _put(
    module: nn.Module,
    name: str,
    count: int,
    shape: torch.Size | None,
    generator: torch.Generator,
) -> None:
    if count < 1:
        raise InputError(f"align '{name}': expected at least 1 prototype, got {count}")
    width, axis = _channels(module, name)
    if shape is not None and len(shape) > 1:
        width, axis = _measured(shape, width, axis)
    batch_axis = 0 if axis == 1 or _batch_first(module) else 1
    module = _inner(module, -1)
    if hasattr(module, _CHILD):
        raise InputError(f"align '{name}': it has a part '{_CHILD}' already")
    layer = AlignedOutput(width, count, axis=axis, batch_axis=batch_axis, generator=generator)
    module.add_module(_CHILD, layer)
    module.register_forward_hook(layer.of_output)


def _measured(shape: torch.Size, width: int, axis: int) -> tuple[int, int]:
    """Width and axis where the module's own output is not quite its last layer's."""
    other = -1 if axis == 1 else 1
    if shape[axis] != width == shape[other]:
        return width, other
    return shape[axis], axis


def _inner(module: nn.Module, end: int) -> nn.Module:
    """The module, or the one at an end of a chain: what is added to a chain would run in it."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[end]
    return module


def _channels(module: nn.Module, name: str) -> tuple[int, int]:
    """Width and axis of the module's output channels, from the last layer in it."""
    for one in reversed(list(module.modules())):
        if isinstance(one, _CHANNELS_FIRST):
            return _width(one), 1
        if isinstance(one, _CHANNELS_LAST):
            return _width(one), -1
    raise InputError(
        f"align '{name}': a {type(module).__name__} does not say how wide its output is; name a "
        "module with a layer or a normalisation in it"
    )


def _width(layer: Any) -> int:
    if isinstance(layer, nn.RNNBase):
        return int(layer.hidden_size * (2 if layer.bidirectional else 1))
    if isinstance(layer, nn.LayerNorm):
        return int(layer.normalized_shape[-1])
    names = ("out_channels", "num_features", "num_channels", "out_features", "embedding_dim")
    for name in (*names, "embed_dim"):
        if hasattr(layer, name):
            return int(getattr(layer, name))
    raise InputError(f"align: a {type(layer).__name__} does not say how wide its output is")


def _batch_first(module: nn.Module) -> bool:
    said = [bool(one.batch_first) for one in module.modules() if hasattr(one, "batch_first")]
    return all(said)
