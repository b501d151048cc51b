"""The ALP operators against arithmetic in NumPy, and the layer's gradients and state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from protofleet.errors import InputError
from protofleet.export.classifier.align import align
from protofleet.export.models import build_model
from protofleet.export.models.alp import (
    ALP_UPDATES,
    Alignment,
    AlignmentConfig,
    alp_infer,
    alp_train,
    l2_normalise,
)

GAMMA = 0.9


def _plan(rows, prototypes):
    """The reference's listing: the whole matrix divided in place, in float64."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    others = prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)
    plan = np.exp(unit @ others.T / 0.05)
    for _ in range(3):
        plan /= plan.sum(1, keepdims=True)
        plan /= plan.sum(0, keepdims=True)
    return plan


def _case(batch=6, tokens=4, count=3, width=5, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((batch, tokens, width), (count, width), (count, width))
    return tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)


def _train(x, local, global_, variant):
    tensors = [torch.from_numpy(a) for a in (x, local, global_)]
    chosen, moved = alp_train(*tensors, variant, GAMMA, 0.05, 3)
    return chosen.numpy(), moved.numpy()


def _expected_bulk(x, local, global_, k, *, normalised=True, unit=False):
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    plan = _plan(rows, np.concatenate((local, global_)).astype(np.float64))
    if unit:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    moved = np.empty_like(local, dtype=np.float64)
    for j in range(len(local)):
        best = np.argsort(-plan[:, j])[:k]
        weights = plan[best, j] / (plan[best, j].sum() if normalised else 1)
        moved[j] = GAMMA * local[j] + (1 - GAMMA) * weights @ rows[best]
    return moved


def test_two_tokens_take_the_global_prototype_they_point_at_unnormalised():
    """With orthogonal directions the plan is the identity and the raw prototype is gathered."""
    x = np.array([[[3.0, 0.0], [0.0, 2.0]]], np.float32)
    local = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    global_ = np.array([[0.0, 7.0], [5.0, 0.0]], np.float32)
    chosen, moved = _train(x, local, global_, "bulk_code")
    np.testing.assert_array_equal(chosen, [[[5.0, 0.0], [0.0, 7.0]]])
    np.testing.assert_allclose(moved, [[0.9 + 0.3, 0.0], [0.0, 0.9 + 0.2]], rtol=1e-6)


@pytest.mark.parametrize(
    ("variant", "k", "options"),
    [
        ("bulk_code", 2, {}),  # 6 samples // 3 prototypes
        ("paper_text", 8, {}),  # 24 tokens / 3 prototypes
        ("paper_pseudo", 8, {"normalised": False, "unit": True}),
    ],
)
def test_bulk_updates_move_prototypes_to_the_best_rows_of_their_column(variant, k, options):
    x, local, global_ = _case()
    chosen, moved = _train(x, local, global_, variant)
    np.testing.assert_allclose(moved, _expected_bulk(x, local, global_, k, **options), rtol=1e-4)
    plan = _plan(x.reshape(-1, 5), np.concatenate((local, global_)))
    np.testing.assert_array_equal(chosen.reshape(-1, 5), global_[plan[:, 3:].argmax(1)])


def test_bulk_code_uses_one_row_when_the_batch_is_smaller_than_the_bank():
    x, local, global_ = _case(batch=2, count=5)
    moved = _train(x, local, global_, "bulk_code")[1]
    np.testing.assert_allclose(moved, _expected_bulk(x, local, global_, 1), rtol=1e-4)


def test_single_update_lets_the_last_row_win_and_leaves_unchosen_prototypes():
    x, local, global_ = _case(batch=2, tokens=3, count=8)
    moved = _train(x, local, global_, "single_code")[1]
    rows = x.reshape(-1, 5)
    expected = local.copy()
    best = _plan(rows, np.concatenate((local, global_)))[:, :8].argmax(1)
    for row, j in zip(rows, best, strict=True):
        expected[j] = GAMMA * local[j] + (1 - GAMMA) * row
    np.testing.assert_allclose(moved, expected, rtol=1e-5)
    assert set(best) != set(range(8))


def test_paper_pseudo_shrinks_prototypes_because_its_weights_sum_below_one():
    x, local, global_ = _case()
    shrunk, kept = (_train(x, local, global_, v)[1] for v in ("paper_pseudo", "paper_text"))
    assert np.linalg.norm(shrunk) < np.linalg.norm(kept)


def test_inference_couples_the_samples_of_a_batch():
    """The column normalisation makes a token's prototype depend on the other samples."""
    x, local, _ = _case(batch=16, tokens=4, count=6)
    together = alp_infer(torch.from_numpy(x), torch.from_numpy(local), 0.05, 3)
    plan = _plan(x.reshape(-1, 5), local)
    np.testing.assert_array_equal(together.numpy().reshape(-1, 5), local[plan.argmax(1)])
    alone = [alp_infer(torch.from_numpy(s[None]), torch.from_numpy(local), 0.05, 3) for s in x]
    assert not torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("variant", ALP_UPDATES)
def test_the_operator_leaves_its_inputs_alone_and_passes_the_operator_check(variant):
    x, local, global_ = (torch.from_numpy(a) for a in _case())
    before = [t.clone() for t in (x, local, global_)]
    torch.library.opcheck(alp_train, (x, local, global_, variant, GAMMA, 0.05, 3))
    assert all(torch.equal(a, b) for a, b in zip(before, (x, local, global_), strict=True))


def test_gradients_reach_the_glu_and_the_tokens_but_no_prototype():
    torch.manual_seed(0)
    layer = Alignment(5, 3).train()
    x = torch.randn(4, 2, 5, requires_grad=True)
    (layer(x, torch.tensor(0.2)) * torch.randn(4, 2, 5)).sum().backward()
    assert x.grad is not None
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
    assert not any(b.requires_grad for b in layer.buffers())
    assert {n for n, _ in layer.named_parameters()} == {"glu.weight", "glu.bias"}


def test_training_moves_only_the_local_prototypes_in_place():
    layer = Alignment(5, 3).train()
    held = layer.local_prototypes
    local, global_ = held.clone(), layer.global_prototypes.clone()
    x = torch.randn(4, 2, 5)
    layer(x, torch.tensor(0.2))
    moved = alp_train(x, local, global_, "bulk_code", 0.999, 0.05, 3)[1]
    assert torch.equal(held, moved)
    assert torch.equal(layer.global_prototypes, global_)
    layer.eval()(x, torch.tensor(0.2))
    assert torch.equal(held, moved)


def test_without_a_share_the_layer_only_normalises():
    """Beta = 0 is the paper's first round."""
    x = torch.randn(4, 2, 5)
    out = Alignment(5, 3)(x, torch.tensor(0.0))
    torch.testing.assert_close(out, l2_normalise(x))
    torch.testing.assert_close(out.norm(dim=-1), torch.ones(4, 2))


def test_a_zero_vector_has_a_finite_gradient():
    x = torch.zeros(1, 1, 3, requires_grad=True)
    l2_normalise(x).sum().backward()
    assert x.grad is not None
    assert math.isfinite(x.grad.sum().item())


def test_captured_with_a_symbolic_batch_the_operator_stays_one_node():
    """Joint tracing holds for another batch size, and the moved prototypes are visible."""
    layer = Alignment(5, 3).train()
    params = {n: p.detach().clone() for n, p in layer.named_parameters()}
    state = {n: b.clone() for n, b in layer.named_buffers()}

    def step(params, state, x):
        leaves = {n: p.detach().requires_grad_() for n, p in params.items()}
        moved = {n: b.clone() for n, b in state.items()}
        loss = functional_call(layer, (leaves, moved), (x, torch.tensor(0.2))).pow(3).sum()
        return torch.autograd.grad(loss, list(leaves.values())), moved

    graph = make_fx(step, tracing_mode="symbolic")(params, state, torch.randn(6, 2, 5))
    targets = [n.target for n in graph.graph.nodes]
    assert targets.count(torch.ops.protofleet.alp_train.default) == 1
    x = torch.randn(9, 2, 5)
    captured, eager = graph(params, state, x), step(params, state, x)
    torch.testing.assert_close(captured, eager)
    assert not torch.equal(captured[1]["local_prototypes"], state["local_prototypes"])


def test_an_unknown_update_is_refused():
    with pytest.raises(InputError, match=r"bulk_code.*'soft'"):
        AlignmentConfig(alp_update="soft")


_HART = {"width": 16, "kernels": (3, 5), "heads": 1, "head_width": 8}
_VIT = {"size": 8, "channels": 1, "patch": 4, "depth": 2, "width": 8, "heads": 2}


def _drawn(name, seed, **settings):
    torch.manual_seed(seed)
    return build_model(name, **settings).state_dict()


@pytest.mark.parametrize(("name", "settings"), [("hart", _HART), ("vit", _VIT)])
def test_one_seed_gives_all_other_tensors_the_same_bits_with_and_without_alignment(name, settings):
    plain = _drawn(name, 3, **settings)
    aligned = _drawn(name, 3, **settings, prototypes=(5, 5))
    assert all(torch.equal(plain[key], aligned[key]) for key in plain)
    banks = [value for key, value in aligned.items() if key.endswith("_prototypes")]
    assert len({bank.numpy().tobytes() for bank in banks}) == 4
    other = _drawn(name, 4, **settings, prototypes=(5, 5))
    assert not any(torch.equal(other[key], aligned[key]) for key in aligned if "prototypes" in key)


def test_layers_put_into_a_model_draw_apart_and_leave_pytorch_s_generator_alone():
    torch.manual_seed(5)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    before = torch.get_rng_state()
    for after in (["0", "1"], ["2"]):
        align(model, after=after, prototypes=[6])
    assert torch.equal(torch.get_rng_state(), before)
    banks = [value for key, value in model.state_dict().items() if key.endswith("_prototypes")]
    assert len({bank.numpy().tobytes() for bank in banks}) == 6


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"alp_banks": "none"}, "alp_banks: expected one of both, local, global, got 'none'"),
        ({"alp_assignment": "l1"}, "alp_assignment: expected one of transport, cosine, euclidean"),
        ({"alp_update": "paper_pseudo", "alp_assignment": "cosine"}, "weighs by the plan"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused_by_name(settings, told):
    with pytest.raises(InputError, match=told):
        build_model("hart_alp", **settings)
