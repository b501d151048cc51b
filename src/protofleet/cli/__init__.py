"""The ``protofleet`` command: parse, call, print."""

from protofleet.cli.main import main

__all__ = ["main"]
