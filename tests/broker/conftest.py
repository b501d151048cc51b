"""A secured broker for each file of tests, once Mosquitto and once the embedded one."""

from __future__ import annotations

import pytest
from secured_broker import secured


@pytest.fixture(scope="module", params=["mosquitto", "amqtt"])
def secured_broker(request, tmp_path_factory):
    with secured(request.param, tmp_path_factory.mktemp("run") / "broker") as running:
        yield running
