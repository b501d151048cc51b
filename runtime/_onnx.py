"""ONNX Runtime sessions whose inputs and outputs are known to be what the manifest says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from protofleet.errors import ProvisionError
from protofleet.runtime import _alp
from protofleet.wire.manifest import Port, Program

_ORT_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}
_SYMBOLIC_DIM = re.compile(r"batch(\*[1-9][0-9]*)?")


def open_session(model: bytes, program: Program, *, threads: int, use_kernels: bool) -> Any:
    """Load a program and check it against its ports.

    Args:
        model: the serialised ONNX model.
        program: its signature.
        threads: intra-operator threads.
        use_kernels: let ``protofleet.kernels`` compute the ALP nodes.

    Raises:
        ProvisionError: the model does not load, or differs from its ports.
    """
    import onnxruntime  # noqa: PLC0415 a device's other processes never load it

    options = _options(onnxruntime, threads)
    if use_kernels:
        options.register_custom_ops_library(_alp.library_with_alp())
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no narrower root
        raise ProvisionError(f"program '{program.file}': does not load: {error}") from error
    check_ports(program, session.get_inputs(), session.get_outputs())
    return session


def _options(onnxruntime: Any, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = 3
    # Planned memory comes on top of the arena's: a third more for HART, and no faster.
    options.enable_mem_pattern = False
    # A waiting thread that spins takes the core from Numba and from the other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def check_ports(program: Program, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise ProvisionError unless every input has a port and every port fits its tensor."""
    surplus = {i.name for i in inputs} - {p.name for p in program.inputs}
    if surplus:
        raise ProvisionError(f"program '{program.file}': no port for its input '{min(surplus)}'")
    for ports, found in ((program.inputs, inputs), (program.outputs, outputs)):
        by_name = {tensor.name: tensor for tensor in found}
        for port in ports:
            _check_port(program.file, port, by_name.get(port.name))


def _check_port(file: str, port: Port, found: Any | None) -> None:
    where = f"program '{file}', port '{port.name}'"
    if found is None:
        raise ProvisionError(f"{where}: not in the program")
    if found.type != _ORT_TYPES[port.dtype]:
        raise ProvisionError(f"{where}: expected {port.dtype}, got {found.type}")
    for dim in port.shape:
        if isinstance(dim, str) and not _SYMBOLIC_DIM.fullmatch(dim):
            raise ProvisionError(f"{where}: expected a dimension like 'batch*8', got '{dim}'")
    pairs = zip(port.shape, found.shape, strict=False)
    fixed = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    if len(port.shape) != len(found.shape) or any(a != b for a, b in fixed):
        raise ProvisionError(f"{where}: expected {port.shape}, got {tuple(found.shape)}")
