"""Kernels in Numba's Python: compiled once per device, then loaded as machine code without Numba.

Numba turns a kernel into LLVM's text, LLVM into an object file, and the file goes to the user's
cache. Every later process loads it with llvmlite alone, which takes a tenth of the time and a
third of the memory of importing Numba and its own cache. A kernel therefore has one fixed
signature, allocates nothing, raises nothing and returns nothing: results go to arrays that it is
given. Calls release the interpreter's lock.

With ``NUMBA_DISABLE_JIT=1`` kernels run as the Python that they are written in.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import platformdirs

from protofleet.errors import InputError, UnavailableError
from protofleet.private_files import who_else_writes

_log = logging.getLogger(__name__)

REDUCE = frozenset({"reassoc", "contract", "nsz"})
"""Lets sums run in vector lanes. Never ``nnan``/``ninf``: NaN must stay visible."""

FUSE = frozenset({"contract"})
"""Lets a product and a sum become one fused instruction; the order of operations stays."""

_CACHE_VARIABLE = "PROTOFLEET_KERNEL_CACHE"
_PARAMETER = re.compile(r"(f4|f8|f2|i1|i4|i8|u1|u2|u4|u8)(?:\[([1-9])\])?( out)?")
_SCALARS = {"f8": ctypes.c_double, "i8": ctypes.c_int64}
_DIGEST_BYTES = 32
_HARMLESS = ("NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT")  # change no code
_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400  # numpy/ndarraytypes.h


class _Parameter(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    ndim: int
    written: bool


class Helper:
    """A function that kernels of its module call; it becomes part of each of them."""

    def __init__(self, function: Callable[..., Any], flags: frozenset[str]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.flags = flags

    def __call__(self, *values: Any) -> Any:
        """Run it in Python, as tests without a compiler do."""
        return self.function(*values)


class Kernel:
    """A loop in machine code. Call it with exactly the arrays and numbers that it declares.

    Attributes:
        name: module and function, ``alp.scaling``.
        parameters: what it takes.
    """

    def __init__(
        self, function: Callable[..., None], parameters: tuple[str, ...], flags: frozenset[str]
    ) -> None:
        functools.update_wrapper(self, function)
        module = function.__module__.rpartition(".")[2]
        self.name = f"{module}.{function.__name__}"
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        self.parameters = tuple(_parse(*pair) for pair in zip(names, parameters, strict=True))
        self._function = function
        self._flags = flags
        self._source = _source(function.__code__.co_filename)
        self._binder: _Binder | None = None
        self._lock = threading.Lock()

    def __call__(self, *values: Any) -> None:
        """Run it.

        Raises:
            TypeError: an array that is not C-ordered, of another dtype or number of dimensions,
                or read-only though it is written: an error in this package.
        """
        self.bound(*values)()

    def bound(self, *values: Any) -> Callable[[], None]:
        """What runs it on these very arrays and numbers at each call; they are checked here.

        The arrays may be written in between, but must stay where they are.

        Raises:
            TypeError: as a call does.
        """
        binder = self._binder
        if binder is None:
            binder = self._loaded()
        return binder(*values)

    def build(self) -> bool:
        """Make sure that the machine code is in the cache; True if it had to be compiled.

        Raises:
            InputError: it is not there afterwards, because the disk is full for instance.
        """
        _, compiled = self._code()
        if compiled and _read(self._path) is None:
            raise InputError(
                f"kernel cache '{self._path.parent}': {self.name} could not be written"
            )
        return compiled

    def is_built(self) -> bool:
        """Whether the cache has its machine code."""
        return _read(self._path) is not None

    def _loaded(self) -> _Binder:
        with self._lock:
            if self._binder is None:
                if os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}:
                    self._binder = functools.partial(functools.partial, self._function)
                else:
                    address = _load(self._symbol, self._code()[0])
                    self._binder = _native(self.name, address, self.parameters)
            return self._binder

    def _code(self) -> tuple[bytes, bool]:
        """Machine code, and whether it had to be compiled, which one process does for all."""
        if code := _read(self._path):
            return code, False
        with _compiling():
            if code := _read(self._path):
                return code, False
            return self._compile(), True

    @functools.cached_property
    def _digest(self) -> str:
        """Of all that machine code depends on."""
        declared = (self.name, str(self.parameters), *sorted(self._flags))
        parts = (self._source, *(part.encode() for part in (*declared, *_platform())))
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]

    @property
    def _symbol(self) -> str:
        return f"protofleet_{self.name.replace('.', '_')}_{self._digest}"

    @property
    def _path(self) -> Path:
        return cache_folder() / f"{self.name}-{self._digest}.o"

    def _compile(self) -> bytes:
        _log.info("compiling kernel %s for this processor (once)", self.name)
        try:  # Numba is what this package avoids loading; only here it is needed.
            build = importlib.import_module("protofleet.kernels.native.build")
        except ImportError as error:
            raise UnavailableError(
                f"kernel {self.name}: Numba is installed but cannot be loaded ({error}); "
                "repair it, or set PROTOFLEET_NUMBA=0 to run in NumPy"
            ) from error
        helpers = {
            name: (value.function, value.flags)
            for name, value in self._function.__globals__.items()
            if isinstance(value, Helper)
        }
        types = tuple((parameter.dtype.str[1:], parameter.ndim) for parameter in self.parameters)
        code: bytes = build.build_object(self._symbol, self._function, helpers, types, self._flags)
        _write(self._path, code)
        return code


def kernel(
    *parameters: str, flags: frozenset[str] = frozenset()
) -> Callable[[Callable[..., None]], Kernel]:
    """Declare a kernel, one string per parameter.

    ``f4[2]`` is a C-ordered float32 array of two dimensions, ``f4[2] out`` one that the kernel
    writes; ``f8`` and ``i8`` are numbers.
    """
    return lambda function: Kernel(function, parameters, flags)


def helper(flags: frozenset[str] = frozenset()) -> Callable[[Callable[..., Any]], Helper]:
    """Declare a function that kernels of the same module call."""
    return lambda function: Helper(function, flags)


def cache_folder() -> Path:
    """Where machine code is kept: ``$PROTOFLEET_KERNEL_CACHE``, or the user's cache folder."""
    named = os.environ.get(_CACHE_VARIABLE)
    if named:
        return Path(named)
    try:
        return Path(platformdirs.user_cache_dir("protofleet")) / "kernels"
    except RuntimeError:  # a user without a home
        return Path(os.devnull) / "kernels"  # where nothing can be written


def make_cache_folder() -> Path:
    """The cache folder, made so that nobody else can put code into it.

    Raises:
        OSError: it cannot be made, or others can change it.
    """
    folder = cache_folder()
    mode = 0o755 if os.environ.get(_CACHE_VARIABLE) else 0o700
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    if reason := who_else_writes(folder):
        raise PermissionError(errno.EPERM, reason)
    return folder


_Binder = Callable[..., Callable[[], None]]
_GOOD = (0, -2)  # Numba's codes for a result and for None


def _parse(name: str, text: str) -> _Parameter:
    found = _PARAMETER.fullmatch(text)
    if found is None or (not found[2] and (found[1] not in _SCALARS or found[3])):
        raise TypeError(f"kernel parameter {name}: expected such as 'f4[2] out', got '{text}'")
    return _Parameter(name, np.dtype(found[1]), int(found[2] or 0), bool(found[3]))


@functools.cache
def _source(file: str) -> bytes:
    """As it is when the module is imported: an update of the package may come while it runs."""
    return Path(file).read_bytes()


@functools.lru_cache(maxsize=1)
def _platform() -> tuple[str, ...]:
    """What machine code depends on besides its source."""
    llvm = importlib.import_module("llvmlite.binding")
    versions = (metadata.version("numba"), metadata.version("llvmlite"))
    features = llvm.get_host_cpu_features().flatten()
    builder = hashlib.sha256(_source(str(Path(__file__).with_name("build.py")))).hexdigest()
    settings = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("NUMBA_") and name not in _HARMLESS
    )
    triple = llvm.get_process_triple()
    return (*versions, builder, triple, llvm.get_host_cpu_name(), features, *settings)


def _read(path: Path) -> bytes | None:
    """Machine code that nobody but this user and root can have written; None: there is none."""
    try:
        if reason := who_else_writes(path):
            _warn_of(path.parent, reason)
            return None
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        make_cache_folder()
        with open(temporary, "wb", opener=_opener) as file:
            file.write(hashlib.sha256(code).digest() + code)
        temporary.replace(path)
    except OSError as error:
        _log.warning(
            "kernel cache %s cannot be written (%s): each process compiles anew; "
            "set %s to a folder that can be",
            path.parent,
            error.strerror,
            _CACHE_VARIABLE,
        )
        with suppress(OSError):
            temporary.unlink()


def _opener(path: str, flags: int) -> int:
    """Others may run the code of a folder made ahead of time; nobody else may change it."""
    return os.open(path, flags | os.O_EXCL, 0o644)


@functools.cache
def _warn_of(folder: Path, reason: str) -> None:
    _log.warning(
        "kernel cache %s: not used, as its machine code may be somebody else's: %s; each process "
        "compiles anew, or set %s to a folder of your own",
        folder,
        reason,
        _CACHE_VARIABLE,
    )


@contextmanager
def _compiling() -> Iterator[None]:
    """Hold the cache's lock where there is one: a fleet's processes start at the same moment."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context((make_cache_folder() / "lock").open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            _log.debug("kernel cache without a lock: %s", error)
        yield


class _Linker:
    """The one execution engine of this process, and what keeps loaded code alive."""

    def __init__(self) -> None:
        self._llvm = importlib.import_module("llvmlite.binding")
        self._llvm.initialize_native_target()
        self._llvm.initialize_native_asmprinter()
        machine = self._llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = self._llvm.create_mcjit_compiler(self._llvm.parse_assembly(""), machine)

    def add(self, symbol: str, code: bytes) -> int:
        self._engine.add_object_file(self._llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        address: int = self._engine.get_function_address(symbol)
        if not address:
            raise RuntimeError(f"kernel {symbol}: not in its object file")
        return address


_linker_lock = threading.Lock()
_linker = functools.lru_cache(maxsize=1)(_Linker)


def _load(symbol: str, code: bytes) -> int:
    with _linker_lock:
        return _linker().add(symbol, code)


def _native(name: str, address: int, parameters: tuple[_Parameter, ...]) -> _Binder:
    """Binds arguments as Numba's calling convention has them.

    An array is seven words and more: two object pointers (unused here), count, item size, address,
    shape, strides. Two pointers for a result and an exception come first; neither is used.
    """
    pointer, word = ctypes.c_void_p, ctypes.c_ssize_t
    native_types: list[Any] = [pointer, pointer]
    words_of: list[Callable[[Any], tuple[int, ...]] | None] = []
    for parameter in parameters:
        if parameter.ndim:
            native_types += [pointer, pointer, word, word, pointer, *[word] * 2 * parameter.ndim]
            words_of.append(_words(parameter))
        else:
            native_types.append(_SCALARS[parameter.dtype.str[1:]])
            words_of.append(None)
    native = ctypes.CFUNCTYPE(ctypes.c_int, *native_types)(address)
    unused = (ctypes.c_void_p * 2)()
    first = ctypes.addressof(unused)

    def bind(*values: Any) -> Callable[[], None]:
        words: list[Any] = [first, first + ctypes.sizeof(pointer)]
        for value, describe in zip(values, words_of, strict=True):
            if describe is None:
                words.append(value)
            else:
                words += describe(value)

        def run() -> None:
            if (status := native(*words)) not in _GOOD:
                raise RuntimeError(f"kernel {name}: ended with status {status}")

        run.keep = values  # type: ignore[attr-defined]
        return run

    bind.keep = unused  # type: ignore[attr-defined]
    return bind


def _words(parameter: _Parameter) -> Callable[[Any], tuple[int, ...]]:
    """What turns an array into the words that describe it, after a look at its kind."""
    _, dtype, ndim, written = parameter
    itemsize = dtype.itemsize
    needed = _C_CONTIGUOUS | _ALIGNED | (_WRITEABLE if written else 0)
    address = _address_reader()

    def words(value: Any) -> tuple[int, ...]:
        if value.dtype != dtype or value.ndim != ndim or value.flags.num & needed != needed:
            raise TypeError(
                f"kernel parameter {parameter.name}: expected a C-ordered {dtype} array of "
                f"{ndim} dimensions{', writable' if written else ''}; got {value.dtype} of shape "
                f"{value.shape}, strides {value.strides}, writable={value.flags.writeable}"
            )
        return (0, 0, value.size, itemsize, address(value), *value.shape, *value.strides)

    return words


def _address_reader() -> Callable[[Any], int]:
    """How to learn where an array's data begins.

    NumPy's C interface has the pointer right after the object's head; reading it there takes a
    fifth of the time of ``array.ctypes.data``. Where a probe finds anything else, that is used.
    """
    read, head = ctypes.c_void_p.from_address, object.__basicsize__
    probe = np.zeros(1)
    if sys.implementation.name == "cpython" and read(id(probe) + head).value == probe.ctypes.data:
        return lambda array: read(id(array) + head).value or 0
    return lambda array: int(array.ctypes.data)
