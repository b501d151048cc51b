"""FedSub, with its layers, its clusters and its fusion in files of their own."""

from protofleet.strategies.methods.fedsub.strategy import DESCRIPTION, FedSubSettings, build

__all__ = ["DESCRIPTION", "FedSubSettings", "build"]
