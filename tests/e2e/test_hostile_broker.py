"""A broker that drops, repeats, alters, cuts, swaps and reorders: with keys it costs only time."""

from __future__ import annotations

import random
import shutil

import msgspec
import pytest
from hostile_broker import Malice, hostile_broker
from keyed_federation import DATA, keyed_config, outcome
from threaded import Federation

from protofleet.wire.mqtt.broker_access import BrokerAccess

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=60)]

_ACTS = {"drop": 0.04, "alter": 0.04, "cut": 0.02, "reorder": 0.03, "replay": 0.3, "swap": 0.04}


def test_no_message_of_a_lying_broker_changes_a_bit(tmp_path, mosquitto_url, key):
    malice = Malice(random.Random(2), _ACTS, tuple(DATA))
    with hostile_broker(BrokerAccess(url=mosquitto_url).address().port, malice) as url:
        config = keyed_config(tmp_path, url, key)
        with Federation(config, DATA) as federation:
            found = outcome(federation.finish(240))
    assert len(malice.done) > 3
    assert malice.done.total() > 20, malice.done
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
