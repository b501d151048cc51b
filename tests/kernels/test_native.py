"""Kernels become machine code once, and later processes load it without Numba."""

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from protofleet.errors import InputError, UnavailableError
from protofleet.kernels.native import kernel as native_kernel
from protofleet.kernels.native.kernel import REDUCE, cache_folder, helper, kernel

_build = pytest.importorskip("protofleet.kernels.native.build", reason="needs numba")

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba"),
    pytest.mark.skipif(
        os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}, reason="about compiled code"
    ),
]


@helper()
def _twice(x):
    return np.float32(2) * x


def doubled(x, out, extra):
    for i in range(x.size):
        out[i] = _twice(x[i]) + extra


def shifted(x, out, factor):
    for i in range(x.shape[0]):
        out[i] = 100.0 + x[i] + factor


def total(x, out):
    out[0] = 0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[0] += x[i, j]


def allocating(x):
    copy = np.zeros(x.size)
    for i in range(x.size):
        copy[i] = x[i]
    x[0] = copy.sum()


def refusing(out):
    if out[0] > 0:
        raise ValueError
    out[0] = 1


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOFLEET_KERNEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def double():
    return kernel("f4[1]", "f4[1] out", "f8")(doubled)


def run_double(made):
    out = np.zeros(5, np.float32)
    x = np.arange(5, dtype=np.float32)
    x.flags.writeable = False
    made(x, out, 0.5)
    return out.tolist()


def test_a_kernel_runs_and_its_code_is_kept(cache):
    assert run_double(double()) == [0.5, 2.5, 4.5, 6.5, 8.5]
    (file,) = cache.glob("*.o")
    content = file.read_bytes()
    assert hashlib.sha256(content[32:]).digest() == content[:32]


def test_matrices_and_flags_arrive():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.zeros(1, np.float32)
    kernel("f4[2]", "f4[1] out", flags=REDUCE)(total)(x[1:], out)
    assert out[0] == x[1:].sum()


def test_kept_code_is_not_compiled_again(monkeypatch):
    assert double().build()
    monkeypatch.setitem(sys.modules, "protofleet.kernels.native.build", None)
    fresh = double()
    assert not fresh.build()
    assert run_double(fresh)[0] == 0.5


def test_code_is_kept_under_what_it_was_compiled_from(cache, monkeypatch):
    """Not under a source that came while the process was running, or another processor's name."""
    before = double()
    monkeypatch.setattr(native_kernel, "_source", lambda file: file.encode() + b"changed")
    after = double()
    assert before.build()
    assert after.build()
    monkeypatch.setattr(native_kernel, "_platform", lambda: ("another",))
    assert double().build()
    assert len(list(cache.glob("*.o"))) == 3


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_damaged_code_is_never_loaded_but_made_again(cache, damage):
    double().build()
    (file,) = cache.glob("*.o")
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]) if damage is None else damage)
    assert run_double(double())[0] == 0.5
    assert file.read_bytes() == good


def test_code_that_others_can_have_written_is_never_loaded(cache, monkeypatch, caplog):
    """A file or a folder that anybody may change: the kernel is compiled, and runs without it."""
    made = double()
    made.build()
    (file,) = cache.glob("*.o")
    wrong = kernel("f4[1]", "f4[1] out", "f8")(shifted)
    monkeypatch.setattr(type(wrong), "_symbol", made._symbol)
    code = wrong._compile()
    file.write_bytes(hashlib.sha256(code).digest() + code)
    assert run_double(double())[0] == 100.5
    for path, mode in ((cache, 0o777), (file, 0o666)):
        path.chmod(mode)
        assert run_double(double())[0] == 0.5
        assert f"run: chmod go-w {path}" in caplog.text
        path.chmod(0o755 if path == cache else 0o644)
        assert run_double(double())[0] == (100.5 if path == cache else 0.5)


def test_a_folder_that_cannot_be_written_is_named_once_per_kernel(tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("PROTOFLEET_KERNEL_CACHE", str(blocked / "cache"))
    with caplog.at_level(logging.WARNING):
        assert run_double(double())[0] == 0.5
    (record,) = caplog.records
    with pytest.raises(InputError, match="could not be written"):
        double().build()
    assert "set PROTOFLEET_KERNEL_CACHE to a folder that can be" in record.getMessage()


def test_a_numba_that_cannot_be_loaded_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "protofleet.kernels.native.build", None)
    with pytest.raises(UnavailableError, match="set PROTOFLEET_NUMBA=0 to run in NumPy"):
        run_double(double())


@pytest.mark.parametrize(
    ("x", "out"),
    [
        (np.zeros(4), np.zeros(4, np.float32)),
        (np.zeros((2, 2), np.float32), np.zeros(4, np.float32)),
        (np.zeros(8, np.float32)[::2], np.zeros(4, np.float32)),
        (np.zeros(4, np.float32), np.broadcast_to(np.float32(0), (4,))),
    ],
)
def test_other_arrays_than_declared_never_reach_the_code(x, out):
    with pytest.raises(TypeError, match=r"kernel parameter (x|out): expected a C-ordered float32"):
        double()(x, out, 0.0)


def test_too_few_arguments_are_refused():
    with pytest.raises(ValueError, match="zip"):
        double()(np.zeros(4, np.float32))


def test_a_kernel_that_allocates_is_refused_when_it_is_compiled():
    with pytest.raises(TypeError, match="Numba cannot compile it"):
        kernel("f8[1] out")(allocating).build()


def test_a_kernel_that_raises_does_not_go_unnoticed():
    made = kernel("f8[1] out")(refusing)
    out = np.zeros(1)
    made(out)
    with pytest.raises(RuntimeError, match=r"kernel test_native\.refusing: ended with status"):
        made(out)


@pytest.mark.parametrize("text", ["f4[2]!", "f4", "f3[1]", "i8 out", "f4[0]"])
def test_a_parameter_that_cannot_be_read_is_named(text):
    with pytest.raises(TypeError, match="kernel parameter x: expected such as"):
        kernel(text, "f4[1] out", "f8")(doubled)


def test_threads_that_start_together_compile_once_and_agree(monkeypatch):
    made, compiled, build = double(), [], _build.build_object
    monkeypatch.setattr(
        _build, "build_object", lambda *arguments: compiled.append(1) or build(*arguments)
    )
    results = []
    threads = [threading.Thread(target=lambda: results.append(run_double(made))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [run_double(made)] * 8
    assert compiled == [1]


@pytest.mark.slow(seconds=3)
def test_of_processes_that_start_together_one_compiles(cache):
    code = (
        "import logging, numpy as np\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "from protofleet.kernels import WeightedMean\n"
        "mean = WeightedMean(2)\n"
        "mean.add(np.ones(2, np.float32), 1)\n"
    )
    environment = {**os.environ, "PROTOFLEET_NUMBA": "1"}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    told = b"".join(process.communicate(timeout=60)[1] for process in started)
    assert [process.returncode for process in started] == [0, 0, 0]
    assert told.count(b"compiling kernel mean.add_up") == 1
    assert len(list(cache.glob("mean.add_up-*.o"))) == 1


@pytest.mark.slow(seconds=3)
def test_a_later_process_loads_no_numba():
    code = (
        "import sys, numpy as np\n"
        "from protofleet.kernels import WeightedMean\n"
        "mean = WeightedMean(2)\n"
        "mean.add(np.ones(2, np.float32), 1)\n"
        "print('numba' in sys.modules, 'llvmlite' in sys.modules)\n"
    )
    environment = {**os.environ, "PROTOFLEET_NUMBA": "1"}
    seen = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
        for _ in range(2)
    ]
    assert seen == [["True", "True"], ["False", "True"]]


def test_the_cache_is_the_user_s_unless_named(monkeypatch):
    monkeypatch.delenv("PROTOFLEET_KERNEL_CACHE", raising=False)
    assert cache_folder().parts[-2:] == ("protofleet", "kernels")


def test_a_user_without_a_home_compiles_in_each_process(monkeypatch, caplog):
    def homeless(_name):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("PROTOFLEET_KERNEL_CACHE", raising=False)
    monkeypatch.setattr(native_kernel.platformdirs, "user_cache_dir", homeless)
    assert run_double(double())[0] == 0.5
    assert "set PROTOFLEET_KERNEL_CACHE" in caplog.text


def test_a_folder_that_is_named_may_be_read_by_others(cache):
    """It is made for an image, by another user than the one who will run."""
    double().build()
    assert cache.stat().st_mode & 0o055
