"""Places in the user's code, for messages: which module runs, and which line asked for it."""

from __future__ import annotations

import contextlib
import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, TypeVar

import onnxscript
import torch
from torch import nn
from torch.nn.modules import module as module_hooks

import protofleet

_HERE = Path(__file__).resolve().parent
_NETWORKS = tuple(f"{folder / 'sweep'}{os.sep}" for folder in (_HERE, Path(__file__).parent))
"""Written as users write theirs; by the path that leads there through links, too."""
_NOT_THE_USERS = (
    str(Path(torch.__file__).parent),
    str(Path(onnxscript.__file__).parent),
    sysconfig.get_path("stdlib"),
    f"{_HERE}{os.sep}",
    f"{Path(protofleet.__file__).resolve().parent}{os.sep}",
    "<",
)

Function = TypeVar("Function", bound=Callable[..., Any])

_RUNNERS: set[CodeType] = set()


def runs_models(function: Function) -> Function:
    """Mark a function that runs a user's model: who called it is nobody's line."""
    _RUNNERS.add(function.__code__)
    return function


def is_users(file: str) -> bool:
    """Whether a file is the user's: not PyTorch's, Python's or Protofleet's."""
    return file.startswith(_NETWORKS) or not file.startswith(_NOT_THE_USERS)


def line_here() -> str:
    """The innermost line of the user's code that is running, ``file:number``; '' if none is."""
    for frame, number in traceback.walk_stack(inspect.currentframe()):
        if frame.f_code in _RUNNERS:
            break
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{number}"
    return ""


def line_of(trace: TracebackType | None) -> str:
    """The innermost line of the user's code at which an error arose; '' if at none."""
    lines = [
        f"{frame.f_code.co_filename}:{number}"
        for frame, number in traceback.walk_tb(trace)
        if is_users(frame.f_code.co_filename)
    ]
    return lines[-1] if lines else ""


def first_line(error: Exception) -> str:
    """Of an error's text; its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def labelled(name: str, module: nn.Module) -> str:
    """A module by its name in the model, and its class; '' is the model's own name."""
    kind, what = type(module), f"module '{name}'" if name else "model"
    return f"{what} ({kind.__module__}.{kind.__qualname__})"


def at_line(what: str, line: str) -> str:
    """What, and the line where one is known."""
    return f"{what}, {line}" if line else what


def forward_of(model: nn.Module) -> str:
    """The model and where its forward is written."""
    try:
        file, line = inspect.getsourcefile(model.forward), inspect.getsourcelines(model.forward)[1]
    except (OSError, TypeError):
        return labelled("", model)
    return at_line(labelled("", model), f"{file}:{line}" if file and is_users(file) else "")


class ModuleStack:
    """Which modules of a model are running, from the outermost to the innermost.

    Args:
        model: whose modules are named.
        outside: what runs where no module does.
    """

    def __init__(self, model: nn.Module, *, outside: str) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._outside = outside
        self._running: list[nn.Module] = []

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Follow which module runs; one that fails stays the innermost."""
        before = module_hooks.register_module_forward_pre_hook(self._enter)
        after = module_hooks.register_module_forward_hook(self._leave)
        self._running.clear()
        try:
            yield
        finally:
            before.remove()
            after.remove()

    @property
    def innermost(self) -> nn.Module | None:
        """The module that runs; None: none of the model's does."""
        return self._running[-1] if self._running else None

    def place(self, line: str) -> str:
        """The innermost module that runs, and the line where one is known."""
        if not self._running:
            return at_line(self._outside, line)
        module = self._running[-1]
        return at_line(labelled(self._names[id(module)], module), line)

    def _enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002 - hook signature
        if id(module) in self._names:
            self._running.append(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002 - as above
        if self._running and self._running[-1] is module:
            self._running.pop()
