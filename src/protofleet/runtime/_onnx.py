"""Programs in ONNX Runtime."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, Literal

from protofleet.bundle.manifest import Program
from protofleet.errors import InputError, ProvisionError
from protofleet.runtime import _alp
from protofleet.runtime._arrays import Arrays
from protofleet.runtime._backend import Feed, Kernels, ProgramSource
from protofleet.runtime._footprint import release
from protofleet.runtime._ports import Tensor, check_ports
from protofleet.tensors import address

_DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64"}
# Training programs compute values twice where that is cheaper than to keep them.
_MERGES_EQUAL_NODES = "CommonSubexpressionElimination"
# Full and last partial batch, each with two alternating states, and as much again for evaluation.
_KEPT_BINDINGS = 8


class OnnxBackend:
    """A session for each program (``_backend.Backend``); the kernels may compute ALP nodes."""

    name: Literal["onnx", "litert"] = "onnx"

    def __init__(
        self,
        bundle: ProgramSource,
        programs: Mapping[str, Program],
        *,
        threads: int,
        kernels: Kernels,
    ) -> None:
        self._programs = programs
        self._threads = threads
        self._paths = {name: _path(bundle, name, program) for name, program in programs.items()}
        self._models = {name: bundle.read(path) for name, path in self._paths.items()}
        self.uses_kernels = any(map(_alp.contains_alp, self._models.values())) and _wanted(kernels)
        if self.uses_kernels:
            _alp.set_kernel_threads(threads)

    def where(self, program: str) -> str:
        """The program's file."""
        return self._paths[program]

    def open(self, program: str) -> OnnxRunner:
        """A runner with a new session; a program is opened once, and its file then forgotten."""
        model, where = self._models[program], self._paths[program]
        calls_back = self.uses_kernels and _alp.contains_alp(model)
        session = _open_session(model, where, threads=self._threads, use_kernels=calls_back)
        found = _tensors(session.get_inputs()), _tensors(session.get_outputs())
        check_ports(where, self._programs[program], *found)
        del self._models[program]
        release()
        return OnnxRunner(session, where, calls_back=calls_back)


class OnnxRunner:
    """Runs one session, reusing the bindings of the addresses and batch sizes seen last.

    A program's ports are bound to memory that already exists, so that a call copies no tensor.
    """

    def __init__(self, session: Any, file: str, *, calls_back: bool) -> None:
        self._session = session
        self._file = file
        self._calls_back = calls_back
        self._bindings: dict[tuple[int, ...], Any] = {}

    def run(self, key: tuple[int, ...], feed: Feed) -> None:
        """As ``_backend.Runner.run``."""
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._bindings[key] = self._bound(*feed())
        try:
            if self._calls_back:
                with _deferred_signals():
                    self._session.run_with_iobinding(binding)
            else:
                self._session.run_with_iobinding(binding)
        except RuntimeError as error:
            raise ProvisionError(f"program '{self._file}': {error}") from error
        if self._calls_back:
            _alp.raise_pending()

    def _bound(self, inputs: Arrays, outputs: Arrays) -> Any:
        binding = self._session.io_binding()
        _bind(binding.bind_input, inputs)
        _bind(binding.bind_output, outputs)
        if len(self._bindings) >= _KEPT_BINDINGS:
            del self._bindings[next(iter(self._bindings))]
        return binding


def _bind(bind: Callable[..., None], arrays: Arrays) -> None:
    for name, array in arrays.items():
        bind(name, "cpu", 0, array.dtype.type, array.shape, address(array))


def _wanted(kernels: Kernels) -> bool:
    if kernels != "custom":
        return kernels == "auto" and _alp.kernels_pay()
    if not _alp.extensions_installed():
        raise InputError(
            "kernels 'custom': needs onnxruntime-extensions: pip install 'protofleet[edge]'"
        )
    return True


def _path(bundle: ProgramSource, name: str, program: Program) -> str:
    if program.file is None:
        raise ProvisionError(
            f"bundle '{bundle.manifest.name}': its program '{name}' has no ONNX file; export the "
            "model anew, or choose backend 'litert'"
        )
    return program.file


def _open_session(model: bytes, where: str, *, threads: int, use_kernels: bool) -> Any:
    """Load a program.

    Args:
        model: the serialised ONNX model.
        where: its path in the bundle.
        threads: intra-operator threads.
        use_kernels: let ``protofleet.kernels`` compute the ALP nodes.

    Raises:
        ProvisionError: the model does not load.
    """
    import onnxruntime  # noqa: PLC0415 a device's other processes never load it

    _set_up()
    options = _options(onnxruntime, threads)
    if use_kernels:
        options.register_custom_ops_library(_alp.library_with_alp())
    try:
        return onnxruntime.InferenceSession(
            model,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=[_MERGES_EQUAL_NODES],
        )
    except Exception as error:  # ONNX Runtime's errors share no narrower root
        raise ProvisionError(f"program '{where}': does not load: {error}") from error


def _tensors(found: Sequence[Any]) -> dict[str, Tensor]:
    return {one.name: Tensor(_DTYPES.get(one.type, one.type), one.shape) for one in found}


@cache
def _set_up() -> None:
    """One arena for all sessions of the process: evaluation runs in what training has left.

    And no telemetry, also where ONNX Runtime was imported before ``protofleet`` could say so.
    """
    import onnxruntime  # noqa: PLC0415 as above

    onnxruntime.disable_telemetry_events()
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu",
        onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
        0,
        onnxruntime.OrtMemType.DEFAULT,
    )
    growth = {"arena_extend_strategy": 1}  # by what is asked for, not by doubling
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(growth))


def _options(onnxruntime: Any, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = 3
    # A bundle's ONNX files are checked for bytes outside them; ORT's own format is not.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # Planned memory comes on top of the arena's: a third more for HART, and no faster.
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.use_env_allocators", "1")
    # A waiting thread that spins takes the core from Numba and from the other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


_DEFERRED = ("SIGINT", "SIGTERM", "SIGALRM")


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Run the Python handlers of signals that arrive in the block after it.

    A handler that raises (Ctrl-C) inside a callback from ONNX Runtime would end the process with
    ``terminate called``. Only the main thread runs handlers; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    kept = {}
    try:
        for number in (getattr(signal, name) for name in _DEFERRED if hasattr(signal, name)):
            handler = signal.getsignal(number)
            if callable(handler):
                kept[number] = handler
                signal.signal(number, note)
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        for number in arrived:
            kept[signal.Signals(number)](number, None)
