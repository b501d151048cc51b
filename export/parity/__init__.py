"""Proves that a written program computes what the PyTorch module computes."""

from protofleet.export.parity.check import (
    TOLERANCE,
    ParityRecord,
    Runner,
    check_parity,
    stock_runner,
)
from protofleet.export.parity.device import device_runner

__all__ = ["TOLERANCE", "ParityRecord", "Runner", "check_parity", "device_runner", "stock_runner"]
