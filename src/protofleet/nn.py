"""What a PyTorch model can be given for strategies; needs ``protofleet[export]``."""

from protofleet.export.classifier.align import AlignedOutput, align
from protofleet.export.models.layers import PrototypeHead

__all__ = ["AlignedOutput", "PrototypeHead", "align"]
