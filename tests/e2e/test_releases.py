"""What earlier releases have left on disks is read, and their federations go on.

``tests/releases`` has an archive of each, made by ``tests/support/make_release_data.py``.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from e2e.conftest import Federation

from protofleet.bundle import Bundle
from protofleet.cli.report import report
from protofleet.datasets import load_device_data
from protofleet.edge import open_personal
from protofleet.edge.state.store import read_personal
from protofleet.federation.records import RunRecord, load_record

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=8)]

_ARCHIVES = sorted((Path(__file__).parents[1] / "releases").glob("*.tar.gz"))
_DEVICES = ("device0", "device1")


def test_there_is_one():
    assert _ARCHIVES


@pytest.mark.parametrize("archive", _ARCHIVES, ids=[path.stem for path in _ARCHIVES])
def test_a_federation_of_an_earlier_release_goes_on(archive, tmp_path, mosquitto_url):
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    for place in filter(Path.is_dir, tmp_path.rglob("*")):
        place.chmod(0o700)
    federation = Federation(
        folder=tmp_path,
        url=mosquitto_url,
        bundle=tmp_path / "bundle.pfb",
        trust=tmp_path / "key.pem",
        devices=_DEVICES,
    )
    before = load_record(federation.run_dir / "result.json", RunRecord)
    federation.write(rounds=len(before.rounds) + 2)
    running = [federation.start_coordinator()]
    running += [federation.start_device(name) for name in _DEVICES]
    try:
        for process in running:
            assert process.finish() == 0, process.log
    finally:
        for process in running:
            process.kill()
    after = load_record(federation.run_dir / "result.json", RunRecord)
    assert [one.scores for one in after.rounds[: len(before.rounds)]] == [
        one.scores for one in before.rounds
    ]
    assert len(after.rounds) == len(before.rounds) + 2
    signer = bytes.fromhex(Bundle.open(federation.bundle, any_signer=True).signer)
    for name in _DEVICES:
        store = tmp_path / f"store-{name}"
        _, state = read_personal(store)
        assert state.round_id == len(after.rounds)
        model = open_personal(store, use="personal", bundle=federation.bundle, trusted=[signer])
        x = load_device_data(tmp_path / f"{name}.npz").x_test
        assert len(model.predict(x)) == len(x)
    done = CliRunner().invoke(report, [str(federation.file)])
    assert done.exit_code == 0, done.output
