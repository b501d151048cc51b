"""Figures of alignment layers against the plan's listing in NumPy."""

import numpy as np
import pytest
import torch
from oracles import alp as oracle

from protofleet.errors import InputError
from protofleet.export.diagnostics import AlignmentDiagnosis
from protofleet.export.models.alp import Alignment, AlignmentConfig
from protofleet.tensors import Network, TensorMap

_BETA = 0.3


class Aligned(torch.nn.Module):
    """The layer alone; its module is called block."""

    def __init__(self, **settings):
        super().__init__()
        self.block = Alignment(6, 5, AlignmentConfig(**settings))
        self.register_buffer("beta", torch.tensor(_BETA))

    def forward(self, x):
        return self.block(x, self.beta)


def network_of(model):
    params = {name: value.detach().numpy() for name, value in model.named_parameters()}
    buffers = {name: value.numpy() for name, value in model.named_buffers()}
    return Network(params=TensorMap.pack(params), buffers=TensorMap.pack(buffers))


def examples(count=40):
    return np.random.default_rng(3).standard_normal((count, 4, 6)).astype(np.float32)


def expected_of(values, x, bank):
    """Batches of 32 and 8 examples; rows of one batch share a plan."""
    prototypes = values[f"block.{bank}"].astype(np.float64)
    cosines, entropies, mixed, taken = [], [], [], set()
    for rows in (x[:32].reshape(-1, 6), x[32:].reshape(-1, 6)):
        plan = oracle.plan(rows, prototypes, 0.05, 3)
        best = plan.argmax(axis=1)
        taken |= set(best.tolist())
        chosen = prototypes[best]
        cosines += (oracle.unit(rows) * oracle.unit(chosen)).sum(axis=1).tolist()
        shares = plan / plan.sum(axis=1, keepdims=True)
        entropies += (-(shares * np.log(shares)).sum(axis=1) / np.log(5)).tolist()
        value, gate = np.split(
            chosen @ values["block.glu.weight"].T + values["block.glu.bias"], 2, axis=1
        )
        added = np.linalg.norm(_BETA * value / (1 + np.exp(-gate)), axis=1)
        mixed += (added / np.linalg.norm((1 - _BETA) * rows, axis=1)).tolist()
    return {
        "block.cosine": np.mean(cosines),
        "block.entropy": np.mean(entropies),
        "block.mixed": np.mean(mixed),
        "block.used": len(taken) / 5,
    }


@pytest.mark.parametrize("bank", ["local_prototypes", "global_prototypes"])
def test_figures_are_those_of_the_listing(bank):
    """Of values that the model was not made with; with global banks, of the global prototypes."""
    torch.manual_seed(1)
    settings = {"alp_banks": "global"} if bank == "global_prototypes" else {}
    diagnosis = AlignmentDiagnosis(Aligned(**settings), examples())
    torch.manual_seed(2)
    network = network_of(Aligned(**settings))
    values = {**network.params, **network.buffers}
    found = diagnosis(network)
    expected = expected_of(values, examples(), bank)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4)
    assert found == diagnosis(network)


def test_without_a_plan_there_is_no_entropy():
    model = Aligned(alp_assignment="cosine")
    found = AlignmentDiagnosis(model, examples(2))(network_of(model))
    assert found.keys() == {"block.cosine", "block.mixed", "block.used"}


def test_no_layers_and_no_examples_are_refused():
    with pytest.raises(InputError, match="got a model without alignment layers"):
        AlignmentDiagnosis(torch.nn.Linear(2, 2), examples())
    with pytest.raises(InputError, match="got no examples"):
        AlignmentDiagnosis(Aligned(), examples(0))
