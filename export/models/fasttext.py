"""Text classifier of FedALA's AG News experiment: the mean of word vectors, one linear layer.

Sources: FedALA (Zhang et al., AAAI 2023), hidden width 32, vocabulary 98 635; Joulin et al., "Bag
of Tricks for Efficient Text Classification", arXiv:1607.01759.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FastText(nn.Module):
    """Texts (B, length) float32 → logits (B, classes); any length.

    Entries are whole numbers: words from 1 to ``vocabulary`` - 1, and 0 for padding, which no mean
    counts. A text of padding alone has features of 0.

    Args:
        vocabulary: number of words, padding included.
        width: of a word vector.
        classes: C.
    """

    def __init__(self, *, vocabulary: int = 98_635, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """Mean vector of a text's words, (B, width)."""
        words = x.to(torch.int64)
        counted = (words != 0).to(x.dtype)
        shares = counted / counted.sum(1, keepdim=True).clamp(min=1)
        mean: Tensor = (shares[:, None] @ self.embedding(words)).squeeze(1)
        return mean

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits
