"""``result.json``: what came out of a run and what it cost, as typed records."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from protofleet.durable import replace_whole
from protofleet.errors import InputError, MissingDataError


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and population standard deviation over devices."""

    mean: float
    std: float


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """One way of scoring the models; all in [0, 1]."""

    macro_f1: Spread
    accuracy: Spread


class Scores(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was scored; None where nothing was measured or the strategy has no such model.

    Attributes:
        personalisation: each device's model on its own test part.
        generalisation: each device's model on all devices' test parts together.
        global_: the server's model on all devices' test parts together (``global`` in JSON).
        own_loss: mean cross-entropy of each device's model on its own test part.
        more: further scores on the devices' own test parts, by the strategy's name for them.
    """

    personalisation: Metrics | None = None
    generalisation: Metrics | None = None
    global_: Metrics | None = msgspec.field(default=None, name="global")
    own_loss: Spread | None = None
    more: dict[str, Metrics] = {}


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One committed round; ``participants`` counts the accepted updates.

    ``final``: the fit after the last round, from which nothing was aggregated.
    """

    round_id: int
    seconds: float
    participants: int
    bytes_up: int
    bytes_down: int
    scores: Scores
    final: bool = False


class Percentiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Milliseconds; None where nothing was measured."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device's costs over the run."""

    id: str
    bytes_up: int
    bytes_down: int
    train_step_ms: Percentiles
    infer_ms: Percentiles
    peak_rss_bytes: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``result.json``; ``codec``: how tensors travelled, updates / payloads."""

    strategy: str
    seed: int
    rounds: tuple[Round, ...]
    scores: Scores
    devices: tuple[Device, ...]
    codec: str = "raw / raw"

    @property
    def aggregated(self) -> tuple[Round, ...]:
        """The rounds without the final fit."""
        return tuple(item for item in self.rounds if not item.final)


_T = TypeVar("_T")


def load_result(path: Path) -> Result:
    """Read ``result.json``.

    Raises:
        MissingDataError: there is no such file.
        InputError: a field is missing or of a wrong type; the message names it.
    """
    return load_record(path, Result)


def save_result(result: Result, path: Path) -> None:
    """Write ``result.json`` whole or not at all."""
    save_record(result, path)


def load_record(path: Path, kind: type[_T]) -> _T:
    """Read a JSON file as ``kind``.

    Raises:
        MissingDataError: there is no such file.
        InputError: a field is missing or of a wrong type; the message names it.
    """
    if not path.is_file():
        raise MissingDataError(f"'{path}': no such file; expected the folder of a run")
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise InputError(f"'{path}': {error}") from error


def save_record(record: Any, path: Path) -> None:
    """Write a record as indented JSON, whole or not at all."""
    replace_whole(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
