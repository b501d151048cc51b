"""When Numba is loaded, when it is not, and where its compiled code goes."""

import importlib
import inspect
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]
_USE = """
import numpy as np
from protofleet.kernels import WeightedMean, numba_enabled
mean = WeightedMean(2)
mean.add(np.ones(2, np.float32), 1)
print(numba_enabled(), mean.result())
"""


def run(code, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    ).stdout.strip()


@pytest.fixture
def sealed_install(tmp_path):
    """Code that imports a copy whose folder takes no cache: a file stands where it would go."""
    package = tmp_path / "site" / "protofleet"
    package.mkdir(parents=True)
    for name in ("__init__.py", "errors.py", "printable.py", "private_files.py"):
        shutil.copy(_REPOSITORY / "src/protofleet" / name, package)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_REPOSITORY / "kernels", package / "kernels", ignore=ignored)
    (package / "kernels" / "__pycache__").touch()
    return (
        "import sys\n"
        "sys.dont_write_bytecode = True\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f)]\n"
        f"sys.path.insert(0, {str(package.parent)!r})\n"
        "import protofleet.kernels\n"
        f"assert protofleet.kernels.__file__.startswith({str(package)!r})\n"
    )


def test_importing_the_kernels_loads_no_numba():
    code = "import sys, protofleet.kernels; print('numba' in sys.modules)"
    assert run(code, PROTOFLEET_NUMBA="1") == "False"


def test_the_switch_keeps_numba_away():
    code = _USE + "import sys; print('numba' in sys.modules)"
    assert run(code, PROTOFLEET_NUMBA="0").splitlines() == ["False [1. 1.]", "False"]


def without(module):
    """Code after which ``module`` cannot be imported."""
    return (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == '{module}':\n"
        "            raise ModuleNotFoundError(f'No module named {name}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )


@pytest.mark.parametrize("missing", ["numba", "llvmlite"])
def test_without_numba_or_llvmlite_the_numpy_path_runs(missing):
    assert run(without(missing) + _USE, PROTOFLEET_NUMBA="1") == "False [1. 1.]"


@pytest.mark.slow(seconds=3)
@pytest.mark.jit
def test_a_read_only_install_caches_in_the_user_s_folder(sealed_install, tmp_path):
    pytest.importorskip("numba")
    cache = tmp_path / "cache"
    environment = {"XDG_CACHE_HOME": str(cache), "HOME": str(tmp_path), "PROTOFLEET_NUMBA": "1"}
    assert run(sealed_install + _USE, **environment) == "True [1. 1.]"
    assert list(cache.rglob("mean.add_up-*.o"))


@pytest.mark.slow(seconds=3)
def test_without_any_folder_to_write_it_still_runs(sealed_install):
    pytest.importorskip("numba")
    nowhere = "/dev/null/none"
    environment = {"XDG_CACHE_HOME": nowhere, "HOME": nowhere, "PROTOFLEET_NUMBA": "1"}
    assert run(sealed_install + _USE, **environment) == "True [1. 1.]"


def loops_of(folder):
    """By module, what its checked functions may call."""
    package = importlib.import_module(f"protofleet.kernels.{folder}")
    found = {}
    for _, name, _ in pkgutil.iter_modules(package.__path__):
        members = vars(importlib.import_module(f"{package.__name__}.{name}"))
        found[name] = {
            key: value
            for key, value in members.items()
            if not key.startswith("_") and getattr(value, "__module__", None) == members["__name__"]
        }
    return found


def test_plain_loops_have_the_names_and_parameters_of_compiled_ones():
    """Compiled modules may have more: kernels that their functions are made of."""
    compiled, plain = loops_of("compiled"), loops_of("plain")
    assert compiled.keys() == plain.keys()
    for module, loops in plain.items():
        assert loops
        for name, loop in loops.items():
            expected = list(inspect.signature(compiled[module][name]).parameters)
            taken = inspect.getfullargspec(inspect.unwrap(loop))
            if taken.varargs is None:  # byte planes come as so many arguments
                assert taken.args == expected, name
