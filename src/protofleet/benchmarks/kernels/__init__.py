"""Kernels against what one would use instead: ``protofleet bench kernels``."""
