"""What came out of a federation, read from the folder of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from protofleet.bundle import Bundle
from protofleet.coordinator.results import refresh
from protofleet.edge.personal import OpenedModel, PersonalModel, open_personal
from protofleet.errors import InputError, MissingDataError
from protofleet.experiments.progress import has_checkpoint, load_checkpoint
from protofleet.experiments.store import MethodResult
from protofleet.federation.outcomes.calibration import Calibration, with_rate
from protofleet.federation.outcomes.outcome import Outcome, beside_alone
from protofleet.federation.outcomes.trouble import of_calibration, troubles
from protofleet.federation.records import (
    DeviceRecord,
    Metrics,
    RoundRecord,
    RunRecord,
    Scores,
    load_record,
    save_record,
)
from protofleet.federation.schedules.early_stopping import EarlyEnd
from protofleet.federation.suitability import build_for
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.tasks import METRICS
from protofleet.strategies.types import ClientState
from protofleet.tensors import Network, TensorMap, blobs

_RESULT = "result.json"
_RUN = "run.json"
_BUNDLE = "bundle.pfb"
_MOST_BYTES = 2**31


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``run.json``: what a run's models are opened with.

    Attributes:
        strategy, settings: of the run.
        clients: their names.
        device_troubles: what is wrong with their data (``federation.outcomes.trouble``) → whose.
    """

    strategy: str
    settings: dict[str, Any]
    clients: tuple[str, ...]
    device_troubles: dict[str, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What came out of a federation; made by ``Federation.run`` and ``read_results``.

    Attributes:
        folder: of the run.
        strategy, seed: of the run.
        rounds: those that are done, in their order.
        scores: of the best round: the one with the best mean score of the clients' models.
        last: as each section was scored last.
        outcome: what the run has done for the clients' owners (print it): each one's score before
            and now on their own test examples, how many are better off and how many worse; None
            where nobody has told.
        early_end: why there are fewer rounds than were asked for; None: there are not.
        calibration: how the learning rate was chosen; None: the settings have one.
        devices: what each device paid, by its own account; empty where there were no devices.
        device_troubles: what is wrong on devices or with their data → on which.
    """

    folder: Path
    strategy: str
    seed: int
    rounds: tuple[RoundRecord, ...]
    scores: Scores
    last: Scores
    outcome: Outcome | None = None
    early_end: EarlyEnd | None = None
    calibration: Calibration | None = None
    devices: tuple[DeviceRecord, ...] = ()
    device_troubles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        """A line for each section: how it was scored last, over the clients ±."""
        lines = [f"{self.strategy}, {len(self.rounds)} rounds, in {self.folder}"]
        idle = sum(one.trained == 0 for one in self.rounds)
        if idle:
            lines.append(f"in {idle} of them no client had training examples: nothing was learnt")
        lines += [] if self.outcome is None else self.outcome.lines()
        lines += [] if self.calibration is None else [self.calibration.text]
        lines += [] if self.early_end is None else [self.early_end.text]
        lines += [_line(section, metrics) for section, metrics in self.last.sections.items()]
        edge = None if self.calibration is None else of_calibration(self.calibration)
        found = troubles(self.rounds, self.outcome, self.device_troubles)
        lines += [f"warning: {one}" for one in ((edge,) if edge else ()) + found]
        return "\n".join(lines)

    def to_records(self) -> list[dict[str, Any]]:
        """The rounds as flat rows, for ``pandas.DataFrame`` and the like.

        Returns:
            A row for each round: ``round``, ``final``, ``seconds``, ``participants``, ``trained``
            (of them, with examples), ``bytes_up``, ``bytes_down``, ``staleness``, what the strategy
            tells by its own names, and for every score its mean and its standard deviation over the
            clients, such as ``personalisation.macro_f1`` and ``personalisation.macro_f1.std``;
            scores from 0 to 1.
        """
        return [_row(one) for one in self.rounds]

    @property
    def model(self) -> PersonalModel:
        """The server's model after the last round.

        Raises:
            InputError: the strategy keeps none at the server, or the run kept no bundle or model.
        """
        bundle = self._bundle()
        if has_checkpoint(self.folder):
            strategy, _ = self._strategy(bundle)
            network = strategy.server_model(load_checkpoint(self.folder).server)
        else:
            network = _stored_model(self._coordinator(), bundle)
        if network is None:
            raise InputError(
                f"results of '{self.folder}': strategy '{self.strategy}' keeps no model at the "
                "server; see personal(client)"
            )
        return PersonalModel(self._opened(bundle, network))

    def personal(self, client: str) -> PersonalModel:
        """A client's own model after its last round.

        Args:
            client: its name.

        Returns:
            The model.

        Raises:
            InputError: no such client, or its model was not kept where these results lie.
        """
        bundle = self._bundle()
        if has_checkpoint(self.folder):
            strategy, facts = self._strategy(bundle)
            found = load_checkpoint(self.folder).kept.get(client)
            if found is None:
                raise InputError(
                    f"client '{client}': took no part in '{self.folder}'; known are "
                    f"{', '.join(facts.clients)}"
                )
            state = found.memory().state or ClientState(round_id=0, tensors={})
            score = strategy.client_score(state)
            return PersonalModel(self._opened(bundle, strategy.client_model(state), score=score))
        store = self.folder / "devices" / client / "store"
        if not store.is_dir():
            raise InputError(
                f"client '{client}': '{self.folder}' has no store of it; personal models stay on "
                "their devices: open_personal there"
            )
        # The device has trained with the very bundle whose signer was checked when the run began.
        signer = bytes.fromhex(bundle.signer)
        return open_personal(store, bundle=self.folder / _BUNDLE, trusted=[signer], use="personal")

    def _coordinator(self) -> Path:
        inner = self.folder / "coordinator"
        return inner if inner.is_dir() else self.folder

    def _bundle(self) -> Bundle:
        path = self.folder / _BUNDLE
        if not path.exists():
            raise InputError(
                f"results of '{self.folder}': the run kept no bundle; copy the federation's there "
                f"as '{_BUNDLE}'"
            )
        return Bundle.open(path, any_signer=True)

    def _strategy(self, bundle: Bundle) -> tuple[Strategy, RunFacts]:
        facts = load_record(self.folder / _RUN, RunFacts)
        chosen = self.calibration
        settings = facts.settings if chosen is None else with_rate(facts.settings, chosen.lr)
        strategy = build_for(bundle.manifest, bundle.model(), facts.strategy, settings)
        return strategy, facts

    def _opened(self, bundle: Bundle, network: Network, **fields: Any) -> OpenedModel:
        done = self.rounds[-1].round_id if self.rounds else 0
        return OpenedModel(
            bundle=bundle, network=network, round_id=done, strategy=self.strategy, **fields
        )


def read_results(run_dir: Path | str) -> Results:
    """Read what a run has left.

    Args:
        run_dir: folder of a ``Federation``, of an experiment's method and seed, of a demonstration,
            or the ``run_dir`` of a coordinator.

    Returns:
        The results so far, of a coordinator that runs as of its last committed round.

    Raises:
        MissingDataError: there is no ``result.json``.
        InputError: a field of it is missing or of a wrong type.
    """
    folder = Path(run_dir)
    path = folder / _RESULT
    refresh(folder)
    found = load_record(path, dict[str, Any])
    if "experiment" in found:
        method = load_record(path, MethodResult)
        inner = folder / "coordinator" / _RESULT
        devices = load_record(inner, RunRecord).devices if inner.is_file() else ()
        told = load_record(folder / _RUN, RunFacts) if (folder / _RUN).is_file() else None
        return replace(
            _results(folder, method),
            devices=devices,
            device_troubles={} if told is None else told.device_troubles,
        )
    run = load_record(path, RunRecord)
    return replace(_results(folder, run), devices=run.devices, device_troubles=run.device_troubles)


def _results(folder: Path, record: MethodResult | RunRecord) -> Results:
    outcome = record.outcome
    if outcome is not None and (alone_folder(folder) / _RESULT).is_file():
        alone = load_record(alone_folder(folder) / _RESULT, MethodResult).outcome
        outcome = outcome if alone is None else beside_alone(outcome, alone)
    return Results(
        folder=folder,
        strategy=record.strategy,
        seed=record.seed,
        rounds=record.rounds,
        scores=record.scores,
        last=record.last,
        outcome=outcome,
        early_end=record.early_end,
        calibration=record.calibration,
    )


def save_facts(folder: Path, facts: RunFacts) -> None:
    """Keep what the models of a run's folder are opened with."""
    save_record(facts, folder / _RUN)


def alone_folder(folder: Path) -> Path:
    """Where clients of a run have trained by themselves, if they have."""
    return folder / "alone"


def bundle_place(folder: Path) -> Path:
    """Where a run's folder keeps its bundle."""
    return folder / _BUNDLE


def _stored_model(coordinator: Path, bundle: Bundle) -> Network | None:
    """What the coordinator wrote at the end; None: a state that is no model."""
    path = coordinator / "global.safetensors"
    if not path.is_file():
        raise MissingDataError(f"'{path}': no such file; the run has not finished")
    tensors, metadata = blobs.decode(path.read_bytes(), max_bytes=_MOST_BYTES)
    if metadata.get("content") != "model":
        return None
    model = bundle.model()

    def packed(like: TensorMap) -> TensorMap:
        names = like.layout.shapes
        return TensorMap.pack({name: tensors[name] for name in names}, like.layout)

    return Network(params=packed(model.params), buffers=packed(model.buffers))


def _line(section: str, metrics: Metrics) -> str:
    told = []
    for metric, spread in metrics.items():
        shown = METRICS[metric]
        around = f" ± {shown.text(spread.std)}" if spread.n > 1 else ""
        told.append(f"{shown.label} {shown.text(spread.mean)}{around}")
    return f"{section}: {', '.join(told)}"


def _row(done: RoundRecord) -> dict[str, Any]:
    row: dict[str, Any] = {
        "round": done.round_id,
        "final": done.final,
        "seconds": done.seconds,
        "participants": done.participants,
        **({} if done.trained is None else {"trained": done.trained}),
        "bytes_up": done.bytes_up,
        "bytes_down": done.bytes_down,
        "staleness": done.staleness,
        **done.figures,
    }
    for section, metrics in done.scores.sections.items():
        row |= _columns(section, metrics)
    return row


def _columns(section: str, metrics: Metrics) -> Mapping[str, float]:
    columns = {}
    for metric, spread in metrics.items():
        columns[f"{section}.{metric}"] = spread.mean
        columns[f"{section}.{metric}.std"] = spread.std
    return columns
