"""What a model does in training mode, and what of that no program can do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.capture.override_python import autocast_by
from protofleet.export.functional import call_with
from protofleet.export.source_locations import forward_of, labelled, line_here

_SAME = 1e-4
"""Of outputs, as threads may add numbers in another order."""


def check_repeatable(model: nn.Module, x: Tensor) -> object:
    """What a call in training mode gives; None where it does not run, which the capture tells.

    Torch's own random numbers are the same in each call; a program has those as inputs, and no
    others.

    Args:
        model: its mode and its values stay as they are.
        x: two examples or more, (n, …); of floats random ones take their place.

    Raises:
        InputError: a call depends on the calls before it, or on luck.
    """
    own = torch.Generator().manual_seed(0)
    examples = torch.rand(x.shape, generator=own) if x.is_floating_point() else x
    try:
        first, again = (trained_once(model, examples) for _ in range(2))
    except Exception:  # noqa: BLE001 - whatever the user's code raises
        return None
    if not _alike(first.output, again.output):
        raise InputError(
            f"{_unlike_itself(model, examples)}: gives something else at each call in training "
            "mode, though torch draws the same numbers: draw with torch and not with random or "
            "numpy, and count calls in a persistent float32 buffer and not in an attribute"
        )
    _check_constants(model, examples, first)
    return first.output


def _check_constants(model: nn.Module, x: Tensor, first: TrainedOnce) -> None:
    """Raise InputError where a call depends on what the one before wrote into a constant."""
    kept = model.state_dict(keep_vars=True).keys()
    constants = {
        name: value
        for name, value in first.buffers.items()
        if name in first.written and not (name in kept and value.dtype == torch.float32)
    }
    # All at once: of batch normalisation there are many, and none matters.
    if not constants or _alike(first.output, trained_once(model, x, constants).output):
        return
    for name, value in sorted(constants.items()):
        if not _alike(first.output, trained_once(model, x, {name: value}).output):
            raise InputError(
                f"buffer '{name}': training writes it and depends on it, but it is a constant of "
                f"the program, being {'not persistent' if name not in kept else value.dtype}; "
                "register it as a persistent float32 buffer"
            )


def _unlike_itself(model: nn.Module, x: Tensor) -> str:
    """The innermost module whose outputs differ first between two calls in training mode."""
    calls: list[list[tuple[str, nn.Module, object]]] = []
    for _ in range(2):
        seen: list[tuple[str, nn.Module, object]] = []
        hooks = [
            module.register_forward_hook(
                lambda module, _args, out, path=path, seen=seen: seen.append((path, module, out))
            )
            for path, module in model.named_modules()
        ]
        try:
            trained_once(model, x)
        finally:
            for hook in hooks:
                hook.remove()
        calls.append(seen)
    for (path, module, one), (_, _, other) in zip(*calls, strict=False):
        if not _alike(one, other):
            return forward_of(module) if not path else labelled(path, module)
    return forward_of(model)


def _alike(one: object, other: object) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return True
    return torch.allclose(one, other, rtol=_SAME, atol=_SAME, equal_nan=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOnce:
    """What a forward pass in training mode gave and left.

    Attributes:
        output: the model's.
        buffers: by name.
        written: names of those that it wrote, be it the same values.
    """

    output: object
    buffers: Mapping[str, Tensor]
    written: frozenset[str]


def trained_once(
    model: nn.Module, x: Tensor, changed: Mapping[str, Tensor] | None = None
) -> TrainedOnce:
    """A forward pass in training mode, with some buffers changed; the model stays as it is."""
    given = {name: value.clone() for name, value in model.named_buffers()}
    given |= {name: value.clone() for name, value in (changed or {}).items()}
    buffers = dict(given)
    quiet = warnings.catch_warnings(action="ignore")
    with quiet, mode_of(model, training=True), torch.no_grad(), torch.random.fork_rng(devices=[]):
        output = call_with(model, buffers, x)
    written = (n for n, v in buffers.items() if v is not given[n] or v._version)  # noqa: SLF001 - no public way to ask
    return TrainedOnce(output=output, buffers=buffers, written=frozenset(written))


def autocast_line(model: nn.Module, x: Tensor) -> str:
    """The user's line that enters autocast in a forward pass, ``file:number``; '' if none does."""
    lines: list[str] = []
    with autocast_by(lambda: lines.append(line_here() or "model")):
        trained_once(model, x)
    return lines[0] if lines else ""


@contextmanager
def mode_of(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Training mode or evaluation within the block; afterwards each module has its own again."""
    before = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode
