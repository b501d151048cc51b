"""What a strategy's server half may use: programs, if it asks, randomness, aggregation rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle import Bundle
from protofleet.errors import InputError
from protofleet.federation.randomness import server_rng
from protofleet.strategies.aggregation import MEAN, Aggregator
from protofleet.strategies.types import ServerTools, Strategy
from protofleet.tensors import Network


def make_server_tools(
    bundle: Bundle,
    strategy: Strategy,
    *,
    seed: int,
    threads: int = 1,
    aggregator: Aggregator = MEAN,
) -> Callable[[int], ServerTools]:
    """A function from a round to its tools; programs are opened only for strategies that ask.

    Raises:
        InputError: the bundle lacks a training program that the server needs.
    """
    description = strategy.description
    if not description.server_programs:
        return lambda round_id: ServerTools(
            grad_fns={},
            predict=_no_programs,
            rng=server_rng(seed, round_id),
            aggregator=aggregator,
        )
    from protofleet.runtime import open_programs  # noqa: PLC0415 - only who trains pays for it

    programs = open_programs(bundle, threads=threads)
    missing = sorted(set(description.server_programs) - programs.grad_fns.keys())
    if missing:
        raise InputError(
            f"strategy '{description.name}': the server needs a training program '{missing[0]}', "
            f"the bundle has {sorted(programs.grad_fns)}; export a bundle for this strategy"
        )
    return lambda round_id: ServerTools(
        grad_fns=programs.grad_fns,
        predict=programs.predict,
        rng=server_rng(seed, round_id),
        aggregator=aggregator,
    )


def _no_programs(network: Network, x: NDArray[np.float32]) -> NDArray[np.float32]:
    raise InputError(
        f"server: the strategy asked for no programs, but predicts {len(x)} examples with "
        f"{len(network.params)} parameters"
    )
