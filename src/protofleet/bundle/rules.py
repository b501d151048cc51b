"""What a manifest may say: each function checks one group of rules of ``docs/bundle.md``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.files import MANIFEST, MAX_BUNDLE_BYTES, SIGNATURE
from protofleet.bundle.manifest import (
    FORMAT_VERSION,
    MAX_SEQUENCE,
    MAX_TOKENS,
    PENULTIMATE,
    Manifest,
    Port,
    Preprocessing,
    Program,
    TensorDecl,
)
from protofleet.errors import RefusedError
from protofleet.tensors import Layout, kind_of, strict_json
from protofleet.tensors.blobs import MAX_NAME_CHARS, MAX_TENSORS, check_finite

PARAMS, STATE = "params.safetensors", "state.safetensors"
MAX_FILES = 256
MAX_PATH_CHARS = 128
MAX_CLASSES = 10_000
MAX_LABEL_CHARS = 1024
MAX_AXES = 8
MAX_EXAMPLE_VALUES = 2**24
"""Values of one example, and samples of a window: 64 MiB as float32."""
MAX_PORT_VALUES = 2**28
"""Values of a port for one example of a batch, as what the runtime allocates: 1 GiB as float32."""
MAX_RATE_HZ = 1e6
MAX_CHANNELS = 4096
_FLOAT32 = np.finfo(np.float32)

_SEGMENT = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?"
_PATH = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,3}}")
_BATCH = re.compile(r"batch(?:\*[1-9][0-9]{0,5})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_INPUT_ROLES = frozenset({"param", "state", "input", "noise"})
_OUTPUT_ROLES = frozenset({"loss", "grad", "state", "output"})


def parse(data: bytes) -> Manifest:
    """The manifest in ``data``; its version is looked at before anything else.

    Raises:
        RefusedError: rule ``manifest`` (not strict JSON, or a field missing or of a wrong type)
            or ``version``.
    """
    document = strict_json.loads(data, rule="manifest", what=MANIFEST)
    version = document.get("format") if isinstance(document, dict) else None
    if type(version) is not int:
        raise RefusedError("manifest", f"{MANIFEST}: expected an object with an integer 'format'")
    if version != FORMAT_VERSION:
        raise RefusedError(
            "version", f"bundle format {version}: this release reads format {FORMAT_VERSION}"
        )
    try:
        return msgspec.convert(document, Manifest)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RefusedError("manifest", f"{MANIFEST}: {error}") from error


def check_manifest(manifest: Manifest) -> None:
    """Everything that can be said without the files.

    Raises:
        RefusedError: rule ``path``, ``file-count``, ``size``, ``manifest``, ``layout``,
            ``port`` or ``preprocessing``.
    """
    check_files(manifest)
    _check_texts(manifest)
    _check_layout(manifest)
    _check_parts(manifest)
    check_preprocessing(manifest.preprocessing)
    for name, program in manifest.programs.items():
        _check_program(name, program, manifest)


def check_files(manifest: Manifest) -> None:
    """Paths, number, sizes and hash fields of the declared files.

    Raises:
        RefusedError: rule ``file-count``, ``path``, ``size`` or ``missing-file``.
    """
    if len(manifest.files) > MAX_FILES:
        raise RefusedError("file-count", f"bundle: {len(manifest.files)} files > {MAX_FILES}")
    folded = set()
    for path, entry in manifest.files.items():
        if len(path) > MAX_PATH_CHARS or not _PATH.fullmatch(path) or path in (MANIFEST, SIGNATURE):
            raise RefusedError("path", f"bundle file {path[:80]!r}: path not allowed")
        if path.lower() in folded:
            raise RefusedError("path", f"bundle file '{path}': differs only in case from another")
        folded.add(path.lower())
        if not 0 <= entry.bytes <= MAX_BUNDLE_BYTES or not _SHA256.fullmatch(entry.sha256):
            raise RefusedError("size", f"bundle file '{path}': impossible size or hash")
    total = sum(entry.bytes for entry in manifest.files.values())
    if total > MAX_BUNDLE_BYTES:
        raise RefusedError("size", f"bundle: {total} bytes > {MAX_BUNDLE_BYTES}")
    for needed, declared in ((PARAMS, True), (STATE, manifest.state)):
        if declared and needed not in manifest.files:
            raise RefusedError("missing-file", f"bundle file '{needed}': not in the manifest")


def check_tensors(
    tensors: Mapping[str, NDArray[Any]], declared: Iterable[TensorDecl], file: str
) -> None:
    """Names, shapes, dtype and finiteness of a decoded blob.

    Raises:
        RefusedError: rule ``layout`` or ``finite``.
    """
    shapes = {decl.name: decl.shape for decl in declared}
    if tensors.keys() != shapes.keys():
        name = min(tensors.keys() ^ shapes.keys())
        raise RefusedError("layout", f"{file}: tensor '{name}' is surplus or absent")
    for name, value in tensors.items():
        if value.shape != shapes[name] or value.dtype != np.float32:
            raise RefusedError(
                "layout",
                f"tensor '{name}': expected {shapes[name]} float32, "
                f"got {value.shape} {value.dtype}",
            )
    check_finite(tensors)


def _check_texts(manifest: Manifest) -> None:
    labels = [manifest.name, manifest.strategy.name, *manifest.programs]
    labels += [*manifest.classes, *manifest.targets]
    labels += [*manifest.provenance, *manifest.provenance.values()]
    labels += filter(None, [manifest.no_layers])
    for label in labels:
        if not _is_label(label):
            raise RefusedError("manifest", f"{MANIFEST}: text {label[:40]!r} is not allowed")
    for field in ("sequence", "replaces_up_to"):
        number = getattr(manifest, field)
        if not 0 <= number <= MAX_SEQUENCE:
            raise RefusedError(
                "manifest", f"{MANIFEST}: {field}: expected 0 to {MAX_SEQUENCE}, got {number}"
            )
    _check_outputs(manifest)
    try:
        datetime.fromisoformat(manifest.created)
    except ValueError as error:
        got = f"created: expected ISO 8601, got {manifest.created[:40]!r}"
        raise RefusedError("manifest", f"{MANIFEST}: {got}") from error


def _is_label(text: str) -> bool:
    return 0 < len(text) <= MAX_LABEL_CHARS and text.isprintable()


def _check_outputs(manifest: Manifest) -> None:
    """A classifier has classes, any other model targets, and never both."""
    kinds = {"classes": manifest.classes, "targets": manifest.targets}
    wanted = kind_of(manifest.task)
    names = kinds.pop(wanted)
    if not 0 < len(set(names)) == len(names) <= MAX_CLASSES:
        raise RefusedError("manifest", f"{MANIFEST}: {wanted} are absent, repeated or too many")
    for surplus, others in kinds.items():
        if others:
            raise RefusedError("manifest", f"{MANIFEST}: task {manifest.task} has no {surplus}")


def _check_layout(manifest: Manifest) -> None:
    for kind in (manifest.params, manifest.state):
        names = [decl.name for decl in kind]
        if len(set(names)) != len(names) or len(names) > MAX_TENSORS:
            raise RefusedError("layout", f"{MANIFEST}: tensor names repeated or too many")
        for decl in kind:
            _check_decl(decl)
    layout = Layout.of({decl.name: decl.shape for decl in manifest.params})
    if layout.hash != manifest.layout_hash:
        raise RefusedError(
            "layout", f"layout hash: expected {layout.hash}, got {manifest.layout_hash[:80]!r}"
        )


def _check_parts(manifest: Manifest) -> None:
    params = {decl.name: decl.shape for decl in manifest.params}
    if len(set(manifest.head)) != len(manifest.head) or not params.keys() >= {*manifest.head}:
        raise RefusedError("layout", f"{MANIFEST}: head: expected names of params, each once")
    features = manifest.programs.get("features")
    told = {port.key: port.shape for port in features.outputs} if features else {}
    earlier: set[str] = set()
    for layer in manifest.layers:
        what = f"{MANIFEST}: layer {layer.name[:40]!r}"
        if layer.name in earlier or len(params.get(f"{layer.name}.weight", ())) < 2:
            raise RefusedError(
                "layout", f"{what}: expected params to have its weight of two axes or more, once"
            )
        if layer.before is not None and (
            layer.before not in earlier or f"layers.{layer.before}" not in told
        ):
            raise RefusedError(
                "layout", f"{what}: expected 'before' to name an earlier hidden layer"
            )
        width = params[f"{layer.name}.weight"][0]
        if told.get(f"layers.{layer.name}", ("batch", width)) != ("batch", width):
            raise RefusedError("layout", f"{what}: its activations are not those of {width} units")
        inputs = math.prod(params[f"{layer.name}.weight"][1:])
        units = params[f"{layer.before}.weight"][0] if layer.before else 1
        if not units or inputs % units:
            raise RefusedError("layout", f"{what}: {inputs} inputs are not those of {units} units")
        earlier.add(layer.name)


def _check_decl(decl: TensorDecl) -> None:
    printable = decl.name.isprintable() and " " not in decl.name
    if not 0 < len(decl.name) <= MAX_NAME_CHARS or not printable:
        raise RefusedError(
            "layout",
            f"{MANIFEST}: tensor {decl.name[:40]!r}: expected a name of 1 to {MAX_NAME_CHARS} "
            "printable characters, letters of any script but no space",
        )
    sizes = math.prod(max(axis, 1) for axis in decl.shape) * 4
    if any(axis < 0 for axis in decl.shape) or sizes > MAX_BUNDLE_BYTES:
        raise RefusedError("layout", f"tensor '{decl.name}': impossible shape {decl.shape}")


def check_preprocessing(pre: Preprocessing) -> None:
    """Sizes, rates and statistics that fit together.

    Raises:
        RefusedError: rule ``preprocessing``.
    """
    for holds, wanted, got in (*_size_rules(pre), *_value_rules(pre)):
        if not holds:
            raise RefusedError(
                "preprocessing", f"preprocessing: expected {wanted}, got {str(got)[:80]}"
            )
    if pre.tokens is None:
        return
    if not 0 < pre.tokens <= MAX_TOKENS or (set(pre.mean), set(pre.std)) != ({0.0}, {1.0}):
        raise RefusedError(
            "preprocessing", f"preprocessing: expected at most {MAX_TOKENS} tokens, not normalised"
        )


_Rule = tuple[bool, str, object]
"""Whether it holds, what was expected, what was got."""


def _size_rules(pre: Preprocessing) -> Iterator[_Rule]:
    shape, axes = pre.input_shape, len(pre.input_shape)
    yield axes <= MAX_AXES, f"at most {MAX_AXES} axes in input_shape", axes
    yield all(n > 0 for n in shape), "sizes > 0 in input_shape", shape
    fits = math.prod(shape) <= MAX_EXAMPLE_VALUES
    yield fits, f"at most {MAX_EXAMPLE_VALUES} values in an example", shape
    for name, number, most in (
        ("rate_hz", pre.rate_hz, MAX_RATE_HZ),
        ("window", pre.window, MAX_EXAMPLE_VALUES),
        ("hop", pre.hop, MAX_EXAMPLE_VALUES),
    ):
        yield number is None or 0 < number <= most, f"{name} > 0, at most {most:.10g}", number
    named = len(pre.channels) <= MAX_CHANNELS and all(map(_is_label, pre.channels))
    yield named, f"at most {MAX_CHANNELS} printable channel names", len(pre.channels)
    units = pre.units or ()
    told = not units or (len(units) == len(pre.channels) and all(map(_is_label, units)))
    yield told, f"a printable unit for each of {len(pre.channels)} channels", ", ".join(units)


def _value_rules(pre: Preprocessing) -> Iterator[_Rule]:
    smallest, largest = float(_FLOAT32.tiny), float(_FLOAT32.max)
    per_channel = {1, len(pre.channels)} if pre.channels else {1, *pre.input_shape[-1:]}
    counts = " or ".join(map(str, sorted(per_channel)))
    for name, values in (("mean", pre.mean), ("std", pre.std)):
        yield len(values) in per_channel, f"{counts} values in {name}", len(values)
    yield all(abs(value) <= largest for value in pre.mean), "mean within float32", pre.mean
    within = all(smallest <= value <= largest for value in pre.std)
    yield within, "std > 0 within float32", pre.std


def _check_program(name: str, program: Program, manifest: Manifest) -> None:
    files = [file for file in (program.file, program.tflite) if file is not None]
    if not files:
        raise RefusedError("port", f"program '{name}': has neither an ONNX nor a TFLite file")
    for file in files:
        if file not in manifest.files:
            raise RefusedError("port", f"program '{name}': file {file[:80]!r} is not declared")
    for ports, roles in ((program.inputs, _INPUT_ROLES), (program.outputs, _OUTPUT_ROLES)):
        names = [port.name for port in ports]
        if len(set(names)) != len(names):
            raise RefusedError("port", f"program '{name}': two ports share a name")
        for port in ports:
            if port.role not in roles:
                raise RefusedError(
                    "port", f"program '{name}', port '{port.name}': role '{port.role}' not here"
                )
            _check_port(f"program '{name}', port '{port.name}'", port, manifest)
    for port in (*program.inputs, *program.outputs):
        _check_task(f"program '{name}', port '{port.name}'", port, manifest)
        _check_features(f"program '{name}', port '{port.name}'", port)
    baked = program.precision != "float32"
    if baked and any(p.role != "input" for p in program.inputs):
        raise RefusedError("port", f"program '{name}': {program.precision} takes inputs only")


def _check_task(what: str, port: Port, manifest: Manifest) -> None:
    """True values and outputs are what the task says."""
    is_true = (port.role, port.key) == ("input", "y")
    if not is_true and (port.role, port.key) != ("output", "logits"):
        return
    # A segmentation's steps are the program's own; they are whole numbers as any fixed axis.
    steps = [port.shape[1] if len(port.shape) > 1 else "steps"]
    steps = [axis for axis in steps if manifest.task == "segmentation"]
    has_classes = kind_of(manifest.task) == "classes"
    dtype = "int64" if is_true and has_classes else "float32"
    each = () if is_true and has_classes else (len(manifest.outputs),)
    expected = ("batch", *steps, *each)
    if (port.dtype, port.shape) != (dtype, expected) or (steps and not isinstance(steps[0], int)):
        raise RefusedError(
            "port",
            f"{what}: expected {expected} {dtype} for task {manifest.task}, "
            f"got {port.shape} {port.dtype}",
        )


def _check_features(what: str, port: Port) -> None:
    """Features, and activations of layers, are rows of numbers."""
    rows = port.key in ("features", PENULTIMATE) or port.key.startswith("layers.")
    if port.role != "output" or not rows:
        return
    fits = len(port.shape) == 2 and port.shape[0] == "batch" and isinstance(port.shape[1], int)
    if not fits or port.dtype != "float32":
        raise RefusedError(
            "port", f"{what}: expected ('batch', d) float32, got {port.shape} {port.dtype}"
        )


def _per_example(axis: int | str) -> int:
    """How long an axis is with a batch of one; ``batch*8`` is 8."""
    return axis if isinstance(axis, int) else int(axis.partition("*")[2] or 1)


def _check_port(what: str, port: Port, manifest: Manifest) -> None:
    for axis in port.shape:
        if axis < 0 if isinstance(axis, int) else not _BATCH.fullmatch(axis):
            raise RefusedError("port", f"{what}: impossible axis {axis!r}")
    factors = (_per_example(axis) for axis in port.shape)
    if len(port.shape) > MAX_AXES or math.prod(factors) > MAX_PORT_VALUES:
        raise RefusedError(
            "port",
            f"{what}: expected at most {MAX_AXES} axes and {MAX_PORT_VALUES} values for each "
            f"example of a batch, got {str(port.shape)[:80]}",
        )
    if (port.role == "noise") != (port.distribution is not None):
        raise RefusedError("port", f"{what}: a distribution belongs to a noise port and only there")
    group: Literal["params", "state"] = "state" if port.role == "state" else "params"
    if port.role not in ("param", "grad", "state"):
        return
    declared = {decl.name: decl.shape for decl in getattr(manifest, group)}
    if port.key not in declared:
        raise RefusedError("port", f"{what}: no tensor '{port.key[:80]}' in {group}")
    if port.shape != declared[port.key] or port.dtype != "float32":
        raise RefusedError(
            "port",
            f"{what}: expected {declared[port.key]} float32, got {port.shape} {port.dtype}",
        )
