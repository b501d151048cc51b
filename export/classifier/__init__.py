"""Any module as a classifier with parts: its features, its head, its hidden layers."""

from protofleet.export.classifier.layers import LayerPart
from protofleet.export.classifier.parts import Parts, find_parts
from protofleet.export.classifier.view import ClassifierView

__all__ = ["ClassifierView", "LayerPart", "Parts", "find_parts"]
