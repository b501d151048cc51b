"""The smallest model with an alignment layer: rows of a digit are its tokens."""

import torch

from protofleet.export.models.alp import Alignment


class AlignedRows(torch.nn.Module):
    """Digits (B, 1, 8, 8) → (B, classes): eight tokens of eight pixels, aligned, and their mean."""

    def __init__(self, classes):
        super().__init__()
        self.align = Alignment(8, 4)
        self.register_buffer("beta", torch.tensor(0.2))
        self.head = torch.nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.align(x.flatten(1, 2), self.beta).mean(1))


def build(*, classes):
    """For experiments: ``aligned_rows:build``."""
    return AlignedRows(classes)
