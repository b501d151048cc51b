"""``python -m protofleet.runtime.opening BUNDLE DIGEST``: open programs where a crash is harmless.

LiteRT is C++ that reads a file made elsewhere: what it does not refuse may end its process, or keep
it busy for ever. A bundle's programs are therefore opened in a child process first, once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from protofleet.bundle import Bundle
from protofleet.errors import ProtofleetError, ProvisionError
from protofleet.runtime._litert import LiteRtBackend

LIMIT_S = 300.0
"""A Pi Zero opens the programs of a large model in some seconds."""


def check_opening(path: Path, bundle: Bundle) -> str:
    """Open every TFLite program of a verified bundle in a child process.

    Args:
        path: where the bundle lies.
        bundle: the same, verified.

    Returns:
        What was tried: the bundle and LiteRT's version. Equal text need not be tried again.

    Raises:
        ProvisionError: a program does not open, or LiteRT crashes on it or does not end.
    """
    command = [sys.executable, "-m", "protofleet.runtime.opening", str(path), bundle.digest]
    what = f"bundle '{bundle.manifest.name}': its TFLite programs"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(f"{what} were not opened within {LIMIT_S:g} s; {_REMEDY}") from error
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise ProvisionError(f"{what} end LiteRT with {name}; {_REMEDY}")
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["no reason was told"]
        raise ProvisionError(f"{what} do not open: {said[0][:500]}")
    return opening_of(bundle)


_REMEDY = "export the model anew, or choose backend 'onnx'"


def opening_of(bundle: Bundle) -> str:
    """What ``check_opening`` tells of a bundle that opens here."""
    try:
        version = metadata.version("ai-edge-litert")
    except metadata.PackageNotFoundError:  # built by a distribution
        version = "of unknown version"
    return f"{bundle.digest} LiteRT {version}"


def _main(path: Path, digest: str) -> None:
    # The parent has checked the signer.
    bundle = Bundle.open(path, any_signer=True)
    if bundle.digest != digest:
        raise ProvisionError(f"bundle '{path}': changed while it was opened")
    programs = {name: one for name, one in bundle.manifest.programs.items() if one.tflite}
    backend = LiteRtBackend(bundle, programs, threads=1, kernels="graph")
    for name in programs:
        backend.open(name)


if __name__ == "__main__":
    try:
        _main(Path(sys.argv[1]), sys.argv[2])
    except ProtofleetError as error:
        sys.exit(str(error))
