"""Which extra of this package brings a third-party module."""

from __future__ import annotations

from typing import NamedTuple

# What to install for a third-party module that a command did not find.
EXTRAS = {
    "ai_edge_litert": "litert",
    "ai_edge_quantizer": "export",
    "amqtt": "fleet",
    "cv2": "faces",
    "dp_accounting": "privacy",
    "fastavro": "recordings",
    "fitdecode": "recordings",
    "flatbuffers": "export",
    "google": "edge",  # protobuf
    "jinja2": "coordinator",
    "matplotlib": "coordinator",
    "networkx": "export",
    "numba": "edge",
    "onnx": "export",
    "onnxruntime": "edge",
    "onnxruntime_extensions": "edge",
    "onnxscript": "export",
    "paho": "edge",
    "PIL": "images",
    "prometheus_client": "hub",
    "pyedflib": "recordings",
    "pyxdf": "recordings",
    "ray": "ray",
    "rich": "coordinator",
    "scipy": "coordinator",
    "segno": "coordinator",
    "sklearn": "export",
    "skdh": "clinical",
    "starlette": "hub",
    "tomli_w": "fleet",
    "torch": "export",
    "uvicorn": "hub",
    "wfdb": "clinical",
    "wsproto": "hub",
}

USES = {
    **dict.fromkeys(("coordinator", "experiment", "report"), "coordinator"),
    **dict.fromkeys(
        ("Federation", "hold_out", "load_dataset", "read_results", "split"), "coordinator"
    ),
    **dict.fromkeys(("export", "pretrain", "export_model"), "export"),
    "hub": "hub",
}
"""The extra that brings all that a command or a public name usually needs."""
HOLDS = {
    "coordinator": ("edge", "coordinator"),
    "hub": ("edge", "coordinator", "hub"),
    "export": ("export", "litert"),
}
"""The extras whose modules such an extra brings, too."""


class MissingModule(NamedTuple):
    """What is not installed, and the command that installs it."""

    text: str
    remedy: str


def missing_module(error: ImportError, use: str = "") -> MissingModule | None:
    """What an import lacked, if an extra brings it; None for any other module.

    Args:
        error: what the import raised.
        use: the command or the public name that was asked for: its extra is named, so that nobody
            installs one after the other.
    """
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package, _, inner = error.name.partition(".")
    # A part of a package that is there is no matter of extras; of `google` many have a part.
    if package not in EXTRAS or (inner and error.name != "google.protobuf"):
        return None
    extra, wider = EXTRAS[package], USES.get(use, "")
    if extra in HOLDS.get(wider, ()):
        extra = wider
    return MissingModule(
        f"module '{error.name}' is not installed", f"pip install 'protofleet[{extra}]'"
    )
