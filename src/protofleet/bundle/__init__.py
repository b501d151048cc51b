"""Signed bundles: what a federation's devices run, and how it is checked (``docs/bundle.md``)."""

from protofleet.bundle.bundle import MAX_MANIFEST_BYTES, SUFFIX, Bundle, write_bundle

__all__ = ["MAX_MANIFEST_BYTES", "SUFFIX", "Bundle", "write_bundle"]
