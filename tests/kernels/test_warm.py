"""Every kernel can be compiled ahead of time, and then nothing has to be compiled any more."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from protofleet.cli.kernels import kernels as command
from protofleet.cli.main import main
from protofleet.errors import InputError, UnavailableError
from protofleet.kernels import compiled, warm
from protofleet.kernels.native import warm as kernel_warm

_COMPILED = [p for p in Path(compiled.__file__).parent.glob("*.py") if p.stem != "__init__"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOFLEET_KERNEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(monkeypatch):
    if importlib.util.find_spec("numba") is None:
        pytest.skip("needs numba")
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}:
        pytest.skip("about compiled code")
    monkeypatch.setenv("PROTOFLEET_NUMBA", "1")


@pytest.fixture
def few(compiler, monkeypatch):  # noqa: ARG001 - skips without one
    """Two kernels stand for all: each takes a moment to compile."""
    chosen = [k for k in kernel_warm.all_kernels() if k.name in {"mean.divide", "alp.move"}]
    monkeypatch.setattr(kernel_warm, "all_kernels", lambda: tuple(chosen))


def test_kernels_of_every_module_are_found():
    modules = {kernel.name.partition(".")[0] for kernel in kernel_warm.all_kernels()}
    assert modules == {path.stem for path in _COMPILED}


def test_no_two_kernels_share_a_name():
    """Names are file names in the cache, and a later one would hide an earlier."""
    declared = [line for path in _COMPILED for line in path.read_text().splitlines()]
    assert len(kernel_warm.all_kernels()) == sum(line.startswith("@kernel(") for line in declared)


@pytest.mark.usefixtures("few")
def test_a_second_time_finds_everything_there(cache):
    told = []
    assert warm(lambda *line: told.append(line)) == (2, 0, cache)
    assert warm(lambda *line: told.append(line)) == (0, 2, cache)
    names = ["alp.move", "mean.divide"]
    assert told == [(n, True) for n in names] + [(n, False) for n in names]


@pytest.mark.usefixtures("few")
def test_what_is_missing_alone_is_compiled(cache):
    warm()
    next(cache.glob("mean.divide-*")).unlink()
    assert warm() == (1, 1, cache)


@pytest.mark.usefixtures("few")
def test_a_folder_that_cannot_be_written_is_an_error(cache):
    """A kernel only warns, but an image without its cache is of no use."""
    cache.touch()
    with pytest.raises(InputError, match="expected a folder that can be written"):
        warm()


@pytest.mark.usefixtures("few")
def test_the_command_names_each_kernel_and_ends_with_the_folder(tmp_path):
    result = CliRunner().invoke(command, ["warm", "--cache", str(tmp_path / "image")])
    assert result.exit_code == 0
    assert result.stderr.splitlines() == ["alp.move: compiled", "mean.divide: compiled"]
    assert result.stdout.startswith("2 kernels compiled, 0 already there; ")
    assert result.stdout.endswith(f" s; {tmp_path / 'image'}\n")
    assert len(list((tmp_path / "image").glob("*.o"))) == 2


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PROTOFLEET_NUMBA", "0", "selects the NumPy kernels"),
        ("NUMBA_DISABLE_JIT", "1", "lets them run as Python"),
    ],
)
def test_a_switch_that_leaves_nothing_to_compile_is_named(monkeypatch, variable, value, words):
    monkeypatch.setenv("PROTOFLEET_NUMBA", "1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnavailableError, match=words):
        warm()


def test_without_numba_the_remedy_is_named(monkeypatch, capsys):
    monkeypatch.setenv("PROTOFLEET_NUMBA", "1")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    monkeypatch.setattr(kernel_warm, "numba_enabled", lambda: False)
    with pytest.raises(SystemExit) as ended:
        main(["kernels", "warm"])
    assert ended.value.code == 1
    assert "pip install 'protofleet[edge]'" in capsys.readouterr().err


@pytest.mark.slow(seconds=10)
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("warmed", [True, False])
def test_after_warming_a_process_loads_no_numba(cache, warmed):
    """With an empty cache it does: the test can tell the difference."""
    environment = {**os.environ, "PROTOFLEET_NUMBA": "1"}
    if warmed:
        command = [sys.executable, "-m", "protofleet", "kernels", "warm"]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=200)
        assert any(cache.glob("*.o"))
    code = (
        "import sys, numpy as np\n"
        "from protofleet.kernels import alp_train\n"
        "ones = np.eye(4, dtype=np.float32)\n"
        "alp_train(ones[None], ones, ones)\n"
        "print('numba' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == [str(not warmed)]
