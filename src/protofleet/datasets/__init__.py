"""Loaders for published formats, partitioning, and one device's data.

Loaders live in modules of their own (``datasets.ucihar``, ``datasets.wisdm``,
``datasets.digits``), so that a device loads only what it uses.
"""

from protofleet.datasets.device_data import DeviceData, load_device_data, load_pooled

__all__ = ["DeviceData", "load_device_data", "load_pooled"]
