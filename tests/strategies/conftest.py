import os
from types import SimpleNamespace

import numpy as np
import pytest
from oracle_errors import oracle_table
from toy_model import GLOBAL, LOCAL, array, frozen_map, grad_fn

from protofleet.strategies.types import ClientTools, Evaluation, TrainTools
from protofleet.tensors import Model


@pytest.fixture
def model():
    buffers = {
        LOCAL: [[0, 0], [10, 10]],
        GLOBAL: [[1, 1], [11, 11]],
        "norm.mean": [5],
        "beta": 0.3,
    }
    return Model(
        params=frozen_map({"w": [0, 0]}),
        buffers=frozen_map(buffers),
        num_classes=2,
        input_shape=(2,),
    )


@pytest.fixture
def make_tools():
    """Tools of a client whose examples are given; ``.seen`` records every beta and batch size."""

    def make(client_id, examples):
        seen = SimpleNamespace(betas=[], sizes=[], evaluated=[])

        def recorded(network, batch, rng):
            seen.betas.append(float(network.buffers["beta"]))
            seen.sizes.append(len(batch["y"]))
            return grad_fn(network, batch, rng)

        def evaluate(network, *, score=None):  # noqa: ARG001 - the tool's signature
            seen.evaluated.append(network.copy())
            return Evaluation(own=np.array([[len(examples), 0], [0, 1]]))

        x = array(examples).reshape(-1, 2)
        tools = ClientTools(
            client_id=client_id,
            training=TrainTools(
                name=f"client '{client_id}'",
                x=x,
                y=np.zeros(len(x), np.int64),
                grad_fns={"task_loss": recorded},
                rng=np.random.default_rng(1),
            ),
            predict=None,
            features=None,
            layers=None,
            evaluate=evaluate,
            statistics=lambda _network, **_: None,
        )
        return tools, seen

    return make


def pytest_terminal_summary(terminalreporter):
    """The table of ``make oracles``."""
    if "PROTOFLEET_ORACLES" in os.environ:
        for line in oracle_table():
            terminalreporter.write_line(line)
