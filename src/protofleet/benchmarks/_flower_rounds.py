"""Rounds of Flower's simulation engine whose clients return the model as it came.

A program for an interpreter that has ``flwr[simulation]``; nothing of Protofleet is imported. Run
as ``python _flower_rounds.py FLOATS CLIENTS CPUS``: prints its version, then for each line that it
reads plays a round and prints its seconds.
"""

import os
import sys
import time
from typing import Any, TextIO

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAY_ADDRESS"] = "local"  # not a cluster that happens to be there

import flwr
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

_ROUNDS = 1_000_000
"""More than are ever asked for."""


class _Ended(Exception):  # noqa: N818 - no error: nobody asks for another round
    pass


class _Timed(FedAvg):  # type: ignore[misc]
    """FedAvg that waits before each round until it is asked for, and tells how long it took."""

    def __init__(self, clients: int, answers: TextIO) -> None:
        super().__init__(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_available_nodes=clients,
        )
        self._answers, self._started = answers, 0.0

    def configure_train(self, *args: Any) -> Any:
        if not sys.stdin.readline():
            raise _Ended
        self._started = time.perf_counter()
        return super().configure_train(*args)

    def aggregate_train(self, *args: Any) -> Any:
        found = super().aggregate_train(*args)
        seconds = time.perf_counter() - self._started
        print(seconds, file=self._answers, flush=True)
        return found


def _client() -> Any:
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, _context: Any) -> Any:
        arrays = message.content["arrays"].to_numpy_ndarrays()  # what any training begins with
        content = {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def _server(floats: int, clients: int, answers: TextIO) -> Any:
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, _context: Any) -> None:
        initial = ArrayRecord([np.random.default_rng(0).normal(size=floats).astype(np.float32)])
        strategy = _Timed(clients, answers)
        strategy.start(grid, initial, num_rounds=_ROUNDS, train_config=ConfigRecord())

    return app


def main(floats: int, clients: int, cpus: int) -> None:
    """Play rounds for as long as somebody asks."""
    # What Flower and Ray print goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(flwr.__version__, file=answers, flush=True)
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": cpus, "include_dashboard": False, "log_to_driver": False},
    }
    run_simulation(
        server_app=_server(floats, clients, answers),
        client_app=_client(),
        num_supernodes=clients,
        backend_config=backend,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
