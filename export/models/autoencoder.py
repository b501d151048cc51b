"""FedHome's generative convolutional autoencoder: encoder, decoder and classifier of windows.

The paper's filters and widths are not at hand; these are this project's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from protofleet.errors import InputError


class ConvAutoencoder(nn.Module):
    """Windows (B, steps, channels) float32, or (B, …) of as many values → logits (B, classes).

    Each stage of the encoder is a convolution with ReLU and, while there are two steps left,
    pooling by 2; a dense layer gives the latent features. The decoder is its mirror image, with
    nearest-neighbour upsampling, and gives the window again. The head is one dense layer on the
    features.

    Args:
        steps: length of a window.
        channels: numbers per step; vectors of n features are n steps of 1.
        classes: C.
        filters: output channels of the convolutions.
        latent: width of the features.
        kernel: length of the convolutions, odd.

    Raises:
        InputError: no filter, or an even kernel.
    """

    def __init__(  # noqa: PLR0913 - settings by keyword
        self,
        *,
        steps: int = 128,
        channels: int = 6,
        classes: int = 6,
        filters: Sequence[int] = (32, 64),
        latent: int = 64,
        kernel: int = 5,
    ) -> None:
        super().__init__()
        if not filters or kernel % 2 == 0:
            raise InputError(
                f"autoencoder: expected a filter or more and an odd kernel, got {list(filters)} "
                f"and {kernel}"
            )
        widths, self._lengths = (channels, *filters), [steps]
        stages: list[nn.Module] = []
        for before, after in pairwise(widths):
            stages += [nn.Conv1d(before, after, kernel, padding=kernel // 2), nn.ReLU()]
            pools = self._lengths[-1] >= 2
            stages += [nn.MaxPool1d(2)] if pools else []
            self._lengths.append(self._lengths[-1] // 2 if pools else self._lengths[-1])
        self._deepest = (widths[-1], self._lengths[-1])
        size = widths[-1] * self._lengths[-1]
        self.encoder = nn.Sequential(*stages, nn.Flatten(), nn.Linear(size, latent))
        self.head = nn.Linear(latent, classes)
        self.expand = nn.Linear(latent, size)
        self.decoder = nn.ModuleList(
            nn.Conv1d(after, before, kernel, padding=kernel // 2)
            for before, after in reversed(list(pairwise(widths)))
        )

    def features(self, x: Tensor) -> Tensor:
        """The latent vector, (B, latent)."""
        windows = x.reshape(x.shape[0], self._lengths[0], -1)
        features: Tensor = self.encoder(windows.transpose(1, 2))
        return features

    def decode(self, features: Tensor) -> Tensor:
        """Windows (B, steps, channels) of latent vectors."""
        x = functional.relu(self.expand(features)).reshape(-1, *self._deepest)
        lengths = reversed(self._lengths[:-1])
        for index, (convolution, length) in enumerate(zip(self.decoder, lengths, strict=True)):
            x = functional.relu(x) if index else x
            if x.shape[2] != length:
                x = functional.interpolate(x, size=length)
            x = convolution(x)
        return x.transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits
