"""Which parts are found in models of people's own, and that they are the model's."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.errors import ExportError, InputError
from protofleet.export.capture import capture
from protofleet.export.classifier import ClassifierView, LayerPart, find_parts
from protofleet.export.models import build_model
from protofleet.export.models.layers import PrototypeHead
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import check_parity
from tests.export.users_models import Encoder, Images, Tcn, Tied, TwoHeads, perceptron


def _layer(name: str, before: str | None = None, *, hidden: bool = True) -> LayerPart:
    return LayerPart(name=name, before=before, hidden=hidden)


_FOUND = {
    "perceptron": (perceptron, (9,), "5", ["5.weight", "5.bias"], 8),
    "images": (
        Images,
        (1, 12, 12),
        "classifier.3",
        ["classifier.3.weight", "classifier.3.bias"],
        8,
    ),
    "encoder": (Encoder, (10, 6), "fc", ["fc.weight", "fc.bias"], 8),
    "tcn": (Tcn, (6, 20), "out", ["scale", "out.weight", "out.bias"], 8),
}


@pytest.mark.parametrize("name", _FOUND)
def test_the_head_is_the_last_linear_and_what_follows_it(name: str) -> None:
    """Features are what goes in; head(features(x)) are the model's logits, to the bit."""
    make, shape, head, params, width = _FOUND[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(4, *shape)
    modes = [module.training for module in model.modules()]
    parts = find_parts(model, x)
    assert (parts.head, list(parts.head_params), parts.missing) == (head, params, "")
    assert [module.training for module in model.modules()] == modes
    model.eval()
    view = ClassifierView(model, parts)
    features = view.features(x)
    assert features.shape == (4, width)
    torch.testing.assert_close(view.head(features), model(x), rtol=0, atol=0)
    with pytest.raises(ExportError, match=r"expected head\(features\(x\)\)"):
        view.head(features.clone())


@pytest.mark.parametrize("name", ["perceptron", "images", "encoder"])
def test_the_head_alone_classifies_features_that_no_example_gave(name: str) -> None:
    make, shape, _, _, width = _FOUND[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(4, *shape)
    view = ClassifierView(model, find_parts(model, x))
    assert view.cannot_classify(x) == ""
    features = view.features(x)
    torch.testing.assert_close(view.classify(features), model(x))
    assert view.classify(torch.randn(7, width)).shape == (7, model(x).shape[1])


def _mobile() -> nn.Sequential:
    """ReLU6, a depthwise convolution, and a reordering of its outputs."""
    return nn.Sequential(
        nn.Conv1d(1, 4, 3, bias=False),
        nn.ReLU6(),
        nn.Conv1d(4, 4, 3),
        nn.Hardswish(),
        _Turned(),
        nn.Linear(20, 3),
    )


class _Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(1)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (perceptron, [_layer("0"), _layer("3", "0"), _layer("5", "3", hidden=False)]),
        (
            Images,
            [
                _layer("features.0"),
                _layer("features.4", "features.0"),
                _layer("classifier.0", "features.4"),
                _layer("classifier.3", "classifier.0", hidden=False),
            ],
        ),
        (Tcn, [_layer("stem"), _layer("blocks.0.conv", "stem")]),
        (TwoHeads, [_layer("body"), _layer("first", "body", hidden=False)]),
        (_mobile, [_layer("0"), _layer("2", "0"), _layer("5", hidden=False)]),
    ],
)
def test_hidden_layers_are_those_with_a_rectifier(make: type, expected: list[LayerPart]) -> None:
    """Batch norm, pooling and flattening may stand between; a sum of two tensors ends a chain."""
    shapes = {perceptron: (9,), Images: (1, 12, 12), Tcn: (6, 20), TwoHeads: (5,), _mobile: (1, 9)}
    layers = find_parts(make(), torch.zeros(2, *shapes[make])).layers
    assert list(layers[: len(expected)]) == expected


def test_activations_are_means_over_positions() -> None:
    """Of a convolution's channels, behind its batch norm and ReLU."""
    torch.manual_seed(0)
    model, x = Images().eval(), torch.randn(4, 1, 12, 12)
    outputs = ClassifierView(model, find_parts(model, x)).outputs(x, layers=True)
    assert list(outputs)[2:] == ["layers.features.0", "layers.features.4", "layers.classifier.0"]
    first = torch.relu(model.features[1](model.features[0](x))).mean((2, 3))
    torch.testing.assert_close(outputs["layers.features.0"], first)
    torch.testing.assert_close(outputs["layers.classifier.0"], outputs["features"])


@pytest.mark.parametrize(
    ("make", "why", "name", "params"),
    [
        (Tied, "'lm_head' shares 'first.weight'.*--head NAME", "lm_head", 2),
        (TwoHeads, r"several heads: .* first, second .*--head second", "first", 2),
    ],
)
def test_a_doubtful_head_is_asked_for_by_name(
    make: type[nn.Module], why: str, name: str, params: int
) -> None:
    """Without a name there are no features, and the reason says what to do; a name settles it."""
    model, x = make(), torch.randn(2, 5)
    parts = find_parts(model, x)
    assert parts.head is None
    with pytest.raises(ExportError, match=why):
        ClassifierView(model, parts).features(x)
    named = find_parts(model, x, head=name)
    assert named.head == name
    assert len(named.head_params) == params
    view = ClassifierView(model, named)
    torch.testing.assert_close(view.head(view.features(x)), model(x))


def test_a_head_that_is_no_module_or_does_not_run_is_refused() -> None:
    """The message lists the linear ones."""
    with pytest.raises(InputError, match=r"--head fc: no such module .* body, first, second"):
        find_parts(TwoHeads(), torch.zeros(2, 5), head="fc")
    twice = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with pytest.raises(InputError, match=r"--head 0: expected a module that runs once.* 2 times"):
        find_parts(twice.append(twice[0]), torch.zeros(2, 4), head="0")


def test_a_convolution_as_the_last_layer_is_asked_for() -> None:
    """Named, what goes into it is the features, flattened."""
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Conv1d(3, 4, 5), nn.Flatten())
    x = torch.randn(2, 2, 7)
    parts = find_parts(model, x)
    assert "no torch.nn.Linear" in parts.missing
    view = ClassifierView(model, find_parts(model, x, head="2"))
    assert view.features(x).shape == (2, 15)


class _Cosine(nn.Module):
    """(B, 5) → (B, 3), cosine similarities with vectors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.classes = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        rows = functional.normalize(torch.relu(self.body(x)))
        return rows @ functional.normalize(self.classes).T


class _Stem(nn.Module):
    """(B, 8, 5) → (B, 3), a linear stem before convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Linear(5, 4), nn.Conv1d(4, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.stem(x).transpose(1, 2)).mean(2)


@pytest.mark.parametrize(
    ("make", "shape", "weight"),
    [(_Cosine, (5,), "classes"), (_Stem, (8, 5), "out.weight")],
)
def test_a_linear_layer_before_another_layer_is_no_head(
    make: type[nn.Module], shape: tuple[int, ...], weight: str
) -> None:
    """Else its features would be the example itself, and nearly all parameters its head's."""
    parts = find_parts(make(), torch.randn(2, *shape))
    assert parts.head is None
    assert f"'{weight}' makes the logits behind it" in parts.missing
    assert "--head NAME" in parts.missing


class _Misleading(nn.Module):
    """Methods of the right names that mean something else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 4), nn.Linear(4, 4)
        self.last = nn.Linear(4, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.head(self.features(x))))


def test_own_methods_count_if_they_give_the_logits() -> None:
    """HART's head has two dense layers, and keeps both."""
    assert find_parts(_Misleading(), torch.zeros(2, 5)).head == "last"
    hart = build_model("hart", width=32, kernels=[3], head_width=16)
    parts = find_parts(hart, torch.zeros(2, 128, 6))
    assert parts.head == ""
    assert {name.rpartition(".")[0] for name in parts.head_params} == {"head.0", "head.3"}


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("objective", ["moon", "prototype_mse", "cdfl"])
def test_objectives_of_features_pass_parity_with_dropout_in_the_head(objective: str) -> None:
    """The head is named, so its dropout runs; CDFL's second pass has noise that nobody needs."""
    torch.manual_seed(0)
    model = Images()
    example = {
        "x": torch.zeros(4, 1, 12, 12),
        "z": torch.zeros(4, 1, 12, 12),
        "y": torch.zeros(4, dtype=torch.int64),
        **{name: torch.zeros(4, 24) for name in ("positive", "negative", "teacher", "centroids")},
        "prototypes": torch.zeros(3, 24),
        "present": torch.zeros(3),
    }
    known = OBJECTIVES[objective].inputs
    batch = {key: example.get(key, torch.tensor(0.0)) for key in known}
    parts = find_parts(model, example["x"], head="classifier")
    program = capture(model, OBJECTIVES[objective], batch, parts=parts)
    assert sum(port.role == "noise" for port in program.inputs) == 1
    check_parity(model, program, to_onnx(program, name="train"), name="train")


class _Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.out = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + torch.relu(self.block(x))
        return self.out(x)


class _Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x[..., None])[0][:, -1])


class _Channels(nn.Module):
    """Every channel is an example of its own to the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.out = nn.Linear(1, 4), nn.Linear(5 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        channels = torch.relu(self.block(x.reshape(-1, 1)))
        return self.out(channels.reshape(len(x), -1))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), ""),
        (
            nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)),
            "tanh behind '0'",
        ),
        (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), "linear behind '0'"),
        (_Repeated(), "several runs of 'block' in a pass"),
        (_Steps(), "LSTM 'rnn'"),
        (_Channels(), "several rows of each example in 'block'"),
        (TwoHeads(), "no head: several heads: .* --head second"),
        (nn.Sequential(nn.Linear(5, 4), nn.ReLU(), PrototypeHead(4, 3)), "a head of 2.prototypes"),
    ],
)
def test_what_stands_in_the_place_of_hidden_layers_is_told(model: nn.Module, told: str) -> None:
    assert re.fullmatch(told, find_parts(model, torch.randn(2, 5)).no_layers)
