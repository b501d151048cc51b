"""The demonstration: pretrain, export, run a fleet, report; each step is a public command."""

from protofleet.demo.run import run_demo
from protofleet.demo.settings import DemoSettings, has_settings, load_settings

__all__ = ["DemoSettings", "has_settings", "load_settings", "run_demo"]
