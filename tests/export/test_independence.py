"""An example has the same output among others as alone, or the line that mixes them is told."""

from __future__ import annotations

import re

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn
from torch.nn import functional

from protofleet.bundle.manifest import Preprocessing
from protofleet.errors import ExportError, InputError
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.capture import capture
from protofleet.export.classifier import Parts
from protofleet.export.independence import check_independent
from protofleet.export.models import build_model
from tests.export import toys, users_models

_X = torch.zeros(2, 6, 16)


class _Mixes(nn.Module):
    """A convolution, what a test does with its result (B, 8, 14), and a classifier."""

    def __init__(self, how) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(6, 8, 3), nn.Linear(8, 3)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.how(self.conv(x)).mean(-1))


class _Attends(nn.Module):
    """A layer that goes over steps, (B, 6, 16) → (B, 3)."""

    def __init__(self, layer, *, steps_first: bool = False) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Linear(6, 8), layer, nn.Linear(8, 3)
        self.steps_first = steps_first

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x.transpose(1, 2))
        if self.steps_first:
            y = y.transpose(0, 1)
        y = (
            self.layer(y, y, y)[0]
            if isinstance(self.layer, nn.MultiheadAttention)
            else self.layer(y)
        )
        y = y[0] if isinstance(y, tuple) else y
        return self.head(y.transpose(0, 1)[:, -1] if self.steps_first else y.mean(1))


class _Counts(nn.Module):
    """Counts its calls in evaluation, too, and adds the count to what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.head = 0, nn.Linear(96, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(x.flatten(1)) + self.calls


class _Chooses(nn.Module):
    """Steps: rounding, the nearest of a code book, and the best two of eight branches."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate, self.head = nn.Linear(96, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.codes = nn.Parameter(torch.randn(32, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = (self.body(x.flatten(1)) * 8).round() / 8
        y = y + self.codes[torch.cdist(y, self.codes).argmin(1)]
        best = self.gate(y).topk(2, 1).indices
        return self.head(y * torch.zeros_like(y).scatter(1, best, 1.0))


class _Batches(nn.Module):
    """Numbers its examples, and joins the batch to both sides of another axis."""

    def __init__(self, how=lambda y: y) -> None:
        super().__init__()
        self.embed, self.head, self.how = nn.Linear(6, 8), nn.Linear(8, 3), how

    def forward(self, x: Tensor) -> Tensor:
        steps = x.permute(2, 0, 1)  # (16, B, 6)
        y = self.embed(steps.reshape(-1, 6)).view(16, -1, 8).transpose(0, 1)
        y = y.reshape(-1, 8).relu().view(-1, 16, 8)
        last = y[torch.arange(y.shape[0]), -1]
        return self.head(self.how(last + y.amax(1)))


def _refusal(model, x=_X) -> str:
    torch.manual_seed(0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    with pytest.raises(InputError) as told:
        check_independent(model, x)
    assert "\n" not in str(told.value)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return str(told.value)


_AXIS = "first axis is the batch's"


@pytest.mark.parametrize(
    ("how", "operator", "remedy"),
    [
        (lambda y: y - y.mean(0), "mean", _AXIS),
        (lambda y: y / y.abs().max(), "max", _AXIS),
        (lambda y: (y - y.mean()) / y.std(), "mean", _AXIS),
        (lambda y: y * functional.softmax(y, dim=0), "_softmax", r"softmax\(dim=-1\)"),
        (lambda y: y * nn.Softmax()(y), "_softmax", "where dim is left out"),
        (lambda y: y.cumsum(0), "cumsum", _AXIS),
        (lambda y: y.flip(0), "flip", _AXIS),
        (lambda y: y.sort(0).values, "sort", _AXIS),
        (lambda y: y - y[:1], "slice|sub", "its own values"),
        (lambda y: y.view(8, -1, 14).transpose(0, 1), "view", "transpose or permute"),
        (lambda y: functional.batch_norm(y, None, None, training=True), "batch_norm", "running"),
        (lambda y: functional.normalize(y, dim=0), "norm", _AXIS),
    ],
)
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_what_mixes_the_examples_is_told_with_line_and_remedy(how, operator, remedy):
    said = _refusal(_Mixes(how))
    place = rf"model \(.*_Mixes\), .*test_independence.py:\d+: operator \w*({operator})\w* mixes "
    assert_matches(place + ".* beside a second than alone, by .*" + remedy, said)


def assert_matches(pattern: str, said: str) -> None:
    assert re.search(pattern, said), said


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: nn.MultiheadAttention(8, 2), r"module 'layer' \(.*MultiheadAttention\)"),
        (
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1),
            r"module 'layer.layers.0.self_attn' \(.*MultiheadAttention\)",
        ),
        (lambda: nn.GRU(8, 8), r"module 'layer' \(.*GRU\)"),
        (lambda: nn.LSTM(8, 8), r"module 'layer' \(.*LSTM\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_batch_that_is_taken_for_time_is_told(model, said):
    assert_matches(said + r".*; set batch_first=True", _refusal(_Attends(model())))
    check_independent(_Attends(model(), steps_first=True), _X)


class _BetweenRows(nn.Module):
    """Attention over steps, then over the examples of a batch, which are its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.MultiheadAttention(16, 2, batch_first=True)
        self.rows = nn.MultiheadAttention(96, 2, batch_first=True)
        self.head = nn.Linear(96, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.columns(x, x, x)[0].flatten(1).unsqueeze(0)
        return self.head(self.rows(rows, rows, rows)[0].squeeze(0))


def test_attention_between_the_rows_of_a_batch_is_told_with_its_own_module():
    """Another attention before it adds its biases in another way for one example."""
    with pytest.raises(
        InputError, match=r"^module 'rows' .*: operator _softmax mixes .*; give it \(batch, steps,"
    ):
        check_independent(_BetweenRows(), _X)


@pytest.mark.parametrize("track", [False, True])
def test_batch_norm_mixes_where_it_keeps_no_running_statistics(track):
    model = _Mixes(nn.BatchNorm1d(8, track_running_stats=track))
    if track:
        check_independent(model, _X)
        return
    assert_matches(r"module 'how' \(.*BatchNorm1d\).*track_running_stats at True", _refusal(model))


def test_what_depends_on_the_number_of_examples_is_told_so():
    said = _refusal(_Mixes(lambda y: y * 2 if len(y) == 1 else y))
    assert_matches(r"_Mixes\), .*:\d+: operator mul is not computed alike", said)
    assert_matches("operator mul mixes|operator div mixes", _refusal(_Mixes(lambda y: y / len(y))))


def test_tokens_and_looked_up_numbers_are_compared_too():
    class Words(nn.Module):
        def __init__(self, vocabulary=None) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)
            if vocabulary:
                self.vocabulary = vocabulary

        def forward(self, x: Tensor) -> Tensor:
            y = self.table(x.long()).mean(1)
            return self.head(y - y.mean(0))

    tokens = torch.tensor([[1, 2, 8], [3, 3, 0]])
    assert_matches("operator mean mixes", _refusal(Words(), tokens))
    assert_matches("operator mean mixes", _refusal(Words(9), torch.zeros(2, 3)))
    # Random numbers are no rows of it: parity tells of 'vocabulary'.
    check_independent(Words(), torch.zeros(2, 3))


def test_a_mixture_is_found_behind_a_logarithm_of_the_examples():
    assert_matches("operator mean mixes", _refusal(_Batches(lambda y: (y - y.mean(0)).relu())))
    model = nn.Sequential(nn.Flatten(), _Log(), nn.Linear(96, 3))
    assert_matches("module '1' .*operator mean mixes", _refusal(model))


class _InPlace(nn.Module):
    """Writes its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(3).add_(1)


class _Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.log()
        return y - y.mean(0)


def test_what_capture_refuses_by_its_own_remedy_is_left_to_it():
    model = _Mixes(lambda y: y * y[y > 0].sum())
    check_independent(model, _X)
    with pytest.raises(ExportError, match=r"test_independence.py:\d+: .*use torch.where"):
        capture(model, None, {"x": _X}, parts=Parts(head=None))


def test_operators_of_bools_are_passed_over():
    said = _refusal(_Mixes(lambda y: y * (y > 0).float() - y.mean(0)))
    assert_matches("operator mean mixes", said)


def test_joined_axes_do_not_hide_the_operator_that_mixes():
    said = _refusal(_Batches(lambda y: y * torch.softmax(y, 0)))
    assert_matches("operator _softmax mixes", said)


@pytest.mark.parametrize(
    "make",
    [
        _Chooses,
        _Batches,
        _Counts,
        lambda: _Mixes(nn.InstanceNorm1d(8)),
        lambda: _Mixes(lambda y: functional.dropout(y, 0.2)),
        lambda: _Mixes(lambda y: y + torch.randn_like(y)),
        lambda: _Mixes(lambda y: 1e6 * functional.group_norm(y, 2)),
        lambda: _Mixes(lambda y: y * 0),
        lambda: _Mixes(lambda y: y / 0),
        lambda: nn.Sequential(
            nn.Flatten(), *(nn.Sequential(nn.Linear(96, 96), nn.Tanh()) for _ in range(60))
        ),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(96, 8), nn.Softmax(-1)),
        lambda: nn.Sequential(_InPlace(), nn.Flatten(), nn.Linear(96, 3)),
    ],
)
def test_examples_that_are_computed_apart_are_taken(make):
    for seed in range(5):
        torch.manual_seed(seed)
        model = make()
        state = torch.get_rng_state()
        check_independent(model, _X)
        assert torch.equal(torch.get_rng_state(), state)


def test_training_may_mix():
    class Contrasts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(96), nn.Linear(96, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x.flatten(1))
            return self.head(y - y.mean(0) if self.training else y)

    check_independent(Contrasts(), _X)


@pytest.mark.parametrize(("kind", "shape"), toys.INPUT_SHAPES.items())
def test_toys_are_taken(kind, shape):
    check_independent(kind(), torch.zeros(2, *shape))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (users_models.perceptron, (9,)),
        (users_models.Images, (1, 12, 12)),
        (users_models.Encoder, (10, 6)),
        (users_models.Tcn, (6, 20)),
        (users_models.Tied, (5,)),
        (users_models.TwoHeads, (5,)),
    ],
)
def test_models_as_users_write_them_are_taken(make, shape):
    check_independent(make(), torch.zeros(2, *shape))


def test_a_model_that_says_that_it_mixes_is_taken():
    model = build_model("hart_alp", classes=3)
    assert [m.mixes_samples for m in model.modules() if hasattr(m, "mixes_samples")].count(True)
    check_independent(model, torch.zeros(2, 128, 6))
    declared = _Mixes(lambda y: y - y.mean(0))
    declared.mixes_samples = True
    check_independent(declared, _X)


def test_cosine_prototypes_are_compared_and_do_not_mix():
    model = build_model("hart_alp", classes=3, alp_assignment="cosine", fidelity="default")
    assert not any(getattr(module, "mixes_samples", False) for module in model.modules())
    check_independent(model, torch.zeros(2, 128, 6))


def test_export_refuses_before_anything_is_captured(tmp_path):
    spec = BundleSpec(
        name="mixes",
        strategy="fedavg",
        classes=("sit", "walk", "run"),
        preprocessing=Preprocessing(input_shape=(6, 16)),
    )
    key = Ed25519PrivateKey.generate()
    with pytest.raises(InputError, match="operator mean mixes"):
        export_bundle(_Mixes(lambda y: y - y.mean(0)), spec, out=tmp_path / "m.pfb", key=key)
    assert not list(tmp_path.iterdir())
