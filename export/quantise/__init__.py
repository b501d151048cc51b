"""Programs with the weights inside: in half precision, or computing with 8 bits."""

from protofleet.export.quantise.draft import Backend, Draft, quantise
from protofleet.export.quantise.measure import Measured, check_loss, doubts, measure

__all__ = ["Backend", "Draft", "Measured", "check_loss", "doubts", "measure", "quantise"]
