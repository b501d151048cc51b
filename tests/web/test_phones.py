"""Whole federations with a browser in them, of real processes: ``src/web/e2e``."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.mosquitto, pytest.mark.timeout(630)]


@pytest.mark.slow(seconds=45)
@pytest.mark.usefixtures("built_page")
@pytest.mark.parametrize("name", ["federation", "owner", "calibration"])
def test_phones_take_part(node, name):
    """Through every fault, at both brokers; ``npm run e2e`` has more, which takes minutes."""
    node.test(Path("e2e", f"{name}.test.ts"))
