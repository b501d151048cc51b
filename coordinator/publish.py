"""Publishing a bundle to a run, and taking it back: by a command beside the coordinator."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle import Bundle
from protofleet.bundle.bundle import SUFFIX
from protofleet.coordinator.database import open_database
from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.control import not_started
from protofleet.coordinator.ledger.formats import check_ledger
from protofleet.coordinator.ledger.queries import has_committed, read_identity
from protofleet.coordinator.ledger.rollout_rows import (
    BUNDLES,
    STAGES,
    Rollout,
    RolloutDevice,
    RolloutRows,
    RolloutSettings,
    RolloutState,
)
from protofleet.coordinator.ledger.rows import SCHEMA
from protofleet.durable import TEMPORARY, sync_folder
from protofleet.errors import InputError, RefusedError
from protofleet.federation.compatibility import check_compatible
from protofleet.federation.plan import Plan, make_plan
from protofleet.federation.settings import FederationConfig
from protofleet.private_files import make_private_folder
from protofleet.wire.trust.identity import BundleWithdrawal, public_bytes, sign_statement

_ANEW = (
    "to begin anew with it, stop this run, name the bundle and another run_dir in the file, start "
    "that run, and let devices fetch it: protofleet bundle publish FILE"
)


class RolloutStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a bundle is.

    Attributes:
        federation: its name.
        active: digest of the bundle that the run has now.
        rollout: the latest; None: there was none.
        stage: its stage, by name.
        counts: its devices by state.
        devices: its devices, by stage and id.
    """

    federation: str
    active: str
    rollout: Rollout | None = None
    stage: str = ""
    counts: dict[str, int] = {}
    devices: tuple[RolloutDevice, ...] = ()


def stored_bundle(run_dir: Path, digest: str) -> Path:
    """Where a run keeps a published bundle."""
    return run_dir / BUNDLES / f"{digest}{SUFFIX}"


def plan_in_place(config: FederationConfig, *, finds_rate: bool = True) -> Plan:
    """The plan of a run with the bundle that has taken the place of the federation file's.

    Args:
        config: the federation file.
        finds_rate: as of ``make_plan``.

    Raises:
        InputError: as ``make_plan``.
        RefusedError: as ``make_plan``.
    """
    plan = make_plan(config, finds_rate=finds_rate)
    active = read_identity(config.run_dir).get("bundle", plan.bundle.digest)
    known = stored_bundle(config.run_dir, plan.bundle.digest).exists()
    path = stored_bundle(config.run_dir, active)
    if active == plan.bundle.digest or not known or not path.exists():
        return plan  # another bundle than the run's is refused by its ledger
    return make_plan(msgspec.structs.replace(config, bundle=path), finds_rate=finds_rate)


def publish(config: FederationConfig, path: Path, settings: RolloutSettings) -> RolloutStatus:
    """Let a run's devices have another bundle, in stages; durable when this returns.

    Args:
        config: the federation file.
        path: of the bundle.
        settings: how it is rolled out.

    Raises:
        InputError: no run was started, or the bundle is not later than the run's, or its devices
            could not take part in the same rounds, or another roll-out is under way, or the run
            has cells.
        RefusedError: the bundle breaks a rule, or its signer is not trusted.
    """
    _check_no_cells(config)
    _ledger(config)
    old = plan_in_place(config)
    new = make_plan(msgspec.structs.replace(config, bundle=path))
    _check_later(old.bundle, new.bundle)
    _check_same_run(old, new, started=_has_rounds(config))
    for bundle in (old.bundle, new.bundle):
        _keep(config.run_dir, bundle)
    manifest = new.bundle.manifest
    with _opened(config) as db:
        RolloutRows(db).begin(
            new.bundle.digest,
            old.bundle.digest,
            sequence=max(manifest.sequence, manifest.replaces_up_to),
            settings=settings,
        )
    return read_rollout(config)


def publish_own(config: FederationConfig, *, max_failures: float) -> RolloutStatus:
    """Let devices of another run of the federation have this run's bundle, whatever its layout.

    All at once, because no round opens without them. Where the run itself has changed its bundle,
    devices with any other are offered it already. Durable when this returns.

    Args:
        config: the federation file.
        max_failures: share of the devices; if more fail, it pauses.

    Raises:
        InputError: no run was started, or the file names another bundle than the run has, or
            another roll-out is under way or has changed the run's bundle, or the run has cells.
        RefusedError: the bundle breaks a rule, or its signer is not trusted.
    """
    _ledger(config)
    _check_no_cells(config)
    bundle = plan_in_place(config).bundle
    settings = RolloutSettings(max_failures=max_failures, max_loss=0.0, on_failure="pause")
    with _opened(config) as db:
        rows = RolloutRows(db)
        active, found = rows.active(), rows.latest()
        if bundle.digest != active:
            raise InputError(
                f"bundle publish: the run in {config.run_dir} has bundle {active[:16]}, the "
                f"federation file names {bundle.digest[:16]}: {_ANEW}"
            )
        if found is not None and found.former and found.state == "complete":
            raise InputError(
                f"bundle publish: nothing to do, the run has rolled out {active[:16]} itself and "
                "offers it to every device that comes with another bundle"
            )
        _keep(config.run_dir, bundle)
        rows.begin(
            bundle.digest,
            "",
            sequence=max(bundle.manifest.sequence, bundle.manifest.replaces_up_to),
            settings=settings,
            stage=len(STAGES) - 1,
        )
    return read_rollout(config)


def take_back(config: FederationConfig, key: Ed25519PrivateKey | None) -> RolloutStatus:
    """Let all devices have the bundle before again; durable when this returns.

    Args:
        config: the federation file.
        key: of the bundles' signer, who alone can take back a bundle that the run itself has.

    Raises:
        InputError: there is nothing to take back, or the key is needed and not there.
    """
    with _opened(config) as db:
        rows = RolloutRows(db)
        found = rows.latest()
        if found is None or found.state == "taken_back" or found.withdrawal:
            raise InputError(f"run folder {config.run_dir}: no bundle was published, or it is back")
        if not found.former and not found.under_way:
            raise InputError(
                f"run folder {config.run_dir}: there is none before its bundle; devices' states of "
                "the run before stay in their stores"
            )
        if found.under_way:
            rows.move(found, "taken_back")
        else:
            sequence, statement = _withdrawal(config, found, key)
            rows.withdraw(found, sequence=sequence, withdrawal=statement)
    return read_rollout(config)


def _withdrawal(
    config: FederationConfig, found: Rollout, key: Ed25519PrivateKey | None
) -> tuple[int, str]:
    if key is None:
        raise InputError(
            f"bundle {found.target[:16]}: devices go back from it on its signer's word alone; give "
            "the signing key: --key PATH"
        )
    bundles = [
        Bundle.open(stored_bundle(config.run_dir, digest), any_signer=True)
        for digest in (found.target, found.former)
    ]
    if public_bytes(key).hex() not in {one.signer for one in bundles}:
        raise InputError(f"bundle {found.target[:16]}: the key given has not signed it")
    statement = BundleWithdrawal(
        federation=config.federation, withdrawn=found.target, restored=found.former
    )
    return bundles[1].manifest.sequence, sign_statement(key, statement)


def steer(config: FederationConfig, state: RolloutState) -> RolloutStatus:
    """Pause a roll-out, or let it go on: after a pause, or with the next stage.

    Raises:
        InputError: there is none under way.
    """
    with _opened(config) as db:
        rows = RolloutRows(db)
        found = rows.latest()
        if found is None or not found.under_way:
            raise InputError(f"run folder {config.run_dir}: no roll-out of a bundle is under way")
        rows.move(found, state)
    return read_rollout(config)


def read_rollout(config: FederationConfig) -> RolloutStatus:
    """How far the latest roll-out of a run is; works while it runs.

    Raises:
        InputError: no run was started.
    """
    with _opened(config) as db:
        rows = RolloutRows(db)
        found, active = rows.latest(), rows.active()
        devices = [] if found is None else rows.devices(found.id)
    return RolloutStatus(
        federation=config.federation,
        active=active,
        rollout=found,
        stage="" if found is None else STAGES[found.stage],
        counts=dict(Counter(one.state for one in devices)),
        devices=tuple(devices),
    )


def _ledger(config: FederationConfig) -> Path:
    path = config.run_dir / LEDGER
    if not path.is_file():
        raise not_started(config.run_dir)
    return path


@contextmanager
def _opened(config: FederationConfig) -> Iterator[sqlite3.Connection]:
    """The ledger, to write what an operator wants beside the coordinator."""
    prepare = partial(check_ledger, config.run_dir)
    with closing(open_database(_ledger(config), SCHEMA, prepare)) as db:
        yield db


def _has_rounds(config: FederationConfig) -> bool:
    with _opened(config) as db:
        return has_committed(db)


def _check_no_cells(config: FederationConfig) -> None:
    if config.cells is not None:
        raise InputError(
            "bundle publish: expected a federation without [cells]: root and cells would change "
            "bundles at different times; begin another run, in another run_dir, with the new one"
        )


def _check_later(old: Bundle, new: Bundle) -> None:
    was, now = old.manifest, new.manifest
    if new.digest == old.digest:
        raise InputError(f"bundle '{now.name}': the run has this very one ({new.digest[:16]})")
    if now.sequence <= was.sequence and now.replaces_up_to < was.sequence:
        raise InputError(
            f"bundle '{now.name}': expected a sequence above {was.sequence}, that of the run's "
            f"bundle, got {now.sequence}; export it with --sequence {was.sequence + 1}"
        )
    if now.sequence == was.sequence:
        raise InputError(
            f"bundle '{now.name}': has the sequence {was.sequence} of the run's bundle; export it "
            f"with --sequence {was.sequence + 1}"
        )


def _check_same_run(old: Plan, new: Plan, *, started: bool) -> None:
    """What the server and devices keep must go on to mean the same."""
    try:
        check_compatible(old.bundle.manifest, new.bundle.manifest)
    except RefusedError as error:
        raise InputError(f"{error}; {_ANEW}") from error
    was, now = old.identity, new.identity
    for name in was.keys() - {"bundle"}:
        if was[name] != now[name]:
            raise InputError(
                f"bundle '{new.bundle.manifest.name}': with it the run's {name} would be "
                f"{now[name][:200]}, it is {was[name][:200]}; write it into the federation file's "
                "[strategy] to keep it"
            )
    values = [
        {
            name: entry.sha256
            for name, entry in one.bundle.manifest.files.items()
            if name.endswith(".safetensors")
        }
        for one in (old, new)
    ]
    if values[0] != values[1] and not (started and old.config.codec.is_raw):
        when = "coded payloads refer to them" if started else "no round has changed them yet"
        raise InputError(
            f"bundle '{new.bundle.manifest.name}': its initial values are others, and {when}: "
            f"export it with those of the run's bundle, or {_ANEW}"
        )


def _keep(run_dir: Path, bundle: Bundle) -> None:
    path = stored_bundle(run_dir, bundle.digest)
    make_private_folder(path.parent, "published bundles")
    if path.exists():
        return
    temporary = path.with_name(path.name + TEMPORARY)
    bundle.copy_to(temporary)
    temporary.replace(path)
    sync_folder(path.parent)
