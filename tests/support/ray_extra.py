"""Ray, an extra that ``make test`` has."""

import os
from importlib.util import find_spec

import pytest


def needs_ray():
    """Skip a test where Ray is absent, but not in ``.ci/run``."""
    if find_spec("ray") is None:
        lack = "needs Ray: pip install -c constraints.txt -e '.[ray]'"
        assert "PROTOFLEET_CI" not in os.environ, lack
        pytest.skip(lack)
