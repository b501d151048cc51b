"""Personalised federated learning on real devices."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protofleet.edge import open_personal

__all__ = ["__version__", "open_personal"]

__version__ = version("protofleet")


def __getattr__(name: str) -> Any:
    """``open_personal``, loaded when it is asked for: the command line does not need it."""
    if name == "open_personal":
        from protofleet.edge import open_personal  # noqa: PLC0415 as above

        return open_personal
    raise AttributeError(f"module 'protofleet' has no attribute '{name}'")
