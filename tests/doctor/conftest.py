"""What tests of ``protofleet doctor`` examine, and how they read what is said."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle

from protofleet.cli.doctor import doctor
from protofleet.doctor import examine, guess, with_what_it_names


@pytest.fixture
def told():
    """What is said of paths, or of subjects, and of what they name: a dict for each line."""

    def run(*given):
        subjects = [guess(one) if isinstance(one, Path) else one for one in given]
        every = [part for one in subjects for part in with_what_it_names(one)]
        return [msgspec.to_builtins(line) for line in examine(every)]

    return run


@pytest.fixture
def command():
    """Runs the command; its exit status, and a dict for each line."""

    def run(*arguments):
        done = CliRunner().invoke(doctor, ["--json", *map(str, arguments)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.fixture
def bundle(tmp_path):
    return tiny_bundle(tmp_path / "tiny.pfb", Ed25519PrivateKey.generate())
