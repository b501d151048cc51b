"""From a kernel's Python to an object file: Numba types and optimises, LLVM emits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba import types
from numba.core.errors import NumbaError

_MATHS = frozenset(
    name + suffix
    for name in ("exp", "exp2", "log", "log2", "sqrt", "pow", "fmod")
    for suffix in ("", "f")
)
_MEMORY = frozenset({"memset", "memcpy", "memmove"})


def build_object(
    symbol: str,
    function: Callable[..., None],
    helpers: Mapping[str, tuple[Callable[..., Any], frozenset[str]]],
    parameters: tuple[tuple[str, int], ...],
    flags: frozenset[str],
) -> bytes:
    """Machine code of ``function`` for this processor, under the name ``symbol``.

    Args:
        symbol: what the code is looked up by.
        function: the kernel in plain Python.
        helpers: functions that it calls by global name, with their fast-math flags.
        parameters: dtype and number of dimensions of every parameter; 0 for scalars.
        flags: fast-math flags.

    Raises:
        TypeError: Numba cannot compile the kernel, or it calls something besides ``libm``.
    """
    namespace = dict(function.__globals__)
    for name, (helper, helper_flags) in helpers.items():
        bound = FunctionType(helper.__code__, namespace, name, helper.__defaults__)
        namespace[name] = numba.njit(fastmath=set(helper_flags), error_model="numpy")(bound)
    bound = FunctionType(function.__code__, namespace, function.__name__)
    compile_ = numba.njit(
        types.void(*(_numba_type(*parameter) for parameter in parameters)),
        fastmath=set(flags),
        error_model="numpy",
        boundscheck=False,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        _nrt=False,  # no reference counts, no allocation: arrays belong to the caller
    )
    try:
        compiled = compile_(bound)
    except NumbaError as error:
        raise TypeError(f"kernel {symbol}: Numba cannot compile it: {error}") from error
    (signature,) = compiled.signatures
    entry = compiled.overloads[signature].fndesc.llvm_func_name
    return _emit(symbol, entry, compiled.inspect_llvm(signature))


def _numba_type(dtype: str, ndim: int) -> Any:
    scalar = numba.from_dtype(np.dtype(dtype))
    return types.Array(scalar, ndim, "C") if ndim else scalar


def _emit(symbol: str, entry: str, text: str) -> bytes:
    module = llvm.parse_assembly(text)
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )
    for item in (*module.functions, *module.global_variables):
        if not item.is_declaration and item.name != entry:
            item.linkage = "internal"
    module.get_function(entry).name = symbol
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    needed = {item.name for item in module.functions if item.is_declaration}
    foreign = {name for name in needed - _MATHS - _MEMORY if not name.startswith("llvm.")}
    if foreign:
        raise TypeError(f"kernel {symbol}: expected no calls besides libm, got {sorted(foreign)}")
    code: bytes = machine.emit_object(module)
    return code
