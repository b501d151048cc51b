"""Personalised federated learning on real devices."""

from importlib.metadata import version

__version__ = version("protofleet")
