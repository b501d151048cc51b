"""What the demonstration's networks start from."""

from __future__ import annotations

import numpy as np
import pytest
from toy_model import frozen_map, new_rng, server_tools

from protofleet.demo import DemoSettings
from protofleet.demo.recipes import RECIPES
from protofleet.export.build import initial_values
from protofleet.export.models import build_model
from protofleet.strategies import build
from protofleet.strategies.types import ClientTools, Evaluation, Step, TrainTools
from protofleet.tensors import Model, TensorMap

pytestmark = pytest.mark.slow(seconds=10)


def _settings(data, root) -> DemoSettings:
    return DemoSettings(
        data=data,
        data_root=root,
        strategy="fedali",
        devices=2,
        rounds=2,
        seed=3,
        broker=None,
        sensors="published",
    )


def _tools(betas) -> ClientTools:
    """Of a client with one example; every step leaves the model as it is and notes β."""

    def noted(network, _batch, _rng):
        betas.append(float(network.buffers["beta"]))
        grads = TensorMap.zeros(network.params.layout)
        return Step(loss=0.0, grads=grads, buffers=network.buffers)

    return ClientTools(
        client_id="a",
        training=TrainTools(
            name="client 'a'",
            x=np.zeros((1, 1), np.float32),
            y=np.zeros(1, np.int64),
            grad_fns={"task_loss": noted},
            rng=new_rng(),
        ),
        predict=None,
        features=None,
        layers=None,
        evaluate=lambda _network, **_: Evaluation(),
        statistics=lambda _network, **_: None,
    )


@pytest.mark.parametrize("data", ["digits", pytest.param("uci-har", marks=pytest.mark.data)])
def test_the_aligned_network_is_pretrained_without_a_share_of_prototypes(data, request, tmp_path):
    """As FedAli's first round has it, from which on the strategy sets the share by round."""
    root = request.getfixturevalue("data_root") if data == "uci-har" else None
    prepared = RECIPES[data](_settings(data, root), tmp_path)
    plain, aligned = (prepared.models[network] for network in ("plain", "aligned"))
    assert "beta" not in initial_values(build_model(plain.name, **plain.settings))[1]
    params, buffers = initial_values(build_model(aligned.name, **aligned.settings))
    assert float(buffers["beta"]) == 0
    model = Model(
        params=frozen_map(params), buffers=frozen_map(buffers), num_classes=10, input_shape=(1,)
    )
    strategy = build("fedali", {**prepared.strategy_settings, "epochs": 1}, model)
    server, state, betas = strategy.server_init(model, new_rng()), strategy.client_init(model), []
    for _ in range(3):
        payload = strategy.downlink(server, "a")
        state, update = strategy.client_update(state, payload, _tools(betas))
        server = strategy.aggregate(server, [update], server_tools())
    assert betas == pytest.approx([0.0, 0.2, 0.2])
