"""Fixtures that every folder's tests share: real data and a real broker."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import mosquitto
from hypothesis import settings

_REPOSITORY = Path(__file__).resolve().parent.parent


# The same examples in every run; HYPOTHESIS_PROFILE=default draws new ones.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_configure() -> None:
    """A shell's background job ignores Ctrl-C and its children inherit that: tests need it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Processes of pytest-xdist have it, and tables would be folded for a terminal.
    os.environ.pop("COLUMNS", None)
    # Keys of a user of their own; bundles that tests sign are trusted there, for processes too.
    os.environ["PROTOFLEET_CONFIG"] = tempfile.mkdtemp(prefix="protofleet-config-")
    os.environ["PROTOFLEET_TESTS_TRUST"] = str(Path(os.environ["PROTOFLEET_CONFIG"]) / "trusted")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Worker processes get whole files in this order: the longest first, so that all end together.

    Alone, tests keep their order.
    """
    if not hasattr(config, "workerinput"):
        return
    seconds: Counter[Path] = Counter()
    for item in items:
        slow = item.get_closest_marker("slow")
        seconds[item.path] += slow.kwargs.get("seconds", 5) if slow else 0.1
    items.sort(key=lambda item: (-seconds[item.path], item.path))


@pytest.fixture(autouse=True)
def _level_of_the_log() -> Iterator[None]:
    """A command that a test runs in its process says how much is told, in that process for good."""
    logger = logging.getLogger("protofleet")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the published data sets: $PROTOFLEET_DATA, else ../shared/data."""
    root = Path(os.environ.get("PROTOFLEET_DATA", _REPOSITORY.parent / "shared" / "data"))
    if not root.is_dir():
        pytest.skip(f"needs the data sets: set PROTOFLEET_DATA (looked in {root})")
    return root


@pytest.fixture
def mosquitto_url(tmp_path: Path) -> Iterator[str]:
    """A Mosquitto of this test's own, on a free loopback port."""
    with mosquitto(tmp_path) as port:
        yield f"mqtt://127.0.0.1:{port}"


@pytest.fixture
def ram_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: SIGKILL spares the page cache, so fsync adds time."""
    if not os.access("/dev/shm", os.W_OK):  # noqa: S108 - a fresh folder of its own inside it
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
