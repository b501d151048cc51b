"""Personalised federated learning on real devices.

``docs/api.md`` shows how the names below work together. Each is loaded when it is first used, so
that a device loads no PyTorch and the command line nothing that it does not run. What is not listed
here, or named in ``docs/``, is private and may change.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from protofleet.api.central import export_model, pretrain
    from protofleet.api.data import hold_out, load_dataset, load_npz, read_recording, split
    from protofleet.api.federations import Federation
    from protofleet.api.results import Results, read_results
    from protofleet.datasets import DeviceData
    from protofleet.datasets.pool import Pool
    from protofleet.edge import PersonalModel, Predictions, open_bundle, open_personal
    from protofleet.export.freezing import freeze

# From 1.29 ONNX Runtime tells its maker of each model that it opens, by a thread that the import
# starts: nothing may leave a device that its owner does not know of.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__all__ = [
    "DeviceData",
    "Federation",
    "PersonalModel",
    "Pool",
    "Predictions",
    "Results",
    "__version__",
    "export_model",
    "freeze",
    "hold_out",
    "load_dataset",
    "load_npz",
    "open_bundle",
    "open_personal",
    "pretrain",
    "read_recording",
    "read_results",
    "split",
]

_HOMES = {
    "DeviceData": "datasets",
    "Federation": "api.federations",
    "PersonalModel": "edge",
    "Pool": "datasets.pool",
    "Predictions": "edge",
    "Results": "api.results",
    "export_model": "api.central",
    "freeze": "export.freezing",
    "hold_out": "api.data",
    "load_dataset": "api.data",
    "load_npz": "api.data",
    "open_bundle": "edge",
    "open_personal": "edge",
    "pretrain": "api.central",
    "read_recording": "api.data",
    "read_results": "api.results",
    "split": "api.data",
}


def __getattr__(name: str) -> Any:
    """A public name, from where it lives."""
    if name in _HOMES:
        return _loaded(name)
    if name == "__version__":
        return import_module("importlib.metadata").version("protofleet")
    raise AttributeError(f"module 'protofleet' has no attribute '{name}'")


def _loaded(name: str) -> Any:
    try:
        return getattr(import_module(f"protofleet.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        from protofleet.extras import missing_module  # noqa: PLC0415 - only where one is missing

        if (lack := missing_module(error, name)) is None:
            raise
        told = f"protofleet.{name}: {lack.text}: {lack.remedy}"
        raise ModuleNotFoundError(told, name=error.name) from error


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted(__all__)
