"""From a model to a signed bundle: capture, write, prove parity, and only then the bundle.

Programs do not depend on the initial values: ``reseed`` exchanges those of a bundle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn

from protofleet import __version__
from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.manifest import (
    FORMAT_VERSION,
    LayerDecl,
    Manifest,
    Preprocessing,
    Program,
    StrategyDecl,
    TensorDecl,
)
from protofleet.errors import ExportError, InputError
from protofleet.export import checks
from protofleet.export.capture import CapturedProgram, capture, model_tensors
from protofleet.export.capture.override_python import plain_python
from protofleet.export.catalogue import InputDecl
from protofleet.export.classifier import Parts, find_parts
from protofleet.export.classifier.heads import unfit_head
from protofleet.export.formats import Format, WrittenPrograms, write_programs
from protofleet.export.large_tables import large_tables_as_buffers
from protofleet.export.models import build_model, has_setting
from protofleet.export.objectives import OBJECTIVES, Objective
from protofleet.export.parity import (
    ParityRecord,
    Runner,
    check_parity,
    device_runner,
    failures_told,
)
from protofleet.export.pretraining.checkpoints import fill, load_checkpoint
from protofleet.export.rewritten import rewritten_as_buffers
from protofleet.export.tflite import tflite_runner
from protofleet.export.training_mode import autocast_line
from protofleet.tensors import Layout, TaskName
from protofleet.tensors.blobs import encode

_EXAMPLE_BATCH = 4

NumpyTensors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSpec:
    """What a bundle says apart from its programs and tensors.

    Attributes:
        name: of the bundle.
        strategy, settings: the strategy and its defaults.
        objectives: a training program is made for each, by name in ``OBJECTIVES``.
        preprocessing: holds the shape of one example.
        task: what the outputs are.
        classes, targets: names, in the order of the outputs; one of the two, as the task is.
        formats: of the programs; None: both, or the one that can be written.
        provenance: free text by key.
        head: name of the module that is the head; None: it is found.
        layers: ``features`` also tells the activations of hidden layers.
        allow_probabilities: take a model that ends with Softmax or Sigmoid nevertheless.
        sequence, replaces_up_to: as in the manifest.
    """

    name: str
    strategy: str
    preprocessing: Preprocessing
    task: TaskName = "classification"
    classes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    objectives: tuple[str, ...] = ("cross_entropy",)
    formats: tuple[Format, ...] | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    head: str | None = None
    layers: bool = False
    allow_probabilities: bool = False
    sequence: int = 0
    replaces_up_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What was written.

    Attributes:
        digest: the bundle's identity.
        path: where it lies.
        parity: one record per program.
        params: number of trained values.
        state: number of other values.
        left_out: formats that could not be written, and why.
        notes: what devices do otherwise than the model as it is written.
    """

    digest: str
    path: Path
    parity: tuple[ParityRecord, ...]
    params: int
    state: int
    left_out: Mapping[Format, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@plain_python()
def export_bundle(
    model: nn.Module, spec: BundleSpec, *, out: Path, key: Ed25519PrivateKey
) -> ExportReport:
    """Compile ``model`` to ``infer``, ``features`` and training programs and write the bundle.

    Args:
        model: its present parameters and buffers become the initial values.
        spec: everything else that the bundle says.
        out: ``*.pfb`` for a single file, else a folder.
        key: signs the manifest.

    Raises:
        InputError: the model cannot be exported as it is (``checks.check_model``).
        ExportError: a program could not be captured, has no form in a format that was asked for,
            or differs from PyTorch; nothing is written.
    """
    example = example_of(spec.preprocessing, 2)
    expected = checks.expected_output(spec.task, spec.classes or spec.targets)
    checks.check_model(model, example, expected, allow_probabilities=spec.allow_probabilities)
    with large_tables_as_buffers(model, example), rewritten_as_buffers(model, example):
        return _export(model, spec, out, key)


def _export(model: nn.Module, spec: BundleSpec, out: Path, key: Ed25519PrivateKey) -> ExportReport:
    """Of a model that can be exported, with all of its fixed tables as buffers."""
    captured = capture_programs(model, spec)
    written = write_programs(captured, spec.formats)
    params, buffers = initial_values(model)
    files = written.files()
    manifest = _manifest(spec, captured, written, (params, buffers))
    example = example_of(spec.preprocessing, 2)
    least = checks.smallest_batch(model, example)
    manifest = _with_min_batch(manifest, least)
    records = tuple(
        check_parity(
            model,
            program,
            written.onnx.get(name),
            name=name,
            runners=_runners(name, program, written, manifest, (params, buffers)),
            tokens=spec.preprocessing.tokens,
        )
        for name, program in captured.items()
    )
    files["params.safetensors"] = encode(params)
    if buffers:
        files["state.safetensors"] = encode(buffers)
    return ExportReport(
        digest=write_bundle(out, manifest, files, key),
        path=out,
        parity=records,
        params=sum(value.size for value in params.values()),
        state=sum(value.size for value in buffers.values()),
        left_out=written.left_out,
        notes=_notes(model, example),
    )


def _notes(model: nn.Module, x: Tensor) -> tuple[str, ...]:
    line = autocast_line(model, x)
    return (f"{line}: devices compute in float32 what autocast would narrow",) if line else ()


def _runners(
    name: str,
    program: CapturedProgram,
    written: WrittenPrograms,
    manifest: Manifest,
    initial: tuple[NumpyTensors, NumpyTensors],
) -> dict[str, Runner]:
    """How a program runs beside plain ONNX Runtime; what does not load names the model's line."""
    made: dict[str, Runner] = {}
    if written.tflite is not None:
        with failures_told(program, name, "LiteRT"):
            made["LiteRT"] = tflite_runner(written.tflite, name)
    device = "the device runtime"
    with failures_told(program, name, device):
        made[device] = device_runner(name, manifest, written.files(), initial)
    return made


def capture_programs(model: nn.Module, spec: BundleSpec) -> dict[str, CapturedProgram]:
    """All programs of a bundle by name; a second objective's is ``train_<objective>``.

    Raises:
        InputError: the model has no such head.
        ExportError: an objective is unknown, the logits do not fit the classes, or see ``capture``.
    """
    x = example_of(spec.preprocessing, _EXAMPLE_BATCH)
    infer = capture(model, None, {"x": x}, parts=Parts(head=None))
    parts = find_parts(model, x, head=spec.head)
    programs = {"infer": dataclasses.replace(infer, parts=parts)}
    names = spec.classes or spec.targets
    sizes: dict[str, int | str] = {"classes": len(names), "outputs": len(names)}
    steps = infer.outputs[0].shape[1:-1]
    if spec.task == "segmentation" and len(steps) == 1:
        sizes["steps"] = steps[0]
    if parts.head is not None and spec.task != "segmentation":
        programs["features"] = features = capture(
            model, None, {"x": x}, parts=parts, features=True, layers=spec.layers
        )
        (sizes["features"],) = (p.shape[-1] for p in features.outputs if p.key == "features")
    each = ("batch", *((sizes["steps"],) if "steps" in sizes else ()), len(names))
    if infer.outputs[0].shape != each:
        raise ExportError(
            f"model: expected {'logits' if spec.classes else 'outputs'} {each} "
            f"for {len(names)} {'classes' if spec.classes else 'targets'}, got "
            f"{infer.outputs[0].shape}"
        )
    for index, name in enumerate(spec.objectives):
        objective = objective_named(name)
        if "features" in objective.needs and "features" not in sizes:
            raise ExportError(f"objective '{name}' needs features: {parts.missing}")
        if "classify" in objective.needs and (why := unfit_head(model, parts, x)):
            raise ExportError(f"objective '{name}': {why}")
        example = _example(objective, x, sizes)
        program_name = "train" if index == 0 else f"train_{name}"
        programs[program_name] = capture(model, objective, example, parts=parts)
    return programs


def objective_named(name: str) -> Objective:
    """The objective, or ExportError if there is none of this name."""
    if name not in OBJECTIVES:
        raise ExportError(f"objective '{name}': expected one of {', '.join(sorted(OBJECTIVES))}")
    return OBJECTIVES[name]


def example_of(preprocessing: Preprocessing, batch: int) -> Tensor:
    """A batch such as the model takes: zeros in float32, or int64 tokens 1 (0 often is padding)."""
    shape = (batch, *preprocessing.input_shape)
    if preprocessing.tokens is None:
        return torch.zeros(shape)
    return torch.full(shape, min(1, preprocessing.tokens - 1), dtype=torch.int64)


def _example(objective: Objective, x: Tensor, sizes: Mapping[str, int | str]) -> dict[str, Tensor]:
    """A batch of zeros as the objective declares it; ``x`` where it declares examples."""

    def zeros(decl: InputDecl) -> Tensor:
        if decl.shape is None:
            return torch.zeros_like(x)
        known: dict[str, int | str] = {"batch": len(x), **sizes}
        dims = [int(known[d]) if isinstance(d, str) else d for d in decl.shape]
        return torch.zeros(dims, dtype=getattr(torch, decl.dtype))

    return {key: zeros(decl) for key, decl in objective.inputs.items()}


def initial_values(model: nn.Module) -> tuple[NumpyTensors, NumpyTensors]:
    """A model's parameters and buffers, as the bundle stores them."""
    tensors = model_tensors(model)
    params, buffers = (
        {name: value.detach().numpy().astype(np.float32) for name, value in group.items()}
        for group in (tensors.params, tensors.buffers)
    )
    return params, buffers


def _manifest(
    spec: BundleSpec,
    captured: Mapping[str, CapturedProgram],
    written: WrittenPrograms,
    initial: tuple[NumpyTensors, NumpyTensors],
) -> Manifest:
    params, buffers = initial
    return Manifest(
        format=FORMAT_VERSION,
        name=spec.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        layout_hash=Layout.of({name: value.shape for name, value in params.items()}).hash,
        params=tuple(TensorDecl(name=n, shape=v.shape) for n, v in params.items()),
        state=tuple(TensorDecl(name=n, shape=v.shape) for n, v in buffers.items()),
        programs={n: _program(program, written.paths(n)) for n, program in captured.items()},
        preprocessing=spec.preprocessing,
        task=spec.task,
        classes=spec.classes,
        targets=spec.targets,
        strategy=StrategyDecl(name=spec.strategy, settings=dict(spec.settings)),
        provenance={
            "protofleet": __version__,
            "torch": str(torch.__version__),
            **spec.provenance,
        },
        files={},
        head=captured["infer"].parts.head_params,
        layers=_layers(captured),
        no_layers=captured["infer"].parts.no_layers,
        sequence=spec.sequence,
        replaces_up_to=spec.replaces_up_to,
    )


def _layers(captured: Mapping[str, CapturedProgram]) -> tuple[LayerDecl, ...]:
    """Hidden layers whose activations the bundle tells, and the head's."""
    program = captured.get("features")
    told = {port.key for port in program.outputs} if program else set()
    parts = captured["infer"].parts
    if not any(f"layers.{layer.name}" in told for layer in parts.layers):
        return ()
    return tuple(
        LayerDecl(name=layer.name, before=layer.before)
        for layer in parts.layers
        if f"layers.{layer.name}" in told or f"{layer.name}.weight" in parts.head_params
    )


def _with_min_batch(manifest: Manifest, least: int) -> Manifest:
    programs = {
        name: program if program.objective is None else replace(program, min_batch=least)
        for name, program in manifest.programs.items()
    }
    return replace(manifest, programs=programs)


def _program(program: CapturedProgram, paths: Mapping[str, str | None]) -> Program:
    return Program(
        file=paths["file"],
        inputs=program.inputs,
        outputs=program.outputs,
        objective=None if program.objective is None else program.objective.name,
        tflite=paths["tflite"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model before any value is drawn.

    Attributes:
        name: a factory's, as ``build_model`` takes it.
        settings: its keywords; ``classes`` is filled in where the factory takes it.
        classes: class names; empty of a model for targets.
        input_shape: of one example.
        targets: names of what it predicts, where that are numbers.
    """

    name: str
    settings: Mapping[str, Any]
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    targets: tuple[str, ...] = ()


def compile_model(
    recipe: Recipe, objectives: tuple[str, ...], path: Path, key: Ed25519PrivateKey
) -> None:
    """Export a model with a training program for each objective.

    Raises:
        InputError: no such model or setting.
        ExportError: a program differs from PyTorch, or the logits do not fit the classes.
    """
    spec = BundleSpec(
        name=recipe.name,
        strategy="fedavg",
        task="regression" if recipe.targets else "classification",
        classes=recipe.classes,
        targets=recipe.targets,
        preprocessing=Preprocessing(input_shape=recipe.input_shape),
        objectives=objectives,
    )
    export_bundle(build_recipe(recipe, 0), spec, out=path, key=key)


def reseed(  # noqa: PLR0913 - a bundle, and what makes another of it
    compiled: Path,
    recipe: Recipe,
    seed: int,
    path: Path,
    key: Ed25519PrivateKey,
    *,
    start: Path | None = None,
    keeps_head: bool = False,
) -> None:
    """Write the same programs with the initial values that a seed draws.

    Args:
        compiled: bundle with the programs.
        recipe: its model.
        seed: of the values.
        path: of the new bundle.
        key: signs it.
        start: checkpoint whose tensors take the place of those of the same name.
        keeps_head: those of the head, too.

    Raises:
        InputError: a tensor of the checkpoint has another shape, or none has a name of the model.
    """
    bundle = Bundle.open(compiled, any_signer=True)
    manifest = bundle.manifest
    model = build_recipe(recipe, seed)
    if start is not None:
        tensors, _ = load_checkpoint(start)
        head = () if keeps_head else manifest.head
        fill(model, _in_common(model, tensors, head, f"checkpoint '{start}'"))
    params, buffers = initial_values(model)
    programs = manifest.programs.values()
    paths = {path for program in programs for path in (program.file, program.tflite) if path}
    files = {path: bundle.read(path) for path in paths}
    files["params.safetensors"] = encode(params)
    if buffers:
        files["state.safetensors"] = encode(buffers)
    write_bundle(path, manifest, files, key)


def check_start(compiled: Path, recipe: Recipe, trained: Recipe) -> None:
    """Raise InputError where ``reseed`` could not start from a checkpoint of another recipe.

    Args:
        compiled: bundle of the first one.
        recipe: what is to start.
        trained: what the checkpoint will be of.
    """
    head = Bundle.open(compiled, any_signer=True).manifest.head
    tensors = build_recipe(trained, 0).state_dict()
    told = f"pretraining of '{trained.name}' for '{recipe.name}'"
    _in_common(build_recipe(recipe, 0), tensors, head, told)


def _in_common(
    model: nn.Module, tensors: Mapping[str, Tensor], head: tuple[str, ...], told: str
) -> dict[str, Tensor]:
    """Those of other tensors that a model has under the same name, a head's aside."""
    own = model.state_dict()
    common = {n: v for n, v in tensors.items() if n in own and n not in head}
    if not common:
        raise InputError(
            f"{told}: expected tensors that the model has beside its head, such as "
            f"'{next((n for n in own if n not in head), '')}', got none of them"
        )
    for name, value in common.items():
        if value.shape != own[name].shape:
            wanted, got = tuple(own[name].shape), tuple(value.shape)
            raise InputError(
                f"{told}: tensor '{name}': expected {wanted}, got {got}; give both models the same "
                "sizes"
            )
    return common


def build_recipe(recipe: Recipe, seed: int) -> nn.Module:
    """The model with the values that a seed draws.

    Raises:
        InputError: no such model or setting.
    """
    settings: dict[str, Any] = dict(recipe.settings)
    if "classes" not in settings and has_setting(recipe.name, "classes"):
        settings["classes"] = len(recipe.classes or recipe.targets)
    torch.manual_seed(seed)
    return build_model(recipe.name, **settings)
