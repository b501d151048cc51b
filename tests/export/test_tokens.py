"""Models that take int64 examples: found, exported, trained and pretrained as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from protofleet.bundle import Bundle
from protofleet.cli.export import export
from protofleet.cli.pretrain import pretrain
from protofleet.errors import ExportError, InputError
from protofleet.export.capture import capture
from protofleet.export.models import build_model
from protofleet.export.parity.reference import Reference
from protofleet.export.tokens import find_tokens
from protofleet.runtime import open_programs
from protofleet.tensors import Network
from tests.export.token_models import CLASSES, LENGTH, TOKENS, Words

pytestmark = pytest.mark.slow(seconds=6)

_MODEL = "tests.export.token_models:Words"


class _ByFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 3))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.embedding(x, self.table).mean(1)


def test_the_table_of_the_examples_is_found_and_not_that_of_positions() -> None:
    assert find_tokens(Words(), (LENGTH,)) == TOKENS


def test_a_model_that_takes_float32_has_no_tokens() -> None:
    """Nor has one that turns them into words itself."""
    assert find_tokens(nn.Linear(4, 3), (4,)) is None
    assert find_tokens(build_model("fasttext", vocabulary=50, width=8), (12,)) is None


class _FailsOnPadding(Words):
    def forward(self, x: Tensor) -> Tensor:
        if not bool(x.any()):
            raise ValueError("nothing but padding")
        return super().forward(x)


def test_a_model_that_fails_on_nothing_but_padding_takes_tokens() -> None:
    assert find_tokens(_FailsOnPadding(), (LENGTH,)) == TOKENS


def test_a_table_that_is_no_module_is_asked_for() -> None:
    with pytest.raises(ExportError, match="say how many tokens there are with --tokens"):
        find_tokens(_ByFunction(), (5,))


class _Casts(Words):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.long())


class _CastsInside(_Casts):
    vocabulary = TOKENS


class _Quantises(Words):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(0, TOKENS - 1).long())


def test_a_model_that_casts_its_examples_takes_tokens() -> None:
    """Unless it says by ``vocabulary`` that they come as float32; one that quantises takes any."""
    assert find_tokens(_Casts(), (LENGTH,)) == TOKENS
    assert find_tokens(_CastsInside(), (LENGTH,)) is None
    assert find_tokens(_Quantises(), (LENGTH,)) is None


class _Mixed(nn.Module):
    """A kind of place, which it looks up, and three readings."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.out = nn.Embedding(5, 8), nn.Linear(11, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.kinds(x[:, 0].long()), x[:, 1:]], -1))


def test_a_model_that_fails_on_other_numbers_is_told_of_vocabulary() -> None:
    program = capture(_Mixed(), None, {"x": torch.zeros(4, 4)})
    reference = Reference(_Mixed(), program)
    with pytest.raises(ExportError, match=r"random numbers: index out of range.*'vocabulary'"):
        reference(reference.draw(8, np.random.default_rng(0)))


def test_more_tokens_than_the_table_has_rows_are_refused(tmp_path: Path) -> None:
    arguments = [_MODEL, "--strategy", "fedavg", "--input-shape", str(LENGTH), "--tokens", "500"]
    result = CliRunner().invoke(export, [*arguments, "--out", str(tmp_path / "a.pfb")])
    assert isinstance(result.exception, InputError)
    assert "tokens: expected at most 50" in str(result.exception)


@pytest.mark.parametrize("wrong", [TOKENS, -1, 0.5])
def test_central_data_with_other_tokens_are_refused(tmp_path: Path, wrong: float) -> None:
    x = _texts(30)
    x[-1, 3] = wrong
    data = tmp_path / "texts.npz"
    np.savez(data, x=x, y=np.arange(30) % CLASSES)
    arguments = ["--model", _MODEL, "--data", str(data), "--out", str(tmp_path / "central")]
    result = CliRunner().invoke(pretrain, arguments)
    assert isinstance(result.exception, InputError)
    assert "expected tokens, whole numbers from 0 to 49" in str(result.exception)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """What the command writes of the model as it is."""
    out = tmp_path_factory.mktemp("tokens") / "words.pfb"
    arguments = [_MODEL, "--strategy", "fedavg", "--input-shape", str(LENGTH)]
    result = CliRunner().invoke(export, [*arguments, "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"int64 examples: {TOKENS} tokens" in result.output
    return Bundle.open(out, any_signer=True)


def _texts(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, TOKENS, (count, LENGTH)).astype(np.float32)


@pytest.mark.parametrize("backend", ["onnx", "litert"])
def test_words_in_float32_train_and_infer_in_both_runtimes(bundle: Bundle, backend: str) -> None:
    """Examples are kept in float32 everywhere; programs get int64."""
    programs = open_programs(bundle, backend=backend)
    assert bundle.manifest.preprocessing.tokens == TOKENS
    network, x = bundle.model().network, _texts(9)
    y = np.arange(9, dtype=np.int64) % CLASSES
    losses = []
    for _ in range(60):
        step = programs.grad_fns["cross_entropy"](
            network, {"x": x, "y": y}, np.random.default_rng(0)
        )
        losses.append(step.loss)
        params = network.params.copy()
        params.buffer[...] -= 2.0 * step.grads.buffer
        network = Network(params=params, buffers=network.buffers)
    assert losses[-1] < losses[0] / 2
    with pytest.raises(InputError, match=r"input 'x': expected .* int64, got .* float32"):
        programs.predict(network, x + 0.5)


def test_tokens_are_pretrained_from_integers_of_any_kind(tmp_path: Path) -> None:
    data = tmp_path / "texts.npz"
    np.savez(data, x=_texts(30).astype(np.int16), y=np.arange(30) % CLASSES)
    arguments = ["--model", _MODEL, "--data", str(data), "--out", str(tmp_path / "central")]
    result = CliRunner().invoke(pretrain, [*arguments, "--epochs", "1"])
    assert result.exit_code == 0, result.output


class _Masked(nn.Module):
    """PyTorch's encoder as it comes, told which words are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, 16, padding_idx=0)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1
        )

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.encoder(self.words(x), src_key_padding_mask=x == 0)
        return rows.mean(1)


def test_padding_is_masked_in_evaluation_too() -> None:
    """PyTorch's fast path would leave it out, and sizes would depend on the words."""
    program = capture(_Masked(), None, {"x": torch.ones(4, LENGTH, dtype=torch.int64)})
    assert program.outputs[0].shape == ("batch", 16)
    assert torch.backends.mha.get_fastpath_enabled()
