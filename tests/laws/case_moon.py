"""The toy model's features are its examples times w; its program pulls w to the constants."""

from dataclasses import replace

from toy_model import changed, grad_fn

from protofleet.strategies.types import Step
from protofleet.tensors import TensorMap


def moon_grad_fn(network, batch, rng):
    """The toy's loss + mu · mean of w·(negative - positive)/tau."""
    step = grad_fn(network, batch, rng)
    pull = batch["mu"] / batch["tau"] * (batch["negative"] - batch["positive"]).mean(axis=0)
    grads = TensorMap(step.grads.layout, step.grads.buffer + pull)
    loss = step.loss + float(network.params["w"] @ pull)
    return Step(loss=loss, grads=grads, buffers=step.buffers)


def features(network, x):
    return x * network.params["w"]


def moon_tools(make_tools):
    def make(client_id, examples):
        tools, seen = make_tools(client_id, examples)
        return changed(tools, grad_fns={"moon": moon_grad_fn}, features=features), seen

    return make


def case(make_tools, toy):
    return replace(toy, make_tools=moon_tools(make_tools))
