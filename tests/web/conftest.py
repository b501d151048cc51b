"""Fixtures of the tests of the browser's device."""

from __future__ import annotations

import pytest
from web.node import WEB, Node, needed, skip


@pytest.fixture(scope="session")
def node() -> Node:
    """Node with the page's packages."""
    if lack := needed():
        skip(lack)
    return Node()


@pytest.fixture(scope="session")
def built_page() -> None:
    """``edge/web/static``."""
    if not (WEB / "static" / "index.html").is_file():
        skip("needs the built page: make web")
