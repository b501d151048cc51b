import importlib.util
import os

import pytest

_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") in {"", "0"}


def pytest_collection_modifyitems(items):
    """Kernels as plain Python: large arrays would take minutes, and NumPy's scalars warn."""
    for item in [] if _JIT else items:
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
        if item.get_closest_marker("jit"):
            item.add_marker(pytest.mark.skip(reason="needs compiled kernels"))


@pytest.fixture(params=["numba", "numpy"])
def backend(request, monkeypatch):
    """Runs a test with either implementation of the kernels."""
    if request.param == "numba" and importlib.util.find_spec("numba") is None:
        pytest.skip("needs numba: pip install numba")
    monkeypatch.setenv("PROTOFLEET_NUMBA", "1" if request.param == "numba" else "0")
    return request.param
