"""A run's calibration by the engines that train clients on this machine, or on Ray's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.experiments._worker import WorkerSpec, WorkerTask
from protofleet.experiments.workers import OpenWorkers, Workers
from protofleet.federation.client import RoundConfig
from protofleet.federation.coding import decode_update, largest_blob
from protofleet.federation.outcomes.calibration import (
    RATIOS,
    Calibration,
    check_ratios,
    choose,
    drawn,
    ladder_of,
    schemas_of,
)
from protofleet.federation.plan import Plan
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding


def calibrate(
    clients: Iterable[str], plan: Plan, spec: WorkerSpec, opened: OpenWorkers, folder: Path
) -> Calibration:
    """Let clients try the plan's rates, and choose one.

    Args:
        clients: of the run.
        plan: of it, with ``rates``.
        spec: what its clients have in common.
        opened: opens workers.
        folder: that they may use.
    """
    names, told = set(clients), dict[str, NDArray[np.float64]]()
    with opened(spec, {}, folder) as workers:
        while names and not told:
            asked = drawn(names, plan.config.seed)
            names -= set(asked)
            told = _told(plan, workers, asked)
    kind, rates = ladder_of(plan.settings)
    return choose(kind, rates, [told[name] for name in sorted(told)], otherwise=plan.own_lr)


def _told(plan: Plan, workers: Workers, asked: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """The ratios of those of the clients that could try."""
    state, forms = plan.server_init(), schemas_of(plan.rates)
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
        for client_id in asked
    ]
    told = {}
    for one in workers.train(tasks):
        decoded = decode_update(
            one.update, one.coding, {}, max_bytes=largest_blob(forms), forms=forms
        )
        if RATIOS in decoded.update.tensors:
            told[one.client_id] = decoded.update.tensors[RATIOS].copy()
            check_ratios(told[one.client_id], len(plan.rates))
    return told
