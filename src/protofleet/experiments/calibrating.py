"""A run's calibration by the engines that train clients on this machine, or on Ray's."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protofleet.experiments._worker import WorkerSpec, WorkerTask
from protofleet.experiments.run import Job
from protofleet.experiments.workers import OpenWorkers
from protofleet.federation.calibration import (
    RATIOS,
    Calibration,
    check_ratios,
    choose,
    forms_of,
    ladder_of,
)
from protofleet.federation.client import RoundConfig
from protofleet.federation.coding import decode_update, largest_blob
from protofleet.federation.plan import Plan
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding

MOST_CLIENTS = 8
"""That calibrate, drawn by the seed: of more the mean hardly changes."""


def calibrate(
    job: Job, plan: Plan, spec: WorkerSpec, opened: OpenWorkers, folder: Path
) -> Calibration:
    """Let clients try the plan's rates, and choose one.

    Args:
        job: what is to run.
        plan: of it, with ``rates``.
        spec: what its clients have in common.
        opened: opens workers.
        folder: that they may use.

    Raises:
        InputError: no client has enough examples.
    """
    state = plan.server_init()
    order = RoundConfig(round_id=1, seed=plan.config.seed, rates=plan.rates)
    tasks = [
        WorkerTask(
            client_id=client_id,
            order=order,
            payload=blobs.encode(plan.strategy.downlink(state, client_id).tensors),
            coding=Coding(),
            baseline=b"",
            before=0,
        )
        for client_id in _drawn(sorted(job.clients), plan.config.seed)
    ]
    forms = forms_of(plan.rates)
    told = {}
    with opened(spec, {}, folder) as workers:
        for one in workers.train(tasks):
            decoded = decode_update(
                one.update, one.coding, {}, max_bytes=largest_blob(forms), forms=forms
            )
            if RATIOS in decoded.update.tensors:
                told[one.client_id] = decoded.update.tensors[RATIOS].copy()
                check_ratios(told[one.client_id])
    kind, rates = ladder_of(plan.settings)
    return choose(kind, rates, [told[name] for name in sorted(told)])


def _drawn(names: list[str], seed: int) -> list[str]:
    rng = np.random.default_rng([seed, 0])
    chosen = rng.permutation(len(names))[:MOST_CLIENTS]
    return sorted(names[index] for index in chosen)
