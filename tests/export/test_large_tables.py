"""Fixed tables above a program's limit: once in the bundle, not trained, not sent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import protofleet as pf
from protofleet.errors import ExportError
from protofleet.export.capture.limits import MAX_CONSTANT_BYTES
from protofleet.export.large_tables import large_tables_as_buffers

WIDE = 300
SHAPE = (4, WIDE)


class _FilterBank(nn.Module):
    """A table as a plain attribute, as audio models keep their mel filters."""

    def __init__(self, *, registered: bool = False) -> None:
        super().__init__()
        table = torch.randn(WIDE, 64) / WIDE
        if registered:
            self.register_buffer("mel", table, persistent=False)
        else:
            self.mel = table
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.log1p((x @ self.mel).abs()).mean(1))


class _RelativeBias(nn.Module):
    """Swin's relative positions: a small table looked up by a large one of whole numbers."""

    def __init__(self, n: int = 12) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn((2 * n - 1) ** 2, 2) / 4)
        at = torch.stack(torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")).flatten(1)
        rel = (at[:, :, None] - at[:, None]) + n - 1
        self.register_buffer("index", rel[0] * (2 * n - 1) + rel[1])
        self.n, self.head = n * n, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.table[self.index.view(-1)].view(self.n, self.n, 2).permute(2, 0, 1).mean(0)
        return self.head((torch.softmax(x @ x.transpose(1, 2) + bias, -1) @ x).mean(1))


@pytest.mark.parametrize("registered", [False, True])
def test_a_filter_bank_lies_once_in_the_bundle(tmp_path: Path, *, registered: bool) -> None:
    model = _FilterBank(registered=registered)
    report = pf.export_model(model, tmp_path / "m.pfb", strategy="fedavg", input_shape=SHAPE)
    assert not report.left_out
    assert report.state == WIDE * 64
    table = 4 * WIDE * 64
    assert table > MAX_CONSTANT_BYTES
    assert table < (tmp_path / "m.pfb").stat().st_size < 2 * table
    assert list(model.state_dict()) == ["head.weight", "head.bias"]
    assert ("mel" in vars(model)) is not registered


def test_a_table_of_rows_belongs_to_the_program(tmp_path: Path) -> None:
    """The gradient of its lookup is a sum over whole numbers too."""
    report = pf.export_model(
        _RelativeBias(), tmp_path / "m.pfb", strategy="fedavg", input_shape=(144, 3)
    )
    assert not report.left_out
    assert report.state == 0


def test_what_a_forward_pass_keeps_is_no_table() -> None:
    """Its shape is that of the batch which came last."""

    class Keeps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.seen = x.detach().clone()
            return x

    model, x = Keeps(), torch.randn(2, 20_000)
    model(x)
    with large_tables_as_buffers(model, x):
        assert not dict(model.named_buffers())


def test_a_table_in_a_list_names_its_line(tmp_path: Path) -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = [torch.randn(WIDE, 64)]
            self.head = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x @ self.tables[0]).mean(1))

    with pytest.raises(ExportError, match=r"test_large_tables.*: constant of shape \(300, 64\)"):
        pf.export_model(Listed(), tmp_path / "m.pfb", strategy="fedavg", input_shape=SHAPE)


def test_autocast_is_float32_on_devices_and_told(tmp_path: Path) -> None:
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(12, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = torch.relu(self.body(x))
            return self.head(h.float())

    model = Narrow()
    report = pf.export_model(model, tmp_path / "m.pfb", strategy="fedavg", input_shape=(12,))
    assert not report.left_out
    (note,) = report.notes
    assert "test_large_tables.py:" in note
    assert "autocast" in note
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.body(torch.randn(2, 12)).dtype == torch.bfloat16
