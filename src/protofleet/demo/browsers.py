"""Browsers beside the demonstration's device processes: headless Chromium on a hub's page."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from protofleet.errors import UnavailableError
from protofleet.federation.settings import load_config
from protofleet.firmware_sim.processes import spawn, stop
from protofleet.private_files import make_private_folder

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MIN_NODE = 20
_PORT_FILE = "hub.port"


def check_browsers() -> None:
    """Check, before anything is done, that this machine can run browsers.

    Raises:
        UnavailableError: Chromium, Node, the page or the packages that drive browsers are absent.
    """
    from protofleet.hub.site import page_folder  # noqa: PLC0415 - an extra

    _find_chromium()
    _find_node()
    web = _web_folder()
    if not (page_folder() / "index.html").is_file() or not (web / "node_modules").is_dir():
        raise UnavailableError(
            "--browsers: the page and what drives browsers are not here; in a checkout: make web"
        )


@contextmanager
def running_browsers(
    federation: Path, data: Sequence[Path], folder: Path
) -> Iterator[Callable[[], None]]:
    """Let browsers take part while the block lasts: one for each file of data.

    Args:
        federation: its file; without keys.
        data: ``.npz`` of ``DeviceData``, one for each browser.
        folder: profiles and log; with what is there, browsers go on.

    Yields:
        A check that raises ``UnavailableError`` if a browser cannot go on.

    Raises:
        InputError: the hub's port is taken by another program.
    """
    from protofleet.hub.run import Hub, HubOptions  # noqa: PLC0415 - an extra

    make_private_folder(folder, "folder of the browsers")
    hub = Hub(load_config(federation), HubOptions(port=_port(folder)))
    thread = threading.Thread(target=hub.run, name="hub")
    thread.start()
    web, log = _web_folder(), folder / "log.txt"
    script = [_find_node(), "--import", (web / "node_modules/tsx/dist/loader.mjs").as_uri()]
    script += [str(web / "demo" / "browsers.ts"), _find_chromium(), hub.origins[0] + "/"]
    process = spawn(
        [*script, str(folder.resolve()), *(str(path.resolve()) for path in data)],
        out=log,
        log=log,
    )
    try:
        yield lambda: _check_running(process, log)
    finally:
        stop([process])
        hub.stop()
        thread.join()


def _check_running(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        lines = log.read_text(errors="replace").splitlines()
        raise UnavailableError(f"the browsers have ended: {lines[-1] if lines else 'no message'}")


def _port(folder: Path) -> int:
    """The same at every start: what a browser stores belongs to an address with its port."""
    kept = folder / _PORT_FILE
    if not kept.exists():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            kept.write_text(str(free.getsockname()[1]))
    return int(kept.read_text())


def _web_folder() -> Path:
    """Beside the package, in a checkout alone."""
    return Path(__file__).resolve().parents[2] / "web"


def _find_chromium() -> str:
    found = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if found is None:
        raise UnavailableError(
            f"--browsers: no Chromium is installed (looked for {', '.join(_CHROMIUM)}); "
            "on Debian: sudo apt install chromium"
        )
    return found


def _find_node() -> str:
    """The program itself, not the script of a Python package, which passes no signal on to it."""
    node = shutil.which("node", path=_path())
    version, program = _asked(node) if node else ("", "")
    if int(version.lstrip("v").partition(".")[0] or 0) < _MIN_NODE:
        raise UnavailableError(
            f"--browsers: needs Node {_MIN_NODE} or newer, got {version or 'none'}; "
            "in a checkout 'make web' installs it"
        )
    return program


def _asked(node: str) -> tuple[str, str]:
    """Version and path of the program behind a command; '' if it does not say."""
    command = [node, "-p", "process.version + ' ' + process.execPath"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    version, _, path = done.stdout.strip().partition(" ")
    return version, path


def _path() -> str:
    """Where programs are looked for: first in this environment, as the Makefile does."""
    return os.pathsep.join((str(Path(sys.executable).parent), *os.get_exec_path()))
