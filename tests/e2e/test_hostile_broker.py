"""A broker that drops, repeats, alters, cuts, swaps and reorders: with keys it costs only time."""

from __future__ import annotations

import random
import shutil

import msgspec
import pytest
from hostile_broker import Malice, hostile_broker
from keyed_federation import DATA, keyed_config, outcome
from threaded import Federation

from protofleet.wire.broker_access import BrokerAccess

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=20)]

_ACTS = {"drop": 0.1, "alter": 0.1, "cut": 0.05, "reorder": 0.05, "replay": 0.2, "swap": 0.05}


@pytest.mark.parametrize("seed", [1, 2])
def test_no_message_of_a_lying_broker_changes_a_bit(tmp_path, mosquitto_url, key, seed):
    malice = Malice(random.Random(seed), _ACTS, tuple(DATA))
    with hostile_broker(BrokerAccess(url=mosquitto_url).address().port, malice) as url:
        config = keyed_config(tmp_path, url, key)
        with Federation(config, DATA) as federation:
            found = outcome(federation.finish(240))
    assert all(malice.done[act] for act in _ACTS), malice.done
    honest = msgspec.structs.replace(
        config,
        broker=BrokerAccess(url=mosquitto_url),
        keys=None,
        run_dir=tmp_path / "honest" / "run",
    )
    shutil.rmtree(tmp_path / "run")
    honest.run_dir.parent.mkdir()
    with Federation(honest, DATA) as federation:
        assert outcome(federation.finish()) == found
