"""What a device pays for parts of a trained model: what trains, what travels, time and memory.

Each model is frozen but for some of its parameters (``protofleet.freeze``), in ways that people
fine-tune by. Steps of all ways are taken in turns, beside those that train every layer; the peak of
memory is that of a process of its own that makes one round of FedAvg.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

from protofleet.benchmarks._models import OBJECTIVE, Case, Exported, export_model, matching
from protofleet.benchmarks._rows import Row, paired_row
from protofleet.benchmarks._timing import in_turns
from protofleet.benchmarks.memory import local_round_figures
from protofleet.export.freezing import freeze
from protofleet.export.models import build_model
from protofleet.runtime import open_programs
from protofleet.strategies.types import Batch

_RANK, _WIDTH = 4, 16
_ALL = "all layers"


class LowRank(nn.Module):
    """A dense layer and a product of two thin ones beside it (LoRA, arXiv:2106.09685)."""

    def __init__(self, layer: nn.Linear, rank: int = _RANK) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """As the layer, at the start."""
        y: Tensor = self.layer(x) + self.up(self.down(x))
        return y


class Adapter(nn.Module):
    """A block and a bottleneck behind it, beside which its result passes (arXiv:1902.00751)."""

    def __init__(self, block: nn.Module, features: int, width: int = _WIDTH) -> None:
        super().__init__()
        self.block = block
        last = nn.Linear(width, features)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.adapter = nn.Sequential(nn.Linear(features, width), nn.GELU(), last)

    def forward(self, x: Tensor) -> Tensor:
        """As the block, at the start."""
        y: Tensor = self.block(x)
        moved: Tensor = self.adapter(y)
        return y + moved


class Transformer(nn.Module):
    """Six blocks of 64 features over windows of 128 steps and 6 channels; 8 steps are a token."""

    def __init__(self, classes: int = 6) -> None:
        super().__init__()
        self.embed = nn.Conv1d(6, 64, 8, 8)
        self.place = nn.Parameter(torch.randn(16, 64) / 50)
        block = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 6, enable_nested_tensor=False)
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        tokens = self.embed(x.transpose(1, 2)).transpose(1, 2) + self.place
        logits: Tensor = self.head(self.blocks(tokens).mean(1))
        return logits


def _with_low_rank(model: nn.Module) -> list[str]:
    """Beside every dense layer of which a module makes no more than a call."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and not name.startswith("head"):
            model.set_submodule(name, LowRank(module))
    return ["*.up", "*.down", "head"]


def _with_adapters(model: nn.Module) -> list[str]:
    """Behind the blocks' last dense layers."""
    for name, module in list(model.named_modules()):
        if name.endswith((".linear2", ".mlp")):
            *_, last = (part for part in module.modules() if isinstance(part, nn.Linear))
            model.set_submodule(name, Adapter(module, last.out_features))
    return ["*.adapter", "head"]


WAYS: Mapping[str, Callable[[nn.Module], list[str]]] = {
    _ALL: lambda _: ["*"],
    "head": lambda _: ["head"],
    "biases, norms and head": lambda _: ["*bias", "*norm*.weight", "head"],
    f"LoRA of rank {_RANK}, and head": _with_low_rank,
    f"adapters of {_WIDTH}, and head": _with_adapters,
}
"""What each way does to a model, and the names of what then trains."""

_CASES = (
    Case(
        name="HART, batch 64",
        spec="hart",
        input_shape=(128, 6),
        batch=64,
        settings={"classes": 6},
    ),
    Case(
        name="Transformer of 6 blocks, batch 64",
        spec=f"{__name__}:Transformer",
        input_shape=(128, 6),
        batch=64,
    ),
)


def run(*, quick: bool, only: Sequence[str] = ()) -> Iterator[list[Row]]:
    """Each model's rows, one for each way.

    Args:
        quick: the transformer alone, few samples.
        only: models with one of these in their names; empty: all.

    Raises:
        InputError: there is no such model.
    """
    names = matching((case.name for case in _CASES), only)
    cases = [case for case in _CASES if case.name in names]
    return (_case(case, 5 if quick else 15) for case in (cases[-1:] if quick else cases))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tuned:
    """A model that trains in one way.

    Attributes:
        exported: its programs.
        tensors: how many train.
    """

    exported: Exported
    tensors: int


def _case(case: Case, repeats: int) -> list[Row]:
    tuned = {name: _tuned(case, way) for name, way in WAYS.items()}
    steps = {name: _step(one.exported) for name, one in tuned.items()}
    samples = in_turns(steps, repeats=repeats)
    whole = tuned[_ALL].exported.model().params.layout.size
    rows = []
    for name, one in tuned.items():
        params = one.exported.model().params.layout.size
        row = paired_row(
            ("finetuning", f"{case.name}: {name}"),
            1,
            samples[name],
            baseline=_ALL,
            theirs=samples[_ALL],
        )
        row.details.update(
            params=params,
            tensors=one.tensors,
            share_of_params=round(params / whole, 4),
            kilobytes_each_way=round(4 * params / 1000, 1),
            **_memory(one.exported),
        )
        rows.append(row)
    return rows


def _tuned(case: Case, way: Callable[[nn.Module], list[str]]) -> _Tuned:
    torch.manual_seed(0)
    model = build_model(case.spec, **case.settings)
    names = freeze(model, way(model))
    return _Tuned(exported=export_model(model, case), tensors=len(names))


def _step(exported: Exported) -> Callable[[], object]:
    grad_fn = open_programs(exported, threads=1, backend="onnx").grad_fns[OBJECTIVE]
    network = exported.model().network
    batch: Batch = {"x": exported.x, "y": exported.y}
    rng = np.random.default_rng(0)
    return lambda: grad_fn(network, batch, rng)


def _memory(exported: Exported) -> dict[str, float]:
    """Of a device's process that makes a round: its peak, and what of that came after imports."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pfb"
        exported.write(path, Ed25519PrivateKey.generate())
        found = local_round_figures(path, 128, backend="onnx", numba=False)
    peak = found["peak_rss_mb"]
    return {"peak_rss_mb": peak, "training_mb": round(peak - found["imported_rss_mb"], 1)}
