"""The ALP nodes of a program, computed by ``protofleet.kernels`` instead of by the graph.

A bundle's ``protofleet::AlpTrain`` and ``protofleet::AlpInfer`` nodes are model-local functions of
ordinary operators, so that any ONNX Runtime runs them. Where onnxruntime-extensions is installed
the runtime registers custom operators of the same names, which ONNX Runtime prefers to the
functions.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import ProtofleetError

F32 = NDArray[np.float32]

_NODE_NAMES = (b"AlpTrain", b"AlpInfer")
_pending = threading.local()


class KernelError(ProtofleetError):
    """A kernel raised inside a running program; the cause is chained."""


def contains_alp(model: bytes) -> bool:
    """Whether a serialised program has ALP nodes (a plain model never loads the extensions)."""
    return any(name in model for name in _NODE_NAMES)


def extensions_installed() -> bool:
    """Whether custom operators written in Python can be registered."""
    return importlib.util.find_spec("onnxruntime_extensions") is not None


def kernels_pay() -> bool:
    """Whether the kernels beat the graph: compiled ones do, the NumPy ones take twice as long."""
    from protofleet.kernels import numba_enabled  # noqa: PLC0415 only programs with ALP need it

    return extensions_installed() and numba_enabled()


@cache
def library_with_alp() -> str:
    """Define the custom operators once per process; the path of the library to register.

    Both must exist before the first session is opened: the extensions keep pointers into a
    growing array.
    """
    with _hidden("onnx"):
        from onnxruntime_extensions import PyOp, get_library_path, onnx_op  # noqa: PLC0415 optional

    attrs = {"epsilon": PyOp.dt_float, "iterations": PyOp.dt_int64}
    onnx_op(
        op_type="protofleet::AlpTrain",
        inputs=[PyOp.dt_float] * 3,
        outputs=[PyOp.dt_float] * 2,
        attrs={"variant": PyOp.dt_string, "gamma": PyOp.dt_float, **attrs},
    )(_alp_train)
    onnx_op(
        op_type="protofleet::AlpInfer",
        inputs=[PyOp.dt_float] * 2,
        outputs=[PyOp.dt_float],
        attrs=attrs,
    )(_alp_infer)
    path: str = get_library_path()
    return path


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Make ``import module`` fail within the block.

    Where the extensions find onnx they load converters too, and with them torch: 190 MB that a
    device must not carry.
    """
    kept = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]  # the import system's own sign
    try:
        yield
    finally:
        del sys.modules[module]
        if kept is not None:
            sys.modules[module] = kept


def raise_pending() -> None:
    """Raise what a kernel raised during this thread's last run.

    An exception that left the callback would end the process, so the callback keeps it.

    Raises:
        KernelError: from the kernel's own exception.
    """
    failure: BaseException | None = getattr(_pending, "failure", None)
    if failure is None:
        return
    _pending.failure = None
    if isinstance(failure, Exception):
        raise KernelError(f"ALP kernel failed: {type(failure).__name__}: {failure}") from failure
    raise failure


class _Result:
    """Hands an array back to ONNX Runtime as it is.

    The extensions call ``flatten().tolist()`` on every result and accept an array in the list's
    place; a real list of a layer's prototypes costs 50 ms.
    """

    __slots__ = ("_array",)

    def __init__(self, array: F32, like: F32) -> None:
        if array.shape != like.shape:
            raise ValueError(f"expected a result of {like.shape} float32, got {array.shape}")
        self._array = np.ascontiguousarray(array, np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def flatten(self) -> _Result:
        return self

    def tolist(self) -> F32:
        return self._array


def _alp_train(x: F32, local: F32, global_: F32, **attributes: Any) -> tuple[_Result, _Result]:
    try:
        from protofleet.kernels import alp_train  # noqa: PLC0415 only programs with ALP need it

        chosen, new_local = alp_train(x, local, global_, **attributes)
        return _Result(chosen, x), _Result(new_local, local)
    except BaseException as failure:  # noqa: BLE001 raise_pending raises it after the run
        _pending.failure = failure
        return _Result(x, x), _Result(local, local)


def _alp_infer(x: F32, local: F32, **attributes: Any) -> _Result:
    try:
        from protofleet.kernels import alp_infer  # noqa: PLC0415 only programs with ALP need it

        return _Result(alp_infer(x, local, **attributes), x)
    except BaseException as failure:  # noqa: BLE001 raise_pending raises it after the run
        _pending.failure = failure
        return _Result(x, x)


def set_kernel_threads(threads: int) -> None:
    """Bound the kernels' threads with ONNX Runtime's: together they would oversubscribe."""
    from protofleet.kernels import set_threads  # noqa: PLC0415 only programs with ALP need it

    set_threads(threads)
