"""Parameters that a model's forward pass rewrites, such as weights with a bound on their norm.

``self.weight.data = torch.renorm(self.weight.data, …)`` in ``forward`` is part of training: the
next step starts from what was written. A program writes no parameters; it gives a buffer of the
parameter's name with ``REWRITTEN`` behind it, which devices put in the parameter's place. A model
that has no such buffer gets it while it is exported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from protofleet.export.capture.override_python import DataInPlace
from protofleet.export.capture.program import SETS_PARAMETERS
from protofleet.export.functional import call_with
from protofleet.export.training_mode import mode_of
from protofleet.strategies.training import REWRITTEN

_WIDE = 16.0
"""Standard deviation of parameters that no bound would leave as they are."""


@contextmanager
def rewritten_as_buffers(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Within the block the model has a buffer for each parameter that a forward pass sets.

    Args:
        model: any module.
        x: examples, (n, …).
    """
    owners = []
    for name in sorted(_rewritten(model, x)):
        path, _, own = name.rpartition(".")
        owner = model.get_submodule(path)
        if own + REWRITTEN not in dict(owner.named_buffers(recurse=False)):
            owner.register_buffer(own + REWRITTEN, owner.get_parameter(own).detach().clone())
            vars(owner).setdefault(SETS_PARAMETERS, []).append(own)
            owners.append((owner, own + REWRITTEN))
    try:
        yield
    finally:
        for owner, buffer in owners:
            delattr(owner, buffer)
            vars(owner).pop(SETS_PARAMETERS, None)


def _rewritten(model: nn.Module, x: Tensor) -> set[str]:
    """Names of trained parameters with other values after a forward pass in training mode."""
    own = torch.Generator().manual_seed(0)
    given = {
        name: _WIDE * torch.randn(value.shape, generator=own)
        for name, value in model.named_parameters()
        if value.requires_grad
    }
    used = {name: value.clone() for name, value in given.items()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    try:
        with (
            mode_of(model, training=True),
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            DataInPlace(),
        ):
            call_with(model, {**used, **buffers}, x)
    except Exception:  # noqa: BLE001 - whatever the user's code raises, which the capture tells
        return set()
    return {name for name, value in given.items() if not torch.equal(used[name], value)}
