"""A device's personal model in use: predictions beside, between and after rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData
from protofleet.datasets.arrays import check_numbers, check_tokens, doubt_of_scale
from protofleet.edge.data.examples import Examples
from protofleet.edge.learning.meter import Meter, measure_windows
from protofleet.edge.learning.training import EVALUATION_BATCH, Learner, LocalData, check_data
from protofleet.edge.owner.policy import POLICY_FILE, Use, read_policy
from protofleet.edge.predictions import Predictions, PredictionScores, score_predictions
from protofleet.edge.state.journal import JOURNAL, Journal, PersonalState, bundle_path, read_journal
from protofleet.edge.state.store import load_state, read_in_use
from protofleet.edge.state.stores import only_store
from protofleet.errors import InputError, ProvisionError
from protofleet.federation.outcomes.gate import GateEvidence
from protofleet.federation.records import Percentiles, percentiles
from protofleet.runtime import (
    BackendName,
    Classifier,
    open_classifier,
    open_programs,
    plain_model,
)
from protofleet.strategies import build
from protofleet.strategies.common import network_tensors
from protofleet.strategies.training import Training
from protofleet.strategies.types import ClientState, Payload, Score
from protofleet.tensors import Network

Served = Literal["personal", "head", "bundle"]
_WHICH: Mapping[Use, Callable[[Journal], PersonalState | None]] = {
    "auto": lambda journal: journal.best,
    "personal": lambda journal: journal.in_use,
    "head": lambda journal: journal.head,
    "bundle": lambda journal: journal.best,
}
"""Of which state of the journal a model is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model and what it belongs to.

    Attributes:
        bundle: whose programs run it.
        network: its values.
        score: classifies its features; None: its own head.
        round_id: the last round that counted; 0 for a bundle's own values.
        strategy: of the store; empty without one.
        federation: of the store; empty without one.
        served: whether it is a federation's personal model, one of which the head alone was
            trained, or has the bundle's own values.
        reason: why, for people; empty: it was asked for.
    """

    bundle: Bundle
    network: Network
    score: Score | None = None
    round_id: int = 0
    strategy: str = ""
    federation: str = ""
    served: Served = "bundle"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSource:
    """Where a personal model comes from.

    Attributes:
        folder: the store's.
        given: the bundle, where the caller has named it.
        personal: what the store's journal said.
        use: which model was asked for.
        wanted: what the owner's policy makes of that.
    """

    folder: Path
    given: Bundle | None
    personal: PersonalState
    use: Use
    wanted: Use


class PersonalModel:
    """A personal model that predicts; made by ``open_personal``.

    It may be used beside a device that trains, in the same process or in another, and by one thread
    at a time. It stays the model of the round at which it was opened until ``refresh`` is called.

    Attributes:
        model: what is in use.
        backend: who runs it.
    """

    def __init__(
        self,
        model: OpenedModel,
        *,
        source: StoreSource | None = None,
        backend: BackendName = "auto",
        threads: int = 1,
    ) -> None:
        self._source = source
        self._backend: BackendName = backend
        self._threads = threads
        self.model = model
        self._classifier = self._opened()
        self.backend = self._classifier.backend

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs, in their order: classes, labels or targets."""
        return self.model.bundle.manifest.outputs

    @property
    def preprocessing(self) -> Preprocessing:
        """What turns readings into the model's input."""
        return self.model.bundle.manifest.preprocessing

    @property
    def round_id(self) -> int:
        """The round whose model this is; 0 for a bundle's own values."""
        return self.model.round_id

    def predict(
        self, x: ArrayLike, *, raw: bool = False, batch_size: int = EVALUATION_BATCH
    ) -> Predictions:
        """Classes, labels or values of examples, by the rule of the federation's strategy.

        Args:
            x: ``(n, *input_shape)`` real numbers, or one example of ``input_shape``; preprocessed
                as the data that the device trains on.
            raw: the numbers are readings as they come; they are normalised here with the bundle's
                mean and std.
            batch_size: examples that are computed together. It matters to models with ALP layers,
                which couple the examples of a batch; the federation's scores belong to 32.

        Raises:
            InputError: no real numbers, another shape, numbers that are not finite, or
                ``batch_size`` below 1.
            ProvisionError: the program failed.
        """
        examples = checked_examples(x, self.preprocessing, raw=raw)
        outputs = self._classifier.predict(examples, batch_size=batch_size)
        task = self.model.bundle.manifest.task
        return Predictions(task=task, names=self.names, outputs=outputs)

    def score(self, data: DeviceData) -> PredictionScores:
        """How right the model is on the test part of examples.

        Args:
            data: preprocessed; its ``x_test`` and ``y_test`` count.

        Returns:
            The scores of the bundle's task by name (``macro_f1``, ``accuracy``, ``rmse``, …).

        Raises:
            InputError: the examples do not fit the bundle.
            ProvisionError: the program failed.
        """
        check_data(LocalData(own=data), self.model.bundle.manifest)
        return score_predictions(self.predict(data.x_test), data.y_test)

    def train(self, data: DeviceData, *, seed: int = 0, **settings: Any) -> PersonalModel:
        """Train a copy of this model on local examples, with nobody else; nothing is stored.

        Args:
            data: preprocessed; its ``x_train`` and ``y_train`` count.
            seed: of the order of examples, dropout and the like; the same gives the same bits.
            settings: of local training: ``epochs``, ``batch_size``, ``optimiser`` and the others in
                ``docs/strategies.md``; the bundle's own where nothing is said.

        Returns:
            The trained model; this one is left as it is.

        Raises:
            InputError: the examples do not fit the bundle, an unknown setting, or a model that
                predicts by a rule of its strategy, whose head is not what classifies.
            ProvisionError: the program failed.
        """
        if self.model.score is not None:
            raise InputError(
                f"model: strategy '{self.model.strategy}' classifies by a rule of its own, which "
                "local training does not move; train it in a federation of that strategy"
            )
        bundle = self.model.bundle
        programs = open_programs(bundle, threads=self._threads, backend=self._backend)
        learner = Learner(bundle, programs, LocalData(own=data), Meter(), "local")
        strategy = learner.strategy("local", {**_training_of(bundle), **settings})
        start = ClientState(round_id=0, tensors=network_tensors(self.model.network))
        payload = Payload(round_id=1, tensors={})
        state, _ = learner.train(strategy, start, payload, seed=seed)
        trained = replace(
            self.model,
            network=strategy.client_model(state),
            strategy="local",
            served="personal",
            reason="",
        )
        return PersonalModel(trained, backend=self._backend, threads=self._threads)

    def plain(self, format_: str, *, raw: bool = False) -> bytes:
        """The model as a file for a stock runtime, with what its numbers mean in its metadata.

        Args:
            format_: ``onnx`` or ``tflite``, whichever runs the model here.
            raw: the file takes readings as they come and normalises them itself.

        Raises:
            InputError: another format, a rule that is no part of a program, or a package that
                writes the format is not installed.
            ProvisionError: the bundle has no program in this format.
        """
        model = self.model
        return plain_model(
            model.bundle,
            format_,
            model=model.network,
            score=model.score,
            raw=raw,
            provenance={
                "digest": model.bundle.digest,
                "federation": model.federation,
                "strategy": model.strategy,
                "round_id": model.round_id,
                "served": model.served,
            },
        )

    def latency(self, x: ArrayLike, *, raw: bool = False) -> Percentiles:
        """Milliseconds for one window, from 30 calls after 3 for warming up.

        Args:
            x: as in ``predict``; its examples take turns.
            raw: as in ``predict``.
        """
        meter = Meter()
        windows = checked_examples(x, self.preprocessing, raw=raw)
        measure_windows(meter, self._classifier.predict, windows)
        return percentiles(meter.take().infer_ms, 50, 95, 99)

    def refresh(self) -> bool:
        """Go on with the model of the newest round that has counted, or that is pinned since.

        Returns:
            Whether there was another one.

        Raises:
            ProtofleetError: as ``open_personal``.
        """
        source = self._source
        if source is None:
            return False
        wanted = _wanted(source.folder, source.use)
        newest = _WHICH[wanted](read_journal(source.folder))
        if (wanted, newest) == (source.wanted, source.personal):
            return False
        self._source, self.model = _in_use(source.folder, source.given, source.use)
        self._classifier = self._opened()
        return True

    def _opened(self) -> Classifier:
        model = self.model
        return open_classifier(
            model.bundle,
            model=model.network,
            score=model.score,
            backend=self._backend,
            threads=self._threads,
        )


def open_personal(  # noqa: PLR0913 - which model and who runs it, each by its name
    store: Path | str | None = None,
    *,
    bundle: Path | str | None = None,
    trusted: Collection[bytes] = (),
    use: Use = "auto",
    backend: BackendName = "auto",
    threads: int = 1,
) -> PersonalModel:
    """Open the model that a device's store has in use, or a bundle's own values, to predict.

    A store is only read, so the device may be running. The model is that of the last round that has
    counted, where the owner's test examples say that it helps, and else the bundle's own
    (``federation.outcomes.gate``); ``model.served`` and ``model.reason`` of what is returned say
    which.

    Args:
        store: a device's folder; None: the only one in this user's data (``protofleet device
            stores``), or none at all if ``bundle`` is given.
        bundle: folder or file. Without a store: whose own values to take. With one: the store's
            bundle, needed only where it keeps no copy.
        trusted: raw public keys whose signature on ``bundle`` counts; empty: those of the user's
            trust store. What a store keeps was checked when its device joined.
        use: ``personal``, ``head`` (trained alone, by ``device personalise`` or before the first
            round) or ``bundle``, whatever helps; ``auto``: what the owner's policy has pinned
            (``use`` of ``policy.toml`` in the store), and else what helps.
        backend: who runs the programs.
        threads: of the runtime.

    Returns:
        The model.

    Raises:
        InputError: no store, several, one without a finished round, no such backend, ``use`` is
            none of the four, or the policy cannot be read.
        ProvisionError: the store is damaged or belongs to another bundle, or the backend cannot run
            the bundle.
        RefusedError: the bundle is not what was signed, or its signer is not trusted.
    """
    if use not in get_args(Use):
        raise InputError(f"use: expected one of {', '.join(get_args(Use))}, got '{use}'")
    given = None if bundle is None else Bundle.open(bundle, trusted=trusted)
    if given is not None and store is None:
        model = OpenedModel(bundle=given, network=given.model().network)
        return PersonalModel(model, backend=backend, threads=threads)
    folder = only_store() if store is None else Path(store)
    source, model = _in_use(folder, given, use)
    return PersonalModel(model, source=source, backend=backend, threads=threads)


def open_bundle(
    path: Path | str,
    *,
    trusted: Collection[bytes] = (),
    backend: BackendName = "auto",
    threads: int = 1,
) -> PersonalModel:
    """Open the model in a bundle, with the bundle's own values, to predict, score and train.

    Args:
        path: folder or file.
        trusted: raw public keys whose signature counts; empty: those of the user's trust store, and
            this user's own.
        backend: who runs the programs: ``onnx``, ``litert``, or ``auto`` for what is installed.
        threads: of the runtime.

    Returns:
        The model.

    Raises:
        InputError: there is nothing at ``path``, or no such backend.
        ProvisionError: the backend cannot run the bundle.
        RefusedError: the bundle is not what was signed, or its signer is not trusted.
    """
    return open_personal(bundle=path, trusted=trusted, backend=backend, threads=threads)


def _training_of(bundle: Bundle) -> dict[str, Any]:
    """The bundle's own settings of local training."""
    declared = bundle.manifest.strategy.settings
    return {key: declared[key] for key in Training.__struct_fields__ if key in declared}


def _in_use(folder: Path, given: Bundle | None, use: Use) -> tuple[StoreSource, OpenedModel]:
    """The model that a store's journal names, or the bundle's own where that serves better."""
    wanted = _wanted(folder, use)

    def read(personal: PersonalState) -> tuple[StoreSource, OpenedModel]:
        state = load_state(folder, personal.state)  # at once: a newer round may take its place
        bundle = given or _kept(folder, personal.binding.bundle)
        if bundle.digest != personal.binding.bundle:
            raise ProvisionError(
                f"device store '{folder}': its model is of bundle "
                f"{personal.binding.bundle[:16]}, got bundle {bundle.digest[:16]}; "
                "leave --bundle out, or give the one that the device joined with"
            )
        strategy = build(personal.strategy, personal.settings, bundle.model())
        served, reason = _served(personal.state.evidence, wanted, pinned=wanted != use)
        own = served != "bundle"
        source = StoreSource(folder=folder, given=given, personal=personal, use=use, wanted=wanted)
        return source, OpenedModel(
            bundle=bundle,
            network=strategy.client_model(state) if own else bundle.model().network,
            score=strategy.client_score(state) if own else None,
            round_id=state.round_id,
            strategy=personal.strategy,
            federation=personal.binding.federation,
            served=served,
            reason=reason,
        )

    if wanted == "head" and (folder / JOURNAL).exists() and read_journal(folder).head is None:
        raise InputError(
            f"device store '{folder}': no head was trained alone; train one: protofleet device "
            "personalise"
        )
    return read_in_use(folder, read, _WHICH[wanted])


def _wanted(folder: Path, use: Use) -> Use:
    """What is asked for; where that is nothing in particular, what the owner has pinned."""
    return read_policy(folder / POLICY_FILE, {}).use if use == "auto" else use


def _served(evidence: GateEvidence | None, wanted: Use, *, pinned: bool) -> tuple[Served, str]:
    """Which model is in use, and why; a store of an earlier version has no evidence."""
    if wanted != "auto":
        return wanted, f'pinned: use = "{wanted}" in {POLICY_FILE}' if pinned else ""
    if evidence is None:
        return "personal", ""
    return evidence.served, evidence.text


def _kept(folder: Path, digest: str) -> Bundle:
    path = bundle_path(folder, digest)
    if not path.exists():
        raise InputError(
            f"device store '{folder}': keeps no copy of bundle {digest[:16]}; give --bundle"
        )
    # Checked when the device joined; the caller compares its digest with the journal's.
    return Bundle.open(path, any_signer=True)


def doubt_of(block: Examples, preprocessing: Preprocessing) -> str:
    """Why examples that are said to be normalised do not look so; '' if they do."""
    if block.normalised or preprocessing.tokens is not None:
        return ""
    examples = checked_examples(block.x, preprocessing)
    found = doubt_of_scale(examples, "examples", preprocessing.mean, preprocessing.std)
    return f"{found}; readings as they come: --raw" if found else ""


def checked_examples(
    x: ArrayLike, preprocessing: Preprocessing, *, raw: bool = False
) -> NDArray[np.float32]:
    """Examples as the model takes them, ``(n, *input_shape) float32``.

    Args:
        x: examples, or one alone.
        preprocessing: the bundle's.
        raw: normalise with its mean and std.

    Raises:
        InputError: no real numbers, another shape, or numbers that are not finite.
    """
    shape = preprocessing.input_shape
    try:
        values = np.asarray(x)
    except ValueError as error:
        raise InputError(f"examples: expected numbers ({error})") from error
    check_numbers(values, "examples")
    if values.shape == shape:
        values = values[np.newaxis]
    if values.shape[1:] != shape or not values.ndim:
        text = ", ".join(map(str, shape))
        raise InputError(
            f"examples: expected (n, {text}) as the bundle's input, got {values.shape}"
        )
    if raw and preprocessing.tokens is None:
        values = (values - np.asarray(preprocessing.mean)) / np.asarray(preprocessing.std)
    with np.errstate(over="ignore"):
        examples = np.ascontiguousarray(values, np.float32)
    broken = ~np.isfinite(examples).all(axis=tuple(range(1, examples.ndim)))
    if broken.any():
        raise InputError(
            f"examples: expected finite numbers, got NaN or infinite ones in {broken.sum()} of "
            f"{len(values)}, first in example {int(broken.argmax())}"
        )
    check_tokens("examples", examples, preprocessing.tokens)
    return examples
