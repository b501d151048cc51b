"""A run's files with plausible numbers, as the coordinator and the demo leave them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from protofleet.federation.outcomes.outcome import OwnerOutcome, outcome_of
from protofleet.federation.records import (
    DeviceRecord,
    Metrics,
    Percentiles,
    RoundRecord,
    RunRecord,
    Scores,
    Spread,
    load_record,
    save_record,
)
from protofleet.report import (
    ComparedMethod,
    ComparedRecord,
    Confusion,
    Details,
    Latencies,
    Prototypes,
    RoundScore,
    save_details,
    to_prototypes,
)

CLASSES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")


def write_run(
    folder: Path, *, devices: int = 8, rounds: int = 20, prototypes: bool = True, seed: int = 0
) -> Path:
    """Fill ``folder`` with ``result.json`` and ``details.json``."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"device-{index:02d}" for index in range(1, devices + 1)]
    latencies = tuple(_latencies(rng, name) for name in names)
    done = tuple(_round(rng, round_id, devices) for round_id in range(1, rounds + 1))
    result = RunRecord(
        strategy="fedali" if prototypes else "fedavg",
        seed=seed,
        rounds=done,
        scores=max(
            (item.scores for item in done), key=lambda s: s.personalisation["accuracy"].mean
        ),
        devices=tuple(_device(rng, one, rounds) for one in latencies),
        outcome=outcome_of("classification", [_owner(k, name) for k, name in enumerate(names)]),
    )
    save_record(result, folder / "result.json")
    details = Details(
        title="Human activity on many wrists",
        data="UCI-HAR",
        classes=CLASSES,
        bundle="3f" * 32,
        provenance={"torch": "2.13.0", "onnxruntime": "1.31", "machine": "2 cores, Linux"},
        confusions=tuple(Confusion(device_id=name, counts=_counts(rng)) for name in names),
        scores={name: _curve(rng, rounds) for name in names},
        backends=dict.fromkeys(names, "onnx"),
        latencies=latencies,
        prototypes=_prototypes(rng, names[0]) if prototypes else (),
    )
    save_details(details, folder / "details.json")
    return folder


def _owner(k: int, name: str) -> OwnerOutcome:
    """Every fourth loses three points, the others gain four."""
    gain = -0.03 if k % 4 == 3 else 0.04
    return OwnerOutcome(id=name, examples=50, start=0.84, end=0.84 + gain, gain=gain)


def write_comparison(folder: Path) -> ComparedRecord:
    """Put two methods beside the run in ``folder``; the second has no model at the server."""
    result = load_record(folder / "result.json", ComparedRecord)
    scores = tuple(item.scores for item in result.rounds)
    own = ComparedMethod(
        label="FedAli",
        strategy="fedali",
        network="the model with alignment layers",
        trained="devices, over MQTT",
        start=scores[0],
        rounds=scores,
        last=scores[-1],
    )
    alone = tuple(msgspec.structs.replace(one, global_=None) for one in scores)
    other = msgspec.structs.replace(
        own, label="Local <b>", strategy="local", network="another", rounds=alone, last=alone[-1]
    )
    compared = msgspec.structs.replace(result, comparison=(other, own))
    save_record(compared, folder / "result.json")
    return compared


def _round(rng, round_id, devices):
    rise = 1 - np.exp(-round_id / 5)
    noise = rng.normal(0, 0.01, 3)
    return RoundRecord(
        round_id=round_id,
        seconds=4 + rng.random(),
        participants=devices,
        bytes_up=int(devices * 5.8e6 * (1 + 0.02 * rng.random())),
        bytes_down=int(devices * 5.8e6 * (1.02 + 0.02 * rng.random())),
        scores=Scores(
            personalisation=_metrics(0.55 + 0.42 * rise + noise[0], 0.04),
            generalisation=_metrics(0.5 + 0.33 * rise + noise[1], 0.06),
            global_=_metrics(0.52 + 0.38 * rise + noise[2], 0.0),
        ),
    )


def _metrics(mean, std):
    mean = min(float(mean), 1.0)
    return Metrics(
        macro_f1=Spread(mean=mean, std=std), accuracy=Spread(mean=min(mean + 0.01, 1.0), std=std)
    )


def _latencies(rng, name):
    slow = rng.uniform(1, 3)
    return Latencies(
        device_id=name,
        train_step_ms=tuple((180 * slow * rng.lognormal(0, 0.1, 200)).tolist()),
        infer_ms=tuple((2.5 * slow * rng.lognormal(0, 0.25, 300)).tolist()),
    )


def _device(rng, latencies, rounds):
    step, infer = latencies.train_step_ms, latencies.infer_ms
    return DeviceRecord(
        id=latencies.device_id,
        bytes_up=int(rounds * 5.85e6 * rng.uniform(1, 1.05)),
        bytes_down=int(rounds * 6e6 * rng.uniform(1, 1.1)),
        train_step_ms=Percentiles(p50=float(np.median(step)), p95=float(np.percentile(step, 95))),
        infer_ms=Percentiles(**{f"p{q}": float(np.percentile(infer, q)) for q in (50, 95, 99)}),
        peak_rss_bytes=int(rng.uniform(180e6, 240e6)),
    )


def _curve(rng, rounds):
    rise = 1 - np.exp(-np.arange(1, rounds + 1) / 5)
    scores = np.clip(0.5 + 0.4 * rise + rng.normal(0, 0.02, rounds), 0, 1).tolist()
    return tuple(RoundScore(round_id=i + 1, score=one) for i, one in enumerate(scores))


def _counts(rng):
    counts = rng.poisson(1.2, (6, 6)) * (rng.random((6, 6)) < 0.4) + np.diag(
        rng.integers(30, 60, 6)
    )
    return tuple(tuple(row) for row in counts.tolist())


def _prototypes(rng, device) -> tuple[Prototypes, ...]:
    layers = []
    for name in ("blocks.0.alp", "blocks.3.alp"):
        shared = rng.normal(0, 1, (32, 16)) * np.linspace(3, 0.2, 16)
        own = shared + rng.normal(0, 0.3, shared.shape)
        layers.append(
            to_prototypes(
                name, {"global": shared.astype(np.float32), device: own.astype(np.float32)}
            )
        )
    return tuple(layers)
