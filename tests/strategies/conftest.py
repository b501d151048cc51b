from types import SimpleNamespace

import numpy as np
import pytest
from toy_model import GLOBAL, LOCAL, array, frozen_map, grad_fn

from protofleet.strategies.types import ClientTools, Evaluation
from protofleet.tensors import Model


@pytest.fixture
def model():
    state = {
        LOCAL: [[0, 0], [10, 10]],
        GLOBAL: [[1, 1], [11, 11]],
        "norm.mean": [5],
        "beta": 0.3,
    }
    return Model(params=frozen_map({"w": [0, 0]}), state=frozen_map(state), num_classes=2)


@pytest.fixture
def make_tools():
    """Tools of a client whose examples are given; ``.seen`` records every beta and batch size."""

    def make(client_id, examples):
        seen = SimpleNamespace(betas=[], sizes=[], evaluated=[])

        def recorded(params, state, batch, rng):
            seen.betas.append(float(state["beta"]))
            seen.sizes.append(len(batch["y"]))
            return grad_fn(params, state, batch, rng)

        def evaluate(params, state, *, score=None):  # noqa: ARG001 - the tool's signature
            seen.evaluated.append((params.copy(), state.copy()))
            return Evaluation(own=np.array([[len(examples), 0], [0, 1]]))

        x = array(examples).reshape(-1, 2)
        tools = ClientTools(
            client_id=client_id,
            x=x,
            y=np.zeros(len(x), np.int64),
            grad_fns={"cross_entropy": recorded},
            predict=None,
            features=None,
            layers=None,
            evaluate=evaluate,
            confusion=lambda _params, _state, **_: None,
            rng=np.random.default_rng(1),
        )
        return tools, seen

    return make
