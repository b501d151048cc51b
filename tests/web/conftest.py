"""Fixtures of the tests of the browser's device."""

from __future__ import annotations

import pytest
from web.node import Node, needed, skip

from protofleet.hub.site import page_folder


@pytest.fixture(scope="session")
def node() -> Node:
    """Node with the page's packages."""
    if lack := needed():
        skip(lack)
    return Node()


@pytest.fixture(scope="session")
def built_page() -> None:
    """What ``make web`` makes."""
    if not (page_folder() / "index.html").is_file():
        skip("needs the built page: make web")
