"""FedSub, with its layers, its clusters and its fusion in files of their own."""

from protofleet.strategies.methods.fedsub.strategy import FedSub, FedSubSettings

__all__ = ["FedSub", "FedSubSettings"]
