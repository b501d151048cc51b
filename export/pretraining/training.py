"""Central training: supervised or masked-autoencoder, resumable to the same bits.

A run's folder holds ``model.safetensors``, the model of the best validation loss, and
``training.safetensors``, everything needed to go on after the last finished epoch. An interrupted
epoch is repeated from its start with the same random numbers.

A model with ALP layers is trained as a federation of one client whose rounds are the epochs: the
prototypes' share beta is 0 in the first epoch, and after every epoch the server's step, k-means of
one client's G prototypes into G clusters, makes the global prototypes equal to the local ones.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.checks import smallest_batch
from protofleet.export.classifier import ClassifierView, Parts
from protofleet.export.models.alp import Alignment
from protofleet.export.objectives import OBJECTIVES, Inputs, Objective
from protofleet.export.pretraining.checkpoints import fill, load_checkpoint, save_checkpoint
from protofleet.export.pretraining.masked import MaskedAutoencoder
from protofleet.strategies.training import REWRITTEN, spans

_log = logging.getLogger(__name__)

MODEL_FILE = "model.safetensors"
STATE_FILE = "training.safetensors"

_SCORED = 1000
_RECENT = 3
"""Of so many last epochs one was the best: the training was cut short."""

_RNG = "rng"
_MODULE = "module."
_OPTIMISER = "optimiser."


class _NotFiniteError(InputError):
    """The loss is NaN or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How to train.

    Attributes:
        epochs: most passes over the training part.
        patience: passes without a better validation loss after which it ends; None, or without
            validation: it makes all of them.
        lr: learning rate of Adam.
        batch_size: examples per step; the last, shorter batch is kept, but one that is too small
            for the model (``checks.smallest_batch``) is joined to the batch before it.
        seed: of the split, the order, masks and dropout.
        validation: share of the examples held out, at random; 0 for none.

    Raises:
        InputError: a value out of range.
    """

    epochs: int = 100
    patience: int | None = 10
    lr: float = 0.002
    batch_size: int = 64
    seed: int = 1
    validation: float = 0.1

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.lr > 0:
            raise InputError(
                "training: expected epochs >= 1, batch_size >= 1 and lr > 0, got "
                f"{self.epochs}, {self.batch_size} and {self.lr}"
            )
        if self.patience is not None and self.patience < 1:
            raise InputError(f"training: expected patience >= 1 or none, got {self.patience}")
        if not 0 <= self.validation < 1:
            raise InputError(f"training: expected validation in [0, 1), got {self.validation}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTask:
    """What is trained.

    Attributes:
        objective: its name, kept in the checkpoint.
        model: the model to export; part of ``module``, or the same.
        module: everything with trained tensors.
        loss: mean loss () of a batch.
        correct: number of rightly classified examples () of a batch; None where it has no sense.
    """

    objective: str
    model: nn.Module
    module: nn.Module
    loss: Callable[[Inputs], Tensor]
    correct: Callable[[Inputs], Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainProgress:
    """Told after every step, and once more when an epoch has been validated.

    Attributes:
        epoch, epochs: from 1; most that there will be.
        step, steps: from 1, of this epoch.
        loss: mean training loss of the epoch so far.
        validation_loss: None until the epoch is validated; the training loss without validation.
        accuracy: share of right classes in the validation part; None where it has no sense.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    validation_loss: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """Outcome of a run.

    Attributes:
        checkpoint: path of the best model.
        best_epoch: epoch it comes from.
        best_loss: its validation loss.
        accuracy: its share of right classes in the validation part; None where it has no sense.
        epochs: how many were made.
        improving: whether the last ones still made it better, so that more of them would help.
    """

    checkpoint: Path
    best_epoch: int = 0
    best_loss: float = math.inf
    accuracy: float | None = None
    epochs: int = 0
    improving: bool = False


@dataclass(slots=True)
class _Run:
    """A run's moving parts."""

    task: TrainTask
    options: TrainOptions
    folder: Path
    provenance: Mapping[str, str]
    optimiser: torch.optim.Adam
    result: TrainResult
    beta: dict[str, Tensor] = field(default_factory=dict)
    min_batch: int = 1
    epoch: int = 0


def supervised(model: nn.Module, objective: Objective = OBJECTIVES["cross_entropy"]) -> TrainTask:
    """Train a model on batches with ``x`` and ``y``, a classifier unless the objective is other."""

    def correct(batch: Inputs) -> Tensor:
        logits: Tensor = model(batch["x"])
        right = logits.argmax(-1) == batch["y"]
        # Of a segmentation's example the share of its steps.
        return right.double().reshape(len(right), -1).mean(1).sum()

    has_classes = objective.inputs["y"].dtype == "int64"
    return TrainTask(
        objective=objective.name,
        model=model,
        module=model,
        loss=lambda batch: objective.loss(ClassifierView(model, Parts(head="")), batch),
        correct=correct if has_classes else None,
    )


def masked(model: nn.Module, example: Tensor) -> TrainTask:
    """Pretrain an encoder on batches with ``x``; ``example`` is one input, (1, …) float32."""
    autoencoder = MaskedAutoencoder(model, example)
    return TrainTask(
        objective="mae",
        model=model,
        module=autoencoder,
        loss=lambda batch: cast("Tensor", autoencoder(batch["x"])),
    )


def train(  # noqa: PLR0913 - a run has these six things
    task: TrainTask,
    data: Inputs,
    options: TrainOptions,
    *,
    folder: Path,
    provenance: Mapping[str, str] | None = None,
    resume: bool = False,
    on_progress: Callable[[TrainProgress], None] = lambda _: None,
) -> TrainResult:
    """Train and keep the best model in ``folder``; PyTorch's generator is left as it was.

    Args:
        task: from ``supervised`` or ``masked``.
        data: the examples by key.
        options: how to train.
        folder: where the checkpoints go; made if absent.
        provenance: metadata for the checkpoint: ``model``, ``settings``, ``classes`` and more.
        resume: go on after the last finished epoch of this folder, if there is one.
        on_progress: told after every step.

    Raises:
        InputError: arrays of unequal length, none or fewer examples than the model trains on, the
            folder's run had other options, or the loss is no longer finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    training, held_out = _split(data, options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        run = _new_run(task, data, options, folder, len(training["x"]))
        run.provenance = provenance or {}
        if resume and (folder / STATE_FILE).exists():
            _restore(run)
        patience = options.patience if len(held_out["x"]) else None
        while run.epoch < options.epochs and not _is_over(run, patience):
            run.epoch += 1
            _run_epoch(run, training, held_out, on_progress)
    recent = len(held_out["x"]) > 0 and run.result.best_epoch > run.epoch - _RECENT
    improving = recent and not _is_over(run, patience)
    return replace(run.result, epochs=run.epoch, improving=improving)


def loss_after(task: TrainTask, data: Inputs, options: TrainOptions, *, steps: int) -> float:
    """Loss on the held-out examples, or without those on as many others, after so many steps.

    The module is trained as in a first epoch; nothing is saved. NaN: the loss was no longer finite.

    Raises:
        InputError: as of ``train``, but for the loss.
    """
    training, held_out = _split(data, options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        run = _new_run(task, data, options, Path(), len(training["x"]))
        _set_beta(run, scale=0.0)
        task.module.train()
        try:
            for batch in islice(_endless(run, training), steps):
                _step(run, batch)
        except _NotFiniteError:
            return math.nan
        _set_beta(run, scale=1.0)
        if not len(held_out["x"]):
            held_out = {name: values[:_SCORED] for name, values in training.items()}
        return _validate(run, held_out)[0]


def _endless(run: _Run, training: Inputs) -> Iterator[Inputs]:
    count = len(training["x"])
    parts = list(spans(count, run.options.batch_size, run.min_batch))
    while True:
        yield from _batches(training, torch.randperm(count), parts)


def _new_run(
    task: TrainTask, data: Inputs, options: TrainOptions, folder: Path, count: int
) -> _Run:
    return _Run(
        task=task,
        options=options,
        folder=folder,
        provenance={},
        optimiser=torch.optim.Adam(task.module.parameters(), lr=options.lr),
        result=TrainResult(checkpoint=folder / MODEL_FILE),
        beta={n: b.clone() for n, b in task.module.named_buffers() if _is_beta(n)},
        min_batch=_min_batch(task.module, data["x"][:2], count, options),
    )


def _is_over(run: _Run, patience: int | None) -> bool:
    return patience is not None and run.epoch - run.result.best_epoch >= patience


def _min_batch(module: nn.Module, x: Tensor, count: int, options: TrainOptions) -> int:
    least = smallest_batch(module, x)
    if min(count, options.batch_size) < least:
        raise InputError(
            f"training: expected at least {least} examples and a --batch-size of {least}, because "
            f"the model normalises over the batch, got {count} and {options.batch_size}"
        )
    if 0 < (rest := count % options.batch_size) < least:
        _log.warning(
            "a last batch of %d example is joined to the batch before it: the model normalises "
            "over the batch, and one example has no variance",
            rest,
        )
    return least


def _is_beta(name: str) -> bool:
    return name.rpartition(".")[2] == "beta"


def _split(data: Inputs, options: TrainOptions) -> tuple[Inputs, Inputs]:
    lengths = {name: len(values) for name, values in data.items()}
    count = lengths.get("x", 0)
    if count < 1 or set(lengths.values()) != {count}:
        raise InputError(f"training data: expected arrays of one length > 0, got {lengths}")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(options.seed))
    cut = min(count - 1, math.ceil(options.validation * count))
    held_out, training = order[:cut], order[cut:]
    return (
        {name: values[training] for name, values in data.items()},
        {name: values[held_out] for name, values in data.items()},
    )


def _batches(data: Inputs, order: Tensor, parts: Iterable[slice]) -> Iterator[Inputs]:
    for part in parts:
        rows = order[part]
        yield {name: values[rows] for name, values in data.items()}


def _run_epoch(
    run: _Run, training: Inputs, held_out: Inputs, on_progress: Callable[[TrainProgress], None]
) -> None:
    count, size = len(training["x"]), run.options.batch_size
    order = torch.randperm(count)
    parts = list(spans(count, size, run.min_batch))
    steps, total = len(parts), 0.0
    _set_beta(run, scale=0.0 if run.epoch == 1 else 1.0)
    run.task.module.train()
    progress = TrainProgress(
        epoch=run.epoch, epochs=run.options.epochs, step=0, steps=steps, loss=math.nan
    )
    seen = 0
    for step, batch in enumerate(_batches(training, order, parts), start=1):
        total += _step(run, batch) * len(batch["x"])
        seen += len(batch["x"])
        progress = TrainProgress(
            epoch=run.epoch, epochs=run.options.epochs, step=step, steps=steps, loss=total / seen
        )
        on_progress(progress)
    loss, accuracy = _validate(run, held_out) if len(held_out["x"]) else (progress.loss, None)
    _close_epoch(run, loss, accuracy)
    on_progress(_validated(progress, loss, accuracy))


def _validated(progress: TrainProgress, loss: float, accuracy: float | None) -> TrainProgress:
    return TrainProgress(**{**asdict(progress), "validation_loss": loss, "accuracy": accuracy})


def _step(run: _Run, batch: Inputs) -> float:
    run.optimiser.zero_grad(set_to_none=True)
    loss = run.task.loss(batch)
    value = loss.item()
    if not math.isfinite(value):
        raise _NotFiniteError(
            f"training: loss is {value} in epoch {run.epoch}; lower --lr or look for values that "
            "are not finite in x"
        )
    torch.autograd.backward(loss)
    _rewrite(run.task.module)
    run.optimiser.step()
    return value


def _rewrite(module: nn.Module) -> None:
    """Set the parameters that the forward pass has set (``REWRITTEN``)."""
    with torch.no_grad():
        for name, value in module.named_buffers():
            if name.endswith(REWRITTEN):
                module.get_parameter(name.removesuffix(REWRITTEN)).copy_(value)


def _validate(run: _Run, data: Inputs) -> tuple[float, float | None]:
    """Mean loss and accuracy in evaluation mode, with the same masks after every epoch."""
    task, total, right = run.task, 0.0, 0.0
    count = len(data["x"])
    task.module.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.options.seed)
        parts = spans(count, run.options.batch_size, 1)
        for batch in _batches(data, torch.arange(count), parts):
            total += task.loss(batch).item() * len(batch["x"])
            right += task.correct(batch).item() if task.correct else 0
    return total / count, right / count if task.correct else None


def _set_beta(run: _Run, *, scale: float) -> None:
    with torch.no_grad():
        for name, value in run.beta.items():
            run.task.module.get_buffer(name).copy_(value * scale)


def _close_epoch(run: _Run, loss: float, accuracy: float | None) -> None:
    """Share the prototypes, keep the model if it is the best, and save what resuming needs."""
    _set_beta(run, scale=1.0)
    with torch.no_grad():
        for layer in run.task.module.modules():
            if isinstance(layer, Alignment):
                layer.global_prototypes.copy_(layer.local_prototypes)
    if loss < run.result.best_loss:
        run.result = TrainResult(
            checkpoint=run.result.checkpoint,
            best_epoch=run.epoch,
            best_loss=loss,
            accuracy=accuracy,
        )
        facts = {"objective": run.task.objective, "epoch": str(run.epoch), "loss": repr(loss)}
        save_checkpoint(
            run.result.checkpoint, run.task.model.state_dict(), {**run.provenance, **facts}
        )
    _save(run)


def _identity(run: _Run) -> dict[str, str]:
    """What a resumed run must share with the interrupted one; it may go on for longer."""
    options = {
        name: repr(value)
        for name, value in asdict(run.options).items()
        if name not in {"epochs", "patience"}
    }
    return {**run.provenance, **options, "objective": run.task.objective}


def _save(run: _Run) -> None:
    tensors = {_MODULE + name: value for name, value in run.task.module.state_dict().items()}
    for index, slots in run.optimiser.state_dict()["state"].items():
        tensors |= {f"{_OPTIMISER}{index}.{slot}": value for slot, value in slots.items()}
    tensors[_RNG] = torch.get_rng_state()
    best = {"epoch": run.result.best_epoch, "loss": run.result.best_loss}
    metadata = {
        "identity": json.dumps(_identity(run)),
        "epoch": str(run.epoch),
        "best": json.dumps({**best, "accuracy": run.result.accuracy}),
    }
    save_checkpoint(run.folder / STATE_FILE, tensors, metadata)


def rate_before(folder: Path) -> float | None:
    """The learning rate of the run that a folder holds; None: it holds none."""
    if not (folder / STATE_FILE).exists():
        return None
    _, metadata = load_checkpoint(folder / STATE_FILE)
    return float(json.loads(metadata["identity"])["lr"])


def _restore(run: _Run) -> None:
    tensors, metadata = load_checkpoint(run.folder / STATE_FILE)
    before, now = json.loads(metadata.get("identity", "{}")), _identity(run)
    changed = sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
    if changed:
        key = changed[0]
        raise InputError(
            f"resume '{run.folder}': expected {key} {before.get(key)} as before, got "
            f"{now.get(key)}; use another folder for a new run"
        )
    fill(run.task.module, _under(tensors, _MODULE))
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in _under(tensors, _OPTIMISER).items():
        index, _, slot = name.partition(".")
        slots.setdefault(int(index), {})[slot] = value
    run.optimiser.load_state_dict({**run.optimiser.state_dict(), "state": slots})
    torch.set_rng_state(tensors[_RNG])
    best = json.loads(metadata["best"])
    run.epoch = int(metadata["epoch"])
    run.result = TrainResult(
        checkpoint=run.result.checkpoint,
        best_epoch=best["epoch"],
        best_loss=best["loss"],
        accuracy=best["accuracy"],
    )


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
