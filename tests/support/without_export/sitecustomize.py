"""With this folder in PYTHONPATH, Python finds no PyTorch and no onnx, as on a device.

A module that is hidden looks as if it was not installed: ``find_spec`` answers None, ``import``
raises ModuleNotFoundError. Processes that are started inherit it.
"""

import sys
from importlib.machinery import PathFinder

_HIDDEN = {"torch", "onnx", "onnxscript", "onnx_ir"}


class _VisibleOnly(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        hidden = fullname.partition(".")[0] in _HIDDEN
        return None if hidden else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = _VisibleOnly
