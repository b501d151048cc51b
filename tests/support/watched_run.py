"""A run that an operator looks at: real devices have ended some rounds, and one is awaited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from keyed_federation import part
from threaded import Federation
from tiny_bundle import tiny_bundle

from protofleet.benchmarks._keys import enrol_here
from protofleet.coordinator import events
from protofleet.federation.settings import CohortSettings, FederationConfig, RoundSettings
from protofleet.wire.mqtt.broker_access import BrokerAccess

NAMES = ("anna", "berta", "carla")


@contextmanager
def watched_run(
    folder: Path,
    url: str,
    key: Ed25519PrivateKey,
    *,
    names: Sequence[str] = NAMES,
    gone: int = 1,
    rounds: int = 3,
) -> Iterator[Federation]:
    """A keyed federation after so many rounds; the last ``gone`` of its devices have left.

    The open round waits for them, for two minutes, and then the next.
    """
    enrol_here(folder / "federation", "home", {n: folder / f"store-{n}" for n in names}, url)
    config = FederationConfig(
        federation="home",
        broker=BrokerAccess(url=url),
        bundle=tiny_bundle(folder / "tiny.pfb", key),
        run_dir=folder / "run",
        rounds=1000,
        keys=folder / "federation",
        cohort=CohortSettings(minimum=len(names)),
        round=RoundSettings(deadline_s=120.0, quorum=len(names) - gone),
    )
    data = {name: part(seed) for seed, name in enumerate(names, 1)}
    with Federation(config, data) as federation:
        federation.wait_for(lambda e: isinstance(e, events.RoundClosed) and e.round_id == rounds)
        for name in names[len(names) - gone :]:
            federation.devices[name].stop()
        yield federation
