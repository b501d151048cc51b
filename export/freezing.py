"""Which parameters of a model train: all, or those that patterns name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from protofleet.errors import InputError

_SHOWN = 6


def freeze(model: nn.Module, except_: str | Sequence[str] = ()) -> tuple[str, ...]:
    """Let a model's parameters be as they are, apart from those that are named.

    A bundle holds frozen parameters once; devices neither train nor send them. Their layers stay in
    training mode: dropout draws, and batch normalisation goes on counting.

    Args:
        model: any module; ``requires_grad`` of its parameters is set.
        except_: names of parameters or modules, or patterns such as ``head.*`` and ``*.bias``; one
            or several. Nothing: everything is frozen, for parts that are added afterwards.

    Returns:
        The names of the parameters that train.

    Raises:
        InputError: a pattern names no parameter.
    """
    patterns = [except_] if isinstance(except_, str) else list(except_)
    named = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in named):
            shown = ", ".join(f"'{name}'" for name in list(named)[-_SHOWN:])
            raise InputError(
                f"'{pattern}' names no parameter of the model; expected a name, a module or a "
                f"pattern such as 'head.*', of {'..., ' if len(named) > _SHOWN else ''}{shown}"
            )
    for value in named.values():
        value.requires_grad = False
    kept = {n: v for n, v in named.items() if any(_matches(n, pattern) for pattern in patterns)}
    for value in kept.values():
        value.requires_grad = True
    return tuple(name for name, value in model.named_parameters() if value.requires_grad)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
