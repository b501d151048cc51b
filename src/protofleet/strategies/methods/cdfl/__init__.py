"""CDFL, with its client, its server and its settings in files of their own."""

from protofleet.strategies.methods.cdfl.settings import CdflSettings
from protofleet.strategies.methods.cdfl.strategy import Cdfl

__all__ = ["Cdfl", "CdflSettings"]
