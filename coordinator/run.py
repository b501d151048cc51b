"""Puts a coordinator together from a federation file: bundle, strategy, ledger, wire."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from protofleet.coordinator.admission import expect_updates
from protofleet.coordinator.closing import Closer
from protofleet.coordinator.config import FederationConfig
from protofleet.coordinator.evaluation import make_scorer
from protofleet.coordinator.events import Sink
from protofleet.coordinator.ledger import Ledger
from protofleet.coordinator.plan import make_plan
from protofleet.coordinator.results import Results
from protofleet.coordinator.rounds import Phase, State
from protofleet.coordinator.server_tools import make_server_tools
from protofleet.coordinator.service import Service
from protofleet.errors import InputError, UnavailableError
from protofleet.wire.endpoint import Endpoint
from protofleet.wire.link import Link, LinkOptions
from protofleet.wire.topics import Topics
from protofleet.wire.transfer import Courier, Limits


@contextmanager
def open_service(config: FederationConfig, sink: Sink) -> Iterator[Service]:
    """A coordinator, ready to ``run``; leaves a resumable folder however the block ends.

    Raises:
        InputError: bundle, strategy, settings, pooled data or run folder do not fit, or a run
            whose final fit has begun was given more rounds.
        UnavailableError: another coordinator runs in the folder, or the disk fails, also within
            the block.
    """
    try:
        with _open(config, sink) as service:
            yield service
    except BrokenPipeError:
        raise
    except (OSError, sqlite3.Error) as error:
        raise UnavailableError(
            f"run folder {config.run_dir}: {error}; nothing committed is lost: put it right and "
            "start again"
        ) from error


@contextmanager
def _open(config: FederationConfig, sink: Sink) -> Iterator[Service]:
    plan = make_plan(config)
    manifest = plan.bundle.manifest
    expected = expect_updates(plan)
    scorer = make_scorer(plan.bundle, plan.strategy, config.evaluation)
    with Ledger(config.run_dir, plan.identity) as ledger:
        _check_rounds(config, ledger.state())
        results = Results(
            ledger,
            strategy=plan.strategy.description.name,
            seed=config.seed,
            classes=manifest.classes,
            codec=config.codec.text,
        )
        tools = make_server_tools(plan.bundle, plan.strategy, seed=config.seed)
        closer = Closer(plan=plan, ledger=ledger, results=results, scorer=scorer, tools=tools)
        yield Service(
            plan,
            ledger,
            _make_endpoint(config, ledger),
            expected=expected,
            closer=closer,
            sink=sink,
        )


def _check_rounds(config: FederationConfig, found: State) -> None:
    """A final fit has changed what the devices keep, so no round can follow it."""
    fitted = found.round_id - 1 if found.phase is Phase.WAITING else found.round_id
    if found.final and config.rounds >= fitted:
        raise InputError(
            f"rounds: expected {fitted - 1}, after which this run's final fit began, got "
            f"{config.rounds}; for more rounds choose another run_dir and new device stores"
        )


def _make_endpoint(config: FederationConfig, ledger: Ledger) -> Endpoint:
    topics = Topics(config.federation)
    folder = ledger.folder / "partial"
    if ledger.state().phase is not Phase.OPEN:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    limits = Limits(max_blob_bytes=config.limits.update_bytes, concurrent=config.limits.uploads)
    courier = Courier(folder, limits)
    for transfer_id in ledger.transfer_ids():
        courier.remember(transfer_id)
    link = Link(
        LinkOptions(
            url=config.broker,
            client_id=f"{config.federation}-coordinator",
            filters=topics.coordinator_filters(),
        )
    )
    return Endpoint(link, topics, courier)
