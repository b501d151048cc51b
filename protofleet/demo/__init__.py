"""The demonstration: pretrain, export, run a fleet, report; each step is a public command."""

from protofleet.demo.run import run_demo
from protofleet.demo.settings import DemoSettings, begun, load_settings

__all__ = ["DemoSettings", "begun", "load_settings", "run_demo"]
