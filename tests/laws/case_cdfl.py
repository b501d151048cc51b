"""CDFL's model for arithmetic: images of 1 x 2 pixels, one parameter w of the same two numbers.

Features are x + w, logits x · w. The gradient of cross_entropy is w - mean(x); that of cdfl is the
sum of w - mean(z) and, by their weights, w - mean(x), w - mean(teacher) and w - mean(centroids).
"""

import numpy as np
from laws.cases import Case
from toy_model import changed, frozen_map

from protofleet.strategies.types import ServerTools, Step
from protofleet.tensors import Model, TensorMap

SETTINGS = {
    "epochs": 1,
    "optimiser": {"kind": "sgd", "lr": 0.5},
    "pixelise": "whole",
    "value_range": [0, 8],
    "server_optimiser": {"kind": "sgd", "lr": 0.5},
}
_WEIGHTS = {"x": "contrastive", "teacher": "distillation", "centroids": "clustering"}


def images(pairs):
    return np.array(pairs, np.float32).reshape(-1, 1, 1, 2)


def new_model():
    buffers = frozen_map({"norm.mean": [5]})
    return Model(
        params=frozen_map({"w": [0, 0]}),
        buffers=buffers,
        num_classes=2,
        input_shape=(1, 1, 2),
    )


def features(network, x):
    return x.reshape(-1, 2) + network.params["w"]


def predict(network, x):
    return x.reshape(-1, 2) * network.params["w"]


def _step(network, loss, pulls):
    params = network.params
    grads = TensorMap.zeros(params.layout)
    for weight, target in pulls:
        grads["w"][...] += weight * (params["w"] - target.reshape(-1, 2).mean(axis=0))
    return Step(loss=loss, grads=grads, buffers=network.buffers)


def cross_entropy(network, batch, _rng):
    loss = float(np.square(network.params["w"] - batch["x"].reshape(-1, 2)).sum(axis=1).mean() / 2)
    return _step(network, loss, [(1, batch["x"])])


def cdfl(network, batch, _rng):
    loss = float(np.square(network.params["w"] - batch["z"].reshape(-1, 2)).sum(axis=1).mean() / 2)
    pulls = [(batch[weight], batch[key]) for key, weight in _WEIGHTS.items()]
    return _step(network, loss, [(1, batch["z"]), *pulls])


def server_tools():
    return ServerTools(
        grad_fns={"task_loss": cross_entropy}, predict=predict, rng=np.random.default_rng(0)
    )


def case(make_tools, _toy):
    def make(client_id, examples):
        tools, seen = make_tools(client_id, examples)
        y = np.arange(len(tools.training.y)) % 2
        changes = {"x": images(examples), "y": y, "features": features, "predict": predict}
        programs = {"task_loss": cross_entropy, "cdfl": cdfl}
        return changed(tools, grad_fns=programs, **changes), seen

    return Case(
        model=new_model(),
        settings=SETTINGS,
        make_tools=make,
        server_tools=server_tools,
        exempt={
            "one_client_gets_its_own_params_back": "the server trains the average on the clients' "
            "images (without that, server_epochs = 0, test_cdfl.py shows the law kept)"
        },
    )
