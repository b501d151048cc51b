"""A perceptron of two hidden layers with its programs written out in NumPy, for strategies' tests.

Parameters are named as those of the exported model ``mlp``; gradients are those of the chain rule,
in float64.
"""

from types import SimpleNamespace

import numpy as np
from toy_model import changed

from protofleet.strategies.types import Step
from protofleet.tensors import Model, ModelLayer, TensorMap

HIDDEN = ("body.0", "body.2")
LAYERS = (
    ModelLayer(name="body.0"),
    ModelLayer(name="body.2", before="body.0"),
    ModelLayer(name="head", before="body.2", hidden=False),
)


def perceptron(inputs=2, hidden=(3, 4), classes=3, seed=1):
    """A model with weights drawn from N(0, 1) and biases of 0.5, read-only."""
    rng = np.random.default_rng(seed)
    sizes = (inputs, *hidden, classes)
    tensors = {}
    for index, name in enumerate((*HIDDEN, "head")):
        shape = sizes[index + 1], sizes[index]
        tensors[f"{name}.weight"] = rng.normal(size=shape).astype(np.float32)
        tensors[f"{name}.bias"] = np.full(shape[0], 0.5, np.float32)
    params = TensorMap.pack(tensors)
    params.buffer.flags.writeable = False
    return Model(
        params=TensorMap(params.layout, params.buffer),
        buffers=TensorMap.pack({}),
        num_classes=classes,
        input_shape=(inputs,),
        head=("head.weight", "head.bias"),
        features=hidden[-1],
        layers=LAYERS,
    )


def layers(network, x):
    params = network.params
    found, values = {}, x.reshape(len(x), -1)
    for name in HIDDEN:
        values = np.maximum(values @ params[f"{name}.weight"].T + params[f"{name}.bias"], 0)
        found[name] = values
    return found


def features(network, x):
    return layers(network, x)[HIDDEN[-1]]


def predict(network, x):
    return features(network, x) @ network.params["head.weight"].T + network.params["head.bias"]


def cross_entropy(network, batch, _rng):
    """Mean cross-entropy of the batch."""
    return _backward(network, batch, lambda _features: (0.0, 0.0))


def prototype_mse(network, batch, _rng):
    """The same + weight · mean squared difference to the prototypes of classes that are present."""

    def pull(found):
        gaps = found - batch["prototypes"][batch["y"]].astype(np.float64)
        gaps[batch["present"][batch["y"]] == 0] = 0
        weight = float(batch["weight"])
        return weight * (gaps**2).mean(), 2 * weight * gaps / gaps.size

    return _backward(network, batch, pull)


def with_programs(tools, **changes):
    """``tools`` that run this model's programs."""
    return changed(
        tools,
        grad_fns={"task_loss": cross_entropy, "prototype_mse": prototype_mse},
        predict=predict,
        features=features,
        layers=layers,
        **changes,
    )


def _backward(network, batch, pull):
    params = network.params
    wide = {name: value.astype(np.float64) for name, value in params.items()}
    exact = SimpleNamespace(params=wide)
    x, y = batch["x"].reshape(len(batch["y"]), -1).astype(np.float64), batch["y"]
    hidden = layers(exact, x)
    found = hidden[HIDDEN[-1]]
    logits = predict(exact, x)
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    extra, pulled = pull(found)
    loss = -np.log(probabilities[rows, y]).mean() + extra
    error = probabilities
    error[rows, y] -= 1
    error /= len(y)
    grads = {}
    inputs = {"head": found, "body.2": hidden["body.0"], "body.0": x}
    for name, values in inputs.items():
        grads[f"{name}.weight"] = error.T @ values
        grads[f"{name}.bias"] = error.sum(axis=0)
        error = error @ wide[f"{name}.weight"]
        if name == "head":
            error += pulled
        error *= values > 0
    packed = TensorMap.pack({name: grads[name] for name in params})
    return Step(loss=float(loss), grads=packed, buffers=network.buffers)
