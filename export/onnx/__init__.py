"""Writes captured programs as ONNX models that any ONNX Runtime runs."""

from protofleet.export.onnx.write import to_onnx

__all__ = ["to_onnx"]
