"""The tutorials that need one machine run as a reader would run them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import answers, free_port, wait_until
from doc_blocks import Block, blocks
from doc_folder import environment

# The installed command, which unlike ``python -m`` does not search the working folder.
_SHELL = 'set -e; protofleet() { "$PYTHON" -P -m protofleet "$@"; }; python() { "$PYTHON" "$@"; }; '
_FILE = re.compile(r"# ([\w.]+\.(?:py|toml))\n")
_OWN_TERMINAL = ("broker run", "coordinator run", "device invite")

pytestmark = [pytest.mark.full_size, pytest.mark.mosquitto, pytest.mark.timeout(240)]


class Reader:
    """Follows pages in one folder, with brokers on ports of their own.

    Args:
        folder: to work in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {"1883": free_port(), "8883": free_port()}
        self._terminals: list[tuple[str, subprocess.Popen[str]]] = []
        self._invitation = "INVITATION"
        (folder / "home").mkdir()

    def follow(self, page: str) -> str:
        """Everything that the page's commands print which are no process of their own."""
        printed = [self._do(block) for block in blocks() if block.page == page]
        for script, process in self._terminals:
            if "coordinator run" in script:
                out, err = process.communicate(timeout=60)
                assert process.returncode == 0, err
                printed.append(out)
        return "".join(printed)

    def close(self) -> None:
        """End what is left."""
        for _, process in self._terminals:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=60)

    def _do(self, block: Block) -> str:
        if named := _FILE.match(block.text):
            (self._folder / named[1]).write_text(self._adapted(block.text))
        if block.language != "sh":
            return ""
        script = self._adapted(block.text)
        process = self._start(script)
        if not any(words in script for words in _OWN_TERMINAL):
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, f"{block.place}: {out}{err}"
            return out
        self._terminals.append((script, process))
        if "broker run" in script:
            secured = "federation/broker" in script
            wait_until(lambda: answers(self._ports["8883" if secured else "1883"]))
        if "device invite" in script:
            told = iter(process.stdout.readline, "")
            self._invitation = next(line.split()[-1] for line in told if "device enroll" in line)
        return ""

    def _adapted(self, text: str) -> str:
        text = text.replace("INVITATION", self._invitation)
        for port, own in self._ports.items():
            text = text.replace(f":{port}", f":{own}")
        text = re.sub(r"(broker run)$", rf"\1 --port {self._ports['1883']}", text.strip())
        return re.sub(r"(broker init .*)$", rf"\1 --port {self._ports['8883']}", text)

    def _start(self, script: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", _SHELL + script],
            cwd=self._folder,
            env={**environment(self._folder), "PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("reader"))
    try:
        yield reader
    finally:
        reader.close()


@pytest.fixture(scope="module")
def first(reader: Reader) -> str:
    return reader.follow("tutorial-model.md")


_MOVES = 0.05
"""By how much accuracies of another machine may differ from a page's."""


def test_the_model_tutorial_makes_models_that_know_their_owners_better(first):
    """And every score that the page tells is what its commands print."""
    page = "".join(one.text for one in blocks() if one.page == "tutorial-model.md")
    for pattern, moves in (
        (r"accuracy (0\.[\d]+) on", _MOVES),
        (r"accuracy ([\d.]+) % at the start", 100 * _MOVES),
        (r"([\d.]+) % now", 100 * _MOVES),
        (r"(\d) better than at the start, 0 worse", 0),
        (r"in use: (personal)", 0),
    ):
        said, found = (re.findall(pattern, text) for text in (page, first))
        assert said
        if moves:
            said, found = ([float(one) for one in texts] for texts in (said, found))
            said = pytest.approx(said, abs=moves)
        assert found == said, pattern
    before, after = map(float, re.findall(r"macro-F1 ([\d.]+), accuracy", first))
    assert after > before
    assert "report.html" in first


def test_the_broker_tutorial_lets_a_device_in_and_out_again(first, reader):  # noqa: ARG001 - its bundle
    printed = reader.follow("tutorial-broker.md")
    assert "OPEN" not in printed
    assert re.search(r"anna +enrolled", printed)
