"""The toy model with a prototype for each of two classes, and programs for them.

Parameters are w (2,) and head.prototypes (2, 2); features are x + w. Both training programs pull w
to the mean example. Besides, ``prototype_distance`` pulls the prototypes with ``weight`` to the
anchors, and ``prototype_mse`` w with ``weight`` times the mean gap between features and prototypes.
"""

import dataclasses

import numpy as np
from toy_model import changed, frozen_map

from protofleet.strategies.types import Step
from protofleet.tensors import Model, TensorMap

HEAD = "head.prototypes"


def prototype_model():
    params = frozen_map({"w": [0, 0], HEAD: [[1, 0], [0, 1]]})
    return Model(
        params=params,
        buffers=frozen_map({"beta": 0.3}),
        num_classes=2,
        input_shape=(2,),
        head=(HEAD,),
        features=2,
    )


def with_programs(tools, seen, y):
    """Tools of the fixture ``make_tools`` for ``prototype_model``; ``seen.batches`` records."""
    seen.batches = []

    def recorded(pull):
        def grad_fn(network, batch, _rng):
            params = network.params
            seen.batches.append({**batch, HEAD: params[HEAD].copy()})
            grads = TensorMap.zeros(params.layout)
            difference = params["w"] - batch["x"]
            grads["w"][...] = difference.mean(axis=0)
            pull(params, batch, grads)
            loss = float((difference**2).sum(axis=1).mean() / 2)
            return Step(loss=loss, grads=grads, buffers=network.buffers)

        return grad_fn

    return changed(
        tools,
        y=np.array(y, np.int64),
        grad_fns={
            "prototype_distance": recorded(_to_anchors),
            "prototype_mse": recorded(_to_prototypes),
        },
        features=lambda network, x: x + network.params["w"],
    )


def registered(update, tools):
    """The update as the coordinator hands it on."""
    return dataclasses.replace(update, class_counts=np.bincount(tools.training.y, minlength=2))


def alternating(tools):
    """Classes 0, 1, 0, … for the examples of ``tools``."""
    return np.arange(len(tools.training.x)) % 2


def _to_anchors(params, batch, grads):
    grads[HEAD][...] = batch["weight"] * (params[HEAD] - batch["anchors"])


def _to_prototypes(params, batch, grads):
    gaps = batch["x"] + params["w"] - batch["prototypes"][batch["y"]]
    grads["w"][...] += batch["weight"] * (gaps * batch["present"][batch["y"], None]).mean(axis=0)
