"""Models as ordinary PyTorch modules: ``forward(x) -> logits``, ``features(x)``, ``head``."""

from protofleet.export.catalogue import MODELS
from protofleet.export.models._registry import build_model, has_setting

__all__ = ["MODELS", "build_model", "has_setting"]
