"""The toy model's features are its examples times w; FedPHP's program pulls w to the teacher's."""

from dataclasses import replace

from toy_model import changed, grad_fn

from protofleet.strategies.types import Step
from protofleet.tensors import TensorMap


def fedphp_grad_fn(network, batch, rng):
    """The toy's loss · local + mmd · half the mean squared distance of x w to the teacher."""
    step = grad_fn(network, batch, rng)
    x = batch["x"]
    gaps = x * network.params["w"] - batch["teacher"]
    pull = batch["mmd"] * (gaps * x).mean(axis=0)
    grads = TensorMap(step.grads.layout, batch["local"] * step.grads.buffer + pull)
    loss = float(batch["local"] * step.loss + batch["mmd"] * (gaps**2).sum(axis=1).mean() / 2)
    return Step(loss=loss, grads=grads, buffers=step.buffers)


def features(network, x):
    return x * network.params["w"]


def case(make_tools, toy):
    def make(client_id, examples):
        tools, seen = make_tools(client_id, examples)
        return changed(tools, grad_fns={"fedphp": fedphp_grad_fn}, features=features), seen

    settings = {**toy.settings, "participations": 2, "lam": 0.25}
    model = replace(toy.model, features=2)
    return replace(toy, model=model, settings=settings, make_tools=make)
