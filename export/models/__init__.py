"""Models as ordinary PyTorch modules: ``forward(x) -> logits``, ``features(x)``, ``head``."""

from protofleet.export.catalogue import MODELS
from protofleet.export.models._registry import build_model, described, has_setting, settings_of

__all__ = ["MODELS", "build_model", "described", "has_setting", "settings_of"]
