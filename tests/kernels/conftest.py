import importlib.util

import pytest


@pytest.fixture(params=["numba", "numpy"])
def backend(request, monkeypatch):
    """Runs a test with either implementation of the kernels."""
    if request.param == "numba" and importlib.util.find_spec("numba") is None:
        pytest.skip("needs numba: pip install numba")
    monkeypatch.setenv("PROTOFLEET_NUMBA", "1" if request.param == "numba" else "0")
    return request.param
