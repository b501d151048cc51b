"""Models as ordinary PyTorch modules: ``forward(x) -> logits``, ``features(x)``, ``head``."""

from protofleet.export.models._registry import MODELS, build_model

__all__ = ["MODELS", "build_model"]
