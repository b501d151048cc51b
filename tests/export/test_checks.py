"""What is told of a model before anything takes minutes."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.errors import InputError
from protofleet.export.capture import model_tensors
from protofleet.export.checks import (
    ExpectedOutput,
    check_model,
    check_tensors,
    classification,
    expected_output,
    smallest_batch,
)
from tests.export.toys import Images, Perceptron, Signals

_X = torch.zeros(2, 5)
_CLASSES = classification(("sit", "walk", "run"))


class _Pair(NamedTuple):
    hidden: Tensor
    logits: Tensor


def _linear(width=3, **options):
    return nn.Linear(5, width, **options)


class _Returns(nn.Module):
    """``make`` of the logits."""

    def __init__(self, make):
        super().__init__()
        self.inner = _linear()
        self.make = make

    def forward(self, x: Tensor):
        return self.make(self.inner(x))


class _TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _linear()

    def forward(self, x: Tensor, lengths: Tensor, *, scale: float = 1.0):
        return self.inner(x) * lengths * scale


class _TwoHeads(nn.Module):
    """A second one that helps training only."""

    def __init__(self):
        super().__init__()
        self.head, self.helper = _linear(), _linear()

    def forward(self, x):
        return (self.head(x), self.helper(x)) if self.training else self.head(x)


class _Lucky(nn.Module):
    """Noise that torch does not know of."""

    def forward(self, x):
        return x * random.random() if self.training else x


class _Counting(nn.Module):
    """Warms up by a count that is a constant."""

    def __init__(self, dtype=torch.int64):
        super().__init__()
        self.inner = _linear()
        self.register_buffer("steps", torch.zeros((), dtype=dtype))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return self.inner(x) * (self.steps / 4).clamp(max=1)


@dataclass
class _Output:
    hidden: Tensor
    logits: Tensor


class _ModelOutput(OrderedDict):
    """As that of transformers."""


def _frozen():
    return _linear().requires_grad_(requires_grad=False)


def _unusable(value):
    model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight[0, 0] = value
    return model


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.LazyLinear(3)), r"module '0' \(.*LazyLinear\).*'weight'.*lazy; run"),
        (_linear(dtype=torch.float16), r"'weight' is torch.float16.*return model.float\(\)"),
        (_linear(dtype=torch.bfloat16), r"'weight' is torch.bfloat16.*return model.float\(\)"),
        (_linear(dtype=torch.float64), r"'weight' is torch.float64.*return model.float\(\)"),
        (_linear(dtype=torch.complex64), "complex64.*two float32 tensors"),
        (_linear(device="meta"), "device 'meta': has no values; make the model"),
        (_unusable(torch.nan), "module '0'.*'weight' holds NaN"),
        (_frozen(), "has no parameter to train"),
        (_TwoInputs(), r"test_checks.py:\d+: takes 2 inputs, x, lengths, but.*wrap"),
        (_Returns(lambda y: (y, y)), r"returns a tuple of 2.*returns self.model\(x\)\[0\]"),
        (_Returns(lambda y: _Pair(y, y)), "returns a _Pair of hidden, logits"),
        (
            _Returns(lambda y: {"loss": y.sum(), "logits": y}),
            r"returns a dict with loss, logits.*self.model\(x\)\['logits'\]",
        ),
        (_Returns(lambda y: _ModelOutput(logits=y)), r"returns a _ModelOutput with logits"),
        (_Returns(lambda y: _Output(y, y)), r"_Output with hidden, logits.*self.model\(x\).logits"),
        (_Returns(lambda _: None), "returns NoneType, expected a tensor"),
        (
            nn.Sequential(nn.ReLU(), _Lucky(), _linear()),
            r"module '1' \(.*_Lucky\): gives something else at each call.*not with random or numpy",
        ),
        (
            _Counting(),
            "buffer 'steps': training writes it and depends on it.*int64; register",
        ),
        (_TwoHeads(), r"test_checks.py:\d+: in training mode it returns a tuple of 2.*both modes"),
        (_Returns(lambda y: y.argmax(1)), "returns torch.int64.*no argmax"),
        (_Returns(lambda y: y[:, 0]), r"returns \(2,\) for 2 examples, expected \(2, classes\)"),
        (_Returns(lambda y: y[:, None]), r"returns \(2, 1, 3\).*pool the other axes"),
        (_linear(1), "returns 1 number.*of one class is always 0.*an output for each class"),
        (_linear(4), r"expected 3 numbers .*\(sit, walk, run\), got 4; set the model's size"),
        (nn.Linear(6, 3), r"model \(.*Linear\): does not take examples of shape \(5,\).*--set"),
        (
            nn.Sequential(_linear(), nn.Softmax(1)),
            r"module '1' \(.*Softmax\): the model ends with Softmax, but cross-entropy takes",
        ),
        (nn.Sequential(_linear(), nn.Sigmoid(), nn.Flatten()), "module '1'.*ends with Sigmoid"),
        (
            _Returns(lambda y: functional.softmax(y, 1).squeeze(-1)),
            r"model \(.*_Returns\), .*test_checks.py:\d+: the model ends with Softmax",
        ),
    ],
)
def test_what_cannot_work_is_told_with_the_remedy(model, said):
    with pytest.raises(InputError, match=said) as told:
        check_model(model, _X, _CLASSES)
    assert "\n" not in str(told.value)


def test_a_count_that_travels_is_taken():
    model = _Counting(torch.float32)
    check_model(model, _X, _CLASSES)
    assert model.steps == 0


def test_a_wrong_shape_names_the_module_and_the_user_s_line():
    said = r"module 'inner' \(.*Linear\), .*test_checks.py:\d+: does not take"
    with pytest.raises(InputError, match=said):
        check_model(_Returns(lambda y: y), torch.zeros(2, 7), _CLASSES)


@pytest.mark.parametrize(
    "model",
    [
        _linear(),
        nn.Sequential(_linear(), nn.LogSoftmax(1)),  # the same again: it changes nothing
        nn.Sequential(nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3)),
        _Returns(lambda y: 4 * torch.sigmoid(y)),
        Perceptron(),
    ],
)
def test_what_works_is_left_as_it_was(model):
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert check_model(model, _X, _CLASSES).shape == (2, 3)
    assert smallest_batch(model, _X) == (2 if isinstance(model, Perceptron) else 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_module_under_two_names_is_left_as_it_was():
    norm = nn.BatchNorm1d(5)
    model = nn.Sequential(norm, norm, _linear())
    tensors = dict(model.named_buffers())
    before = {name: value.clone() for name, value in tensors.items()}
    check_model(model, _X, _CLASSES)
    after = dict(model.named_buffers())
    assert all(after[name] is value for name, value in tensors.items())
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_probabilities_are_taken_where_they_are_allowed_or_asked_for():
    model = nn.Sequential(_linear(), nn.Sigmoid())
    check_model(model, _X, _CLASSES, allow_probabilities=True)
    check_model(model, _X, ExpectedOutput(loss="mean squared error", least=1, scores=False))


def _normalised(values):
    return nn.Sequential(nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(values, 3))


class _Whitened(nn.Module):
    """Normalises over the batch without any layer for it."""

    def __init__(self):
        super().__init__()
        self.head = _linear()

    def forward(self, x):
        return self.head(x / x.std(0))


@pytest.mark.parametrize(
    ("model", "x", "least"),
    [
        (Images(), torch.zeros(2, 4, 13, 12), 1),
        (Signals(), torch.zeros(2, 6, 50), 1),
        (_normalised(300), torch.ones(2, 6, 50), 1),
        (_normalised(6), torch.ones(2, 6, 1), 2),
        (nn.Sequential(nn.BatchNorm1d(5, track_running_stats=False), _linear()), _X, 2),
        (_Whitened(), torch.tensor([[1.0, 2, 3, 4, 5], [2, 4, 6, 8, 9]]), 2),
    ],
)
def test_a_batch_of_one_is_too_small_where_one_example_has_no_variance(model, x, least):
    assert smallest_batch(model, x) == least


def test_tensors_are_checked_without_an_example():
    broken = Perceptron()
    check_tensors(broken)
    broken.norm.running_var.fill_(torch.nan)
    with pytest.raises(InputError, match=r"module 'norm'.*buffer 'running_var' holds NaN"):
        check_tensors(broken)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("left arm", r"module 'left arm' .*parameter 'left arm.weight': .*no space: got ' ' in"),
        ("a\u200bb", r"got '\\u200b' in 'a\\u200bb'; rename that attribute or key"),
        ("a\nb", r"letters of any script .*got '\\n' in"),
        ("x" * 300, "in 1 to 256 printable characters, .*got 307 in"),
    ],
)
def test_a_name_that_no_tensor_may_have_is_told_with_its_module(name, said):
    model = nn.Sequential(OrderedDict({name: _linear()}))
    with pytest.raises(InputError, match=said) as told:
        check_model(model, _X, _CLASSES)
    assert str(told.value).isprintable()


@pytest.mark.parametrize("name", ["schluß", "層", "e\u0301", "a/b"])
def test_letters_of_any_script_name_tensors(name):
    check_model(nn.Sequential(OrderedDict({name: _linear()})), _X, _CLASSES)


class _Masked(nn.Module):
    """Minus infinity above the diagonal, as attention has it."""

    def __init__(self, *, persistent: bool = True) -> None:
        super().__init__()
        self.head = _linear()
        mask = torch.full((5, 5), -torch.inf).triu(1)
        self.register_buffer("mask", mask, persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.softmax(x[:, None] + self.mask, 2).sum(1))


class _Lowest(nn.Module):
    """Keeps the largest values that it saw, from minus infinity on."""

    def __init__(self) -> None:
        super().__init__()
        self.head = _linear()
        self.register_buffer("highest", torch.full((5,), -torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.highest = torch.maximum(self.highest, x.detach().amax(0))
        return self.head(x)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_mask_of_infinities_is_a_constant_whether_it_is_kept_or_not(persistent):
    model = _Masked(persistent=persistent)
    check_model(model, _X, _CLASSES)
    tensors = model_tensors(model)
    assert tensors.constants.keys() == {"mask"}
    assert not tensors.buffers
    normed = nn.Sequential(nn.BatchNorm1d(5), model)
    assert smallest_batch(normed, _X) == 2


def test_what_training_writes_must_be_finite():
    model = _Lowest()
    with pytest.raises(InputError, match=r"buffer 'highest': .*training writes it.*-1e9"):
        check_model(model, _X, _CLASSES)
    assert torch.isinf(model.highest).all()
    masked = _Masked()
    masked.mask[0, 0] = torch.nan
    with pytest.raises(InputError, match="buffer 'mask' holds NaN"):
        check_model(masked, _X, _CLASSES)


@pytest.mark.parametrize(
    ("task", "make", "said"),
    [
        (
            "regression",
            lambda y: y[:, 0],
            r"\(2, targets\); keep an axis .* a single one is \(n, 1\)",
        ),
        ("multilabel", lambda y: y[:, 0], r"\(2, labels\); keep an axis for the labels"),
        ("regression", lambda y: y.flatten(0), r"expected \(2, targets\); keep the batch axis"),
        ("regression", lambda y: (y, y), r"expected a tensor of values \(n, targets\); wrap"),
        ("multilabel", lambda _: None, r"expected a tensor of logits \(n, labels\)"),
        ("regression", lambda y: y.argmax(1), "expected float32 values"),
    ],
)
def test_other_tasks_are_told_in_their_own_words(task, make, said):
    with pytest.raises(InputError, match=said) as told:
        check_model(_Returns(make), _X, expected_output(task))
    assert "class" not in str(told.value)


@pytest.mark.parametrize("leave", [Tensor.numpy, np.asarray, Tensor.tolist])
def test_arrays_of_numpy_in_a_forward_are_told_with_the_line(leave):
    model = _Returns(lambda y: torch.tensor(leave(y)))
    with pytest.raises(
        InputError, match=r"_Returns\), .*test_checks.py:\d+: .*use torch's functions"
    ):
        check_model(model, _X, _CLASSES)
