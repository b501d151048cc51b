"""Examples for central training, and the settings of a small HART."""

from __future__ import annotations

import numpy as np
import torch

HART = {"kernels": (3, 7), "width": 32, "head_width": 16, "heads": 2}


def blobs(count=120, width=4):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, count)
    x = rng.standard_normal((count, width)) + 3 * np.eye(3, width)[y]
    return {"x": torch.tensor(x, dtype=torch.float32), "y": torch.from_numpy(y)}


def waves(count=96):
    """Windows of six sines of one frequency and random phases: hidden patches can be guessed."""
    rng = np.random.default_rng(0)
    phase = rng.uniform(0, 6.28, (count, 1, 6))
    x = np.sin(np.arange(128)[None, :, None] * 0.3926991 + phase)
    return {"x": torch.tensor(x, dtype=torch.float32)}
