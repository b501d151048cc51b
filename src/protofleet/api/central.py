"""The central half: training before the export, and the export itself.

This is the only module of the API that needs the extra ``export``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from protofleet.api.data import to_preprocessing
from protofleet.bundle import keys
from protofleet.bundle.manifest import Preprocessing
from protofleet.bundle.rules import check_preprocessing
from protofleet.datasets.arrays import check_tokens, to_examples, to_labels, to_targets
from protofleet.errors import InputError, RefusedError
from protofleet.export import checks
from protofleet.export.build import BundleSpec, ExportReport, example_of, export_bundle
from protofleet.export.classifier.prepare import Wishes
from protofleet.export.formats import Format
from protofleet.export.methods import choose_methods
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.pretraining import training
from protofleet.export.pretraining.checkpoints import fill, load_checkpoint
from protofleet.export.pretraining.rates import find_rate
from protofleet.export.pretraining.training import TrainOptions, TrainProgress, TrainResult
from protofleet.export.segmentation import classes_last
from protofleet.export.tokens import find_tokens, table_rows, takes_tokens
from protofleet.strategies.tasks import TASKS
from protofleet.tensors import TaskName, kind_of

_log = logging.getLogger(__name__)

Tell = Callable[[str], None]
"""Takes what a person should know, in a line."""


def pretrain(  # noqa: PLR0913 - the settings of a training, each by its name
    model: nn.Module,
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    folder: Path | str,
    task: TaskName = "classification",
    loss: str | None = None,
    classes: Sequence[str] = (),
    targets: Sequence[str] = (),
    epochs: int = 100,
    patience: int | None = 10,
    lr: float | None = None,
    batch_size: int = 64,
    validation: float = 0.1,
    seed: int = 1,
    provenance: Mapping[str, str] | None = None,
    resume: bool = False,
    allow_probabilities: bool = False,
    on_progress: Callable[[TrainProgress], None] = lambda _: None,
    tell: Tell = _log.info,
) -> TrainResult:
    """Train a model centrally, before it is exported.

    Args:
        model: any module of one input; afterwards it has the values of the best epoch.
        x: examples, ``(n, …)`` numbers, preprocessed.
        y: class numbers ``(n,)`` from 0, of each step ``(n, steps)``, or targets ``(n, T)``; None:
            a masked autoencoder is trained, which looks at ``x`` alone and suits HART.
        folder: of the run: the best model (``model.safetensors``) and where it stands.
        task: what the outputs are: ``classification``, ``segmentation`` (a class for each step),
            ``regression`` or ``multilabel``.
        loss: of the task; None: its default.
        classes: names, in the order of the outputs; empty: numbers.
        targets: the same where the task has no classes.
        epochs: most passes over the training part.
        patience: passes without a better validation loss after which it ends; None: it makes all.
        lr: learning rate of Adam; None: the one that does best in some steps of a few rates
            (``export.pretraining.rates``), or, with ``resume``, that of the run before.
        batch_size: examples per step.
        validation: share of the examples held out, which decides on the best epoch; 0 for none.
        seed: of the split, the order, masks and dropout.
        provenance: what else the checkpoint says, by key.
        resume: go on after the last finished epoch in ``folder``.
        allow_probabilities: take a model that ends with Softmax or Sigmoid nevertheless.
        on_progress: told after every step.
        tell: told what was found out about the model.

    Returns:
        The checkpoint, its epoch, validation loss and accuracy, and whether more epochs would help.

    Raises:
        InputError: model, examples and labels do not fit together, ``folder`` holds another run, or
            the loss is no longer finite.
    """
    place = Path(folder)
    rate = training.rate_before(place) if lr is None else lr
    chosen = TrainOptions(
        epochs=epochs,
        patience=patience,
        batch_size=batch_size,
        validation=validation,
        seed=seed,
        **({} if rate is None else {"lr": rate}),
    )
    if (place / training.STATE_FILE).exists() and not resume:
        raise InputError(f"'{place}' holds a run: go on with resume, or choose another folder")
    checks.check_tensors(model)
    arrays = {"x": _examples(model, x, tell)}
    known = dict(provenance or {})
    with ExitStack() as within:
        if y is None:
            trained = training.masked(model, torch.from_numpy(arrays["x"][:1]))
        else:
            arrays["y"], names = _labels(y, task, classes, targets)
            example = torch.from_numpy(arrays["x"][:2])
            expected = checks.expected_output(task, names)
            within.enter_context(classes_last(model, example, task, names, tell))
            checks.check_model(model, example, expected, allow_probabilities=allow_probabilities)
            trained = training.supervised(model, OBJECTIVES[TASKS[task].chosen_loss(loss)])
            known |= {"task": task, kind_of(task): json.dumps(names)}
        data = {key: torch.from_numpy(values) for key, values in arrays.items()}
        if rate is None:
            found = find_rate(trained, data, chosen)
            tell(found.text)
            chosen = replace(chosen, lr=found.lr)
        result = training.train(
            trained,
            data,
            chosen,
            folder=place,
            provenance=known,
            resume=resume,
            on_progress=on_progress,
        )
    fill(model, load_checkpoint(result.checkpoint)[0])
    return result


def _examples(model: nn.Module, x: ArrayLike, tell: Tell) -> NDArray[Any]:
    """As float32, or int64 where the model takes tokens."""
    examples = np.ascontiguousarray(to_examples(np.asarray(x), "x"))
    shape = examples.shape[1:]
    if not takes_tokens(model, shape):
        return examples
    tokens = table_rows(model, shape)
    check_tokens("data: x", examples, tokens)
    known = "" if tokens is None else f": {tokens} tokens, from 0"
    tell(f"the model takes int64 examples{known}")
    return examples.astype(np.int64)


def _labels(
    y: ArrayLike, task: TaskName, classes: Sequence[str], targets: Sequence[str]
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """True values as the task has them, and the names of the outputs."""
    given = np.asarray(y)
    if kind_of(task) == "classes":
        labels = to_labels(given, "y", classes or None, steps=task == "segmentation")
        count = int(labels.max(initial=-1)) + 1
        return np.ascontiguousarray(labels), tuple(classes) or tuple(map(str, range(count)))
    values = to_targets(given, "y", targets or None)
    TASKS[task].check_labels("y", values, values.shape[1])
    return np.ascontiguousarray(values), tuple(targets) or tuple(map(str, range(values.shape[1])))


def export_model(  # noqa: PLR0913 - what a bundle says, each by its name
    model: nn.Module,
    out: Path | str,
    *,
    input_shape: Sequence[int] | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    strategy: str | Sequence[str] = "fedavg",
    settings: Mapping[str, Any] | None = None,
    task: TaskName = "classification",
    loss: str | None = None,
    classes: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    tokens: int | None = None,
    head: str | None = None,
    head_kind: str | None = None,
    align: Mapping[str, int] | None = None,
    train: str | Sequence[str] = (),
    objectives: Sequence[str] = (),
    formats: Sequence[Format] | None = None,
    key: Path | str | None = None,
    sequence: int = 0,
    replaces_up_to: int = 0,
    provenance: Mapping[str, str] | None = None,
    allow_probabilities: bool = False,
    tell: Tell = _log.info,
) -> ExportReport:
    """Compile a model to programs, compare each with PyTorch, and write a signed bundle.

    Args:
        model: any module of one input; its values become the bundle's. It may be changed in place
            as ``head_kind``, ``align`` and the strategies ask for.
        out: ``*.pfb`` for a single file, else a folder.
        input_shape: of one example, such as ``(128, 6)``; needed without ``preprocessing``.
        preprocessing: shape and, for sensors, rate, window, channels, mean and std; or a mapping of
            the same, as ``export --preprocessing`` reads it from a file.
        strategy: name, or several: the bundle names the first and serves all; ``all`` stands for
            every one that can run on the model as it is.
        settings: of the first strategy, the bundle's defaults.
        task: what the outputs are: ``classification``, ``segmentation`` (a class for each step),
            ``regression`` or ``multilabel``.
        loss: of the task; None: its default.
        classes: names in the order of the outputs; None: numbers. A segmentation needs them.
        targets: the same where the task has no classes.
        tokens: examples are int64 numbers below this; None: found where the model needs them.
        head: name of the module that takes the features; None: found.
        head_kind: ``prototypes`` or ``cosine``: what replaces the head; None: it stays.
        align: prototypes of an alignment layer behind modules, by their names or patterns.
        train: names or patterns of the parameters that train, such as ``head.*``; the others are
            frozen (``freeze``). Empty: those whose ``requires_grad`` says so.
        objectives: training programs beside those that the strategies need.
        formats: ``onnx``, ``tflite``; None: both, or the one that can be written.
        key: PEM file of the signing key; None: this user's own, made at the first use.
        sequence: number of the bundle among the signer's.
        replaces_up_to: devices may go back to it from any up to this number.
        provenance: free text by key.
        allow_probabilities: take a model that ends with Softmax or Sigmoid nevertheless.
        tell: told what was found out about the model, and which strategies are left out and why.

    Returns:
        The bundle's path and digest, and how far each program agrees with PyTorch.

    Raises:
        InputError: the model, a strategy, a setting or a name does not fit.
        ExportError: a program could not be made or differs from PyTorch; nothing is written.
    """
    given = [strategy] if isinstance(strategy, str) else list(strategy)
    place = Path(out)
    signing = keys.load_signing_key(Path(key)) if key else keys.load_or_create_signing_key()
    prepared = _with_tokens(model, _preprocessing(input_shape, preprocessing), tokens, tell)
    chosen_loss = TASKS[task].chosen_loss(loss)
    example = example_of(prepared, 2)
    with classes_last(model, example, task, classes, tell):
        expected = checks.expected_output(task, classes if task == "segmentation" else None)
        output = checks.check_model(
            model, example, expected, allow_probabilities=allow_probabilities
        )
        names = _names(task, classes, targets, int(output.shape[-1]))
        spec = BundleSpec(
            name=place.stem,
            strategy=given[0],
            settings=settings or {},
            objectives=tuple(objectives),
            task=task,
            classes=names if kind_of(task) == "classes" else (),
            targets=names if kind_of(task) == "targets" else (),
            preprocessing=prepared,
            formats=None if formats is None else tuple(formats),
            provenance=provenance or {},
            allow_probabilities=allow_probabilities,
            sequence=sequence,
            replaces_up_to=replaces_up_to,
        )
        wishes = Wishes(
            strategies=given,
            head=head,
            head_kind=head_kind,
            align=align or {},
            train=[train] if isinstance(train, str) else train,
        )
        chosen = choose_methods(model, spec, wishes, loss=chosen_loss)
        for note in chosen.notes:
            tell(note)
        for name, reason in chosen.left_out.items():
            why = reason.removeprefix(f"strategy '{name}': ")
            tell(f"left out, strategy {name}: {why}")
        return export_bundle(model, chosen.spec, out=place, key=signing)


def _preprocessing(
    input_shape: Sequence[int] | None, preprocessing: Preprocessing | Mapping[str, Any] | None
) -> Preprocessing:
    if (input_shape is None) == (preprocessing is None):
        raise InputError(
            "export_model: expected either input_shape, the shape of one example as in (128, 6), "
            f"or preprocessing, got {'neither' if input_shape is None else 'both'}"
        )
    if preprocessing is not None:
        return to_preprocessing(preprocessing)
    try:
        found = Preprocessing(input_shape=tuple(int(size) for size in input_shape or ()))
        check_preprocessing(found)
    except (TypeError, ValueError, RefusedError) as error:
        raise InputError(
            f"input_shape: expected sizes like (128, 6), got {input_shape!r}"
        ) from error
    return found


def _with_tokens(
    model: nn.Module, prepared: Preprocessing, given: int | None, tell: Tell
) -> Preprocessing:
    """With the number of tokens that was given, that is said, or that the model needs."""
    tokens = given or prepared.tokens
    if tokens is None:
        checks.check_tensors(model)
        tokens = find_tokens(model, prepared.input_shape)
        if tokens is not None:
            tell(f"the model takes int64 examples: {tokens} tokens, from 0")
    elif (rows := table_rows(model, prepared.input_shape)) is not None and tokens > rows:
        raise InputError(f"tokens: expected at most {rows}, the rows of its table, got {tokens}")
    return msgspec.structs.replace(prepared, tokens=tokens)


def _names(
    task: TaskName, classes: Sequence[str] | None, targets: Sequence[str] | None, count: int
) -> tuple[str, ...]:
    """Names of the outputs: those of the task's kind, else numbers."""
    kinds = {"classes": classes, "targets": targets}
    kind = kind_of(task)
    other = "targets" if kind == "classes" else "classes"
    if kinds[other] is not None:
        raise InputError(
            f"{other}: task {task} has {kind}, name them as {kind}, got {list(kinds[other] or ())}"
        )
    return tuple(kinds[kind] or map(str, range(count)))
