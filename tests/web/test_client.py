"""The browser's device: its types, and each file of its tests."""

from __future__ import annotations

import pytest
from web.node import WEB

_FILES = sorted(path.relative_to(WEB) for path in (WEB / "test").rglob("*.test.ts"))


@pytest.mark.slow
def test_the_types_hold(node):
    node.run("npm", "run", "--silent", "check")


@pytest.mark.slow
@pytest.mark.timeout(630)
@pytest.mark.parametrize("file", _FILES, ids=str)
def test_file(node, file):
    node.test(file)
