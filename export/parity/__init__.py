"""Proves that a written program computes what the PyTorch module computes."""

from protofleet.export.parity.check import (
    TOLERANCE,
    ParityRecord,
    check_parity,
    stock_runner,
)
from protofleet.export.parity.device import device_runner
from protofleet.export.parity.failures import failures_told
from protofleet.export.parity.inputs import Runner

__all__ = [
    "TOLERANCE",
    "ParityRecord",
    "Runner",
    "check_parity",
    "device_runner",
    "failures_told",
    "stock_runner",
]
