"""A bundle: whether a device would take it, how old it is, and whether its programs agree here."""

from __future__ import annotations

import datetime as dt
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle import Bundle, keys
from protofleet.bundle.manifest import Preprocessing
from protofleet.doctor.machine import behind
from protofleet.doctor.observations import Check, Observation, ok, problem, warning
from protofleet.doctor.subjects import BundleSubject
from protofleet.errors import InputError, ProtofleetError, RefusedError
from protofleet.runtime import PACKAGES, open_programs
from protofleet.signatures import fingerprint
from protofleet.tensors import Network

_OLD_DAYS = 365
_EXAMPLES = 8
_TOLERANCE = 1e-3
"""Of two runtimes' outputs, relative to the largest; the export compares each with PyTorch, at
1e-4, on the machine of the export."""


def _signature(subject: BundleSubject) -> Iterator[Observation]:
    opened = _whole(subject)
    if isinstance(opened, Observation):
        yield opened
        return
    signer = bytes.fromhex(opened.signer)
    if signer not in (subject.trusted or keys.user_trust()):
        yield problem(
            f"whole, but signed by {fingerprint(signer)}, whom nobody here trusts",
            "if that is your exporter: protofleet bundle trust PUBLIC_KEY_FILE",
        )
        return
    yield ok(f"'{opened.manifest.name}' {opened.digest[:16]}, signed by {fingerprint(signer)}")


def _whole(subject: BundleSubject) -> Bundle | Observation:
    try:
        return Bundle.open(subject.path, any_signer=True)
    except RefusedError as error:
        return problem(f"rule {error.rule}: {error}", "copy it again from whoever exported it")


def _open(subject: BundleSubject) -> Bundle:
    return Bundle.open(subject.path, any_signer=True)


def _age(subject: BundleSubject) -> Iterator[Observation]:
    manifest = _open(subject).manifest
    try:
        created = dt.datetime.fromisoformat(manifest.created)
    except ValueError:
        yield warning(f"made at an unknown time ({manifest.created[:40]!r})", "export it anew")
        return
    if created.tzinfo is None:
        created = created.replace(tzinfo=dt.UTC)
    late = list(behind("this bundle was made", created.timestamp()))
    yield from late
    days = (dt.datetime.now(dt.UTC) - created).days
    text = f"made {created:%Y-%m-%d}, {days} days ago, sequence {manifest.sequence}"
    if days > _OLD_DAYS:
        yield warning(text, "see whether its exporter has a newer one; devices keep what they have")
    elif not late:
        yield ok(text)


def _programs(subject: BundleSubject) -> Iterator[Observation]:
    """Runs ``infer`` on the same drawn examples in every installed runtime; compares them."""
    bundle = _open(subject)
    shape = bundle.manifest.preprocessing
    model = bundle.model()
    network = Network(params=model.params, buffers=model.buffers)
    found: dict[str, NDArray[np.float32]] = {}
    for backend in _installed(bundle):
        try:
            programs = open_programs(bundle, backend=backend)
            found[backend] = programs.predict(network, _examples(shape))
        except (ProtofleetError, ValueError, RuntimeError) as error:
            yield problem(f"{backend}: {error}", "export the model anew for this runtime's version")
    for name, outputs in found.items():
        if not np.isfinite(outputs).all():
            yield problem(f"{name}: outputs are not finite", "export the model anew")
        else:
            yield ok(f"{name}: runs, outputs of {_EXAMPLES} drawn examples are finite")
    if len(found) > 1:
        yield _agreement(found)


def _installed(bundle: Bundle) -> list[Literal["onnx", "litert"]]:
    """Runtimes that the bundle has programs for and that are installed.

    Raises:
        InputError: there is none.
    """
    programs = bundle.manifest.programs.values()
    has = {
        "onnx": all(program.file is not None for program in programs),
        "litert": all(program.tflite is not None for program in programs),
    }
    names: tuple[Literal["onnx", "litert"], ...] = ("onnx", "litert")
    there = [name for name in names if has[name] and importlib.util.find_spec(PACKAGES[name][0])]
    if not there:
        remedies = "; or ".join(PACKAGES[name][1] for name in names if has[name])
        raise InputError(f"no runtime that it has programs for is installed: {remedies}")
    return there


def _examples(shape: Preprocessing) -> Any:
    """The same at every call."""
    rng = np.random.default_rng(0)
    size = (_EXAMPLES, *shape.input_shape)
    if shape.tokens is not None:
        return rng.integers(0, shape.tokens, size)
    return rng.standard_normal(size, np.float32)


def _agreement(found: Mapping[str, NDArray[np.float32]]) -> Observation:
    first, second = found.values()
    scale = max(float(np.abs(first).max()), 1e-12)
    difference = float(np.abs(first - second).max()) / scale
    text = f"{' and '.join(found)} differ by {difference:.1e} of the largest output"
    if difference <= _TOLERANCE:
        return ok(text)
    return problem(text, "one of the two computes wrongly here: --backend the other, and report it")


CHECKS = (
    Check("bundle.signature", _signature, decisive=True),
    Check("bundle.age", _age),
    Check("bundle.programs", _programs),
)
