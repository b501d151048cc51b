"""Whether devices with two bundles can take part in the same rounds."""

from __future__ import annotations

from protofleet.bundle.manifest import Manifest
from protofleet.errors import RefusedError

_LINE = 200


def check_compatible(old: Manifest, new: Manifest) -> None:
    """Raise RefusedError (rule ``layout``) unless two bundles' devices can train together.

    What travels and what devices and server keep must mean the same with both: tensors by name and
    shape, outputs, inputs and the strategy. Programs, normalisation, initial values and texts may
    differ.
    """
    before, after = old.preprocessing, new.preprocessing
    pairs = {
        "parameters": (old.layout_hash, new.layout_hash),
        "state": (old.state, new.state),
        "task": (old.task, new.task),
        "outputs": (old.outputs, new.outputs),
        "strategy": (old.strategy.name, new.strategy.name),
        "input_shape": (before.input_shape, after.input_shape),
        "channels": (before.channels, after.channels),
        "units": (before.units or after.units, after.units or before.units),
        "tokens": (before.tokens, after.tokens),
        "rate_hz": (before.rate_hz, after.rate_hz),
        "window": (before.window, after.window),
    }
    for name, (was, now) in pairs.items():
        if was != now:
            raise RefusedError(
                "layout",
                f"bundle '{new.name}': its {name} {_differ(was, now)} those of '{old.name}', so "
                "that their devices cannot train together",
            )


def _differ(was: object, now: object) -> str:
    return f"({now}) are not" if len(f"{was}{now}") < _LINE else "are not"
