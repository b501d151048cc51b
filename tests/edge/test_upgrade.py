"""A bundle that comes over the wire: what a device takes, refuses, keeps; a kill at any write."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deadly_writes import die_at_write
from fake_endpoint import Clock, FakeDeviceEndpoint
from tiny_bundle import PROGRAMS, tiny_bundle, tiny_data
from trained_round import trained_round

from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData
from protofleet.edge.learning.training import LocalData
from protofleet.edge.rehearsal import rehearse
from protofleet.edge.state.journal import StoreBinding, bundle_path
from protofleet.edge.state.store import Store, load_state
from protofleet.edge.upgrade import ATTEMPTS, Upgrades, bundle_in_place
from protofleet.errors import ProvisionError, RefusedError
from protofleet.strategies.types import ClientState
from protofleet.wire.messages import Announcement, BundleOffer
from protofleet.wire.transfers.transfer import Received, describe
from protofleet.wire.trust.identity import BundleWithdrawal, sign_statement

_KEY = Ed25519PrivateKey.generate()
_TRUSTED = (_KEY.public_key().public_bytes_raw(),)
_CLASSES = ("class0", "class1", "class2")


def _bundle(folder, sequence, key=_KEY, **options):
    path = tiny_bundle(folder / f"{sequence}.pfb", key, sequence=sequence, **options)
    return Bundle.open(path, any_signer=True)


def _path(folder, sequence):
    return folder / f"{sequence}.pfb"


def _announcement(bundle, *others, withdrawal="", run_id="run1", strategy="fedavg"):
    return Announcement(
        federation="lab",
        boot_id="c",
        phase="training",
        round_id=4,
        rounds=9,
        strategy=strategy,
        bundle=bundle.digest,
        layout_hash=bundle.manifest.layout_hash,
        bundles=tuple(one.digest for one in others),
        withdrawal=withdrawal,
        run_id=run_id,
    )


class _Device:
    """A store with a round that has counted, and what it does about bundles."""

    def __init__(
        self, folder, present, rehearsed=lambda _bundle, _path: None, strategy="fedavg", state=None
    ):
        self.store = Store.open(folder / "store", device_id="d")
        binding = StoreBinding(
            federation="lab", bundle=present.digest, layout_hash=present.manifest.layout_hash
        )
        if self.store.journal.binding is None:
            self.store.keep_bundle(present)
            self.store.bind(binding, sequence=present.manifest.sequence)
            self.store.bind_strategy(strategy, {})
            state = ClientState(round_id=3, tensors=state or {"a": np.ones(3, np.float32)})
            self.store.commit_trained(trained_round(state, b"update"), transfer_id="t")
            self.store.commit_delivered()
        self.endpoint = FakeDeviceEndpoint(folder / "store" / "parts", Clock(), [], "d")
        self.upgrades = Upgrades(
            self.endpoint,
            self.store,
            present.manifest,
            present=present.digest,
            rehearse=rehearsed,
            trusted=_TRUSTED,
        )
        self.upgrades.announced(_announcement(present))

    def offered(self, path, bundle, changes=None):
        payload = describe(path, kind="bundle", device_id="d", round_id=0)
        offer = BundleOffer(
            federation="lab",
            bundle=bundle.digest,
            sequence=bundle.manifest.sequence,
            payload=payload,
        )
        self.upgrades.offered(msgspec.structs.replace(offer, **changes or {}))
        return payload

    def fetched(self, path, bundle):
        payload = self.offered(path, bundle)
        part = self.store.folder / "parts" / "one.part"
        part.write_bytes(path.read_bytes())
        self.upgrades.received(Received("d", payload, part))

    def checked(self):
        until = time.monotonic() + 30
        states = []
        while not states or states[-1] not in ("tested", "failed"):
            assert time.monotonic() < until
            if self.upgrades.advance(idle=True):
                states.append(self.upgrades.progress.state)
            time.sleep(0.002)
        return states

    @property
    def bundle(self):
        return self.store.journal.binding.bundle


@pytest.fixture
def present(tmp_path):
    return _bundle(tmp_path, 1)


@pytest.fixture
def device(tmp_path, present):
    made = _Device(tmp_path, present)
    with made.store:
        yield made


def test_a_bundle_is_fetched_verified_tested_and_takes_its_place_with_the_state(
    device, present, tmp_path
):
    new = _bundle(tmp_path, 2)
    device.fetched(_path(tmp_path, 2), new)
    assert device.endpoint.receipts[-1].status == "done"
    assert device.upgrades.progress.state == "fetched"
    states = device.checked()
    assert states[-1] == "tested"
    assert not device.upgrades.due  # the federation does not say that it may
    device.upgrades.announced(_announcement(present, new))
    assert device.upgrades.due
    before = device.store.journal
    device.upgrades.switch()
    after = device.store.journal
    assert (after.binding.bundle, after.state, after.sequence) == (new.digest, before.state, 1)
    assert {path.stem for path in device.store.folder.glob("*.pfb")} == {new.digest, present.digest}
    assert bundle_in_place(device.store, present) == bundle_path(device.store.folder, new.digest)
    assert bundle_in_place(device.store, _bundle(tmp_path, 7)) is None


def test_until_the_federation_runs_it_an_announcement_takes_it_back_with_its_state(
    device, present, tmp_path
):
    new = _bundle(tmp_path, 2)
    device.fetched(_path(tmp_path, 2), new)
    device.checked()
    device.upgrades.announced(_announcement(present, new))
    device.upgrades.switch()
    state = ClientState(round_id=4, tensors={"a": np.zeros(3, np.float32)})
    device.store.commit_trained(trained_round(state, b"other"), transfer_id="u")
    device.store.commit_delivered()
    assert device.upgrades.is_taken_back(_announcement(present))
    device.upgrades.go_back()
    assert device.bundle == present.digest
    memory = device.store.load_memory()
    assert memory.state.round_id == 3
    np.testing.assert_array_equal(memory.state.tensors["a"], np.ones(3, np.float32))


def test_from_then_on_only_its_signer_takes_it_back(tmp_path, present):
    new = _bundle(tmp_path, 2)
    device = _Device(tmp_path, present)
    with device.store:
        device.fetched(_path(tmp_path, 2), new)
        device.checked()
        device.upgrades.announced(_announcement(present, new))
        device.upgrades.switch()
    device = _Device(tmp_path, new)  # its next process, which the federation's announcement greets
    with device.store:
        assert device.store.journal.sequence == 2
        said = BundleWithdrawal(federation="lab", withdrawn=new.digest, restored=present.digest)
        wrong = [
            "",
            sign_statement(Ed25519PrivateKey.generate(), said),
            sign_statement(_KEY, msgspec.structs.replace(said, federation="home")),
            sign_statement(_KEY, msgspec.structs.replace(said, withdrawn=present.digest)),
            sign_statement(_KEY, msgspec.structs.replace(said, restored="ab" * 32)),
        ]
        for statement in wrong:
            with pytest.raises(RefusedError) as caught:
                device.upgrades.is_taken_back(_announcement(present, withdrawal=statement))
            assert caught.value.rule == "withdrawal"
        right = _announcement(present, withdrawal=sign_statement(_KEY, said))
        assert device.upgrades.is_taken_back(right)
        device.upgrades.go_back()
        assert (device.bundle, device.store.journal.sequence) == (present.digest, 1)


def test_what_is_older_or_no_offer_is_refused(device, present, tmp_path):
    old, new = _bundle(tmp_path, 0), _bundle(tmp_path, 2)
    cases = [
        ("sequence", _path(tmp_path, 0), old, {}),
        ("has-bundle", _path(tmp_path, 1), present, {}),
        ("bundle", _path(tmp_path, 2), new, {"bundle": "../../etc/passwd"}),
        ("bundle", _path(tmp_path, 2), new, {"bundle": new.digest.upper()}),
        ("kind", _path(tmp_path, 2), new, {"payload": None}),
    ]
    for rule, path, bundle, changes in cases:
        with pytest.raises(RefusedError) as caught:
            device.offered(path, bundle, changes)
        assert caught.value.rule == rule
    assert device.endpoint.expected == []
    assert device.store.journal.candidate is None


def test_what_was_not_signed_or_is_not_what_was_offered_fails_and_changes_nothing(
    device, present, tmp_path
):
    new = _bundle(tmp_path, 2)
    stranger = _bundle(tmp_path, 3, Ed25519PrivateKey.generate())
    wide = _bundle(tmp_path, 4, features=4, classes=5)
    torn = tmp_path / "torn.pfb"
    torn.write_bytes(_path(tmp_path, 2).read_bytes()[:-30])
    cases = [("untrusted", _path(tmp_path, 3), stranger), ("truncated", torn, new)]
    cases += [("bundle", _path(tmp_path, 2), _bundle(tmp_path, 5))]
    cases += [("layout", _path(tmp_path, 4), wide)]
    before = device.store.journal
    for rule, path, bundle in cases:
        device.fetched(path, bundle)
        assert device.checked()[-1] == "failed"
        assert device.upgrades.progress.rule == rule
        assert device.endpoint.receipts[-1].rule == rule
        device.upgrades.announced(_announcement(present, bundle))
        assert not device.upgrades.due
        assert [path.stem for path in device.store.folder.glob("*.pfb")] == [present.digest]
    assert msgspec.structs.replace(device.store.journal, candidate=None) == before


_PERSONAL = {
    "params/w": np.ones((4, 3), np.float32),
    "params/b": np.ones(3, np.float32),
}


@pytest.fixture
def owner(tmp_path, present):
    """A device with a personal model."""
    made = _Device(tmp_path, present, strategy="local", state=_PERSONAL)
    with made.store:
        yield made


def _of_run_2(bundle, strategy="local", **more):
    return _announcement(bundle, run_id="run2", strategy=strategy, **more)


def _in_round(state, round_id):
    return ClientState(round_id=round_id, tensors=state.tensors)


def test_to_another_runs_bundle_goes_what_fits_and_all_stays_beside(owner, present, tmp_path):
    wide = _bundle(tmp_path, 2, classes=5)
    assert not owner.upgrades.is_taken_back(_of_run_2(wide))
    assert not owner.upgrades.has_other_run
    owner.fetched(_path(tmp_path, 2), wide)
    assert owner.upgrades.has_other_run
    assert owner.checked()[-1] == "tested"
    assert owner.upgrades.due
    before = owner.store.journal
    figures = owner.upgrades.switch()
    assert figures["tensors"]["kept_in_part"] == ["params/b", "params/w"]
    start = owner.store.load_memory().state
    assert start.round_id == 0  # the new run counts from 1
    np.testing.assert_array_equal(start.tensors["params/w"][:, :3], np.ones((4, 3)))
    initial = wide.model().params["w"]
    np.testing.assert_array_equal(start.tensors["params/w"][:, 3:], initial[:, 3:])
    journal = owner.store.journal
    assert (journal.binding.bundle, journal.sequence) == (wide.digest, 2)
    assert journal.in_use == before.in_use  # it predicts as before until a round counts
    assert bundle_in_place(owner.store, present) == bundle_path(owner.store.folder, wide.digest)
    owner.store.commit_trained(trained_round(_in_round(start, 1), b"new"), transfer_id="n")
    owner.store.commit_delivered()
    _assert_stays_beside(owner, before)


def _assert_stays_beside(owner, before):
    kept = owner.store.journal.fallback
    assert (kept.binding, kept.state, kept.run_id) == (before.binding, before.state, "run1")
    tensors = load_state(owner.store.folder, kept.state).tensors
    np.testing.assert_array_equal(tensors["params/w"], _PERSONAL["params/w"])
    found = {path.stem for path in owner.store.folder.glob("*.pfb")}
    assert found == set(owner.store.journal.own_bundles)


@pytest.mark.parametrize(
    ("options", "strategy", "why"),
    [({"features": 40}, "local", "input_shape"), ({"classes": 5}, "ditto", "now runs 'ditto'")],
)
def test_a_state_that_would_mean_something_else_in_another_run_stays_beside(
    owner, tmp_path, options, strategy, why
):
    other = _bundle(tmp_path, 2, **options)
    owner.upgrades.is_taken_back(_of_run_2(other, strategy))
    owner.fetched(_path(tmp_path, 2), other)
    owner.checked()
    before = owner.store.journal
    figures = owner.upgrades.switch()
    assert why in figures["notes"][0]
    assert owner.store.load_memory().state is None
    owner.store.check_strategy(strategy)
    assert owner.store.journal.in_use == before.in_use
    _assert_stays_beside(owner, before)


def test_to_another_run_only_a_later_bundle_leads(owner, tmp_path):
    again = _bundle(tmp_path / "again", 1, classes=5)
    path = _path(tmp_path / "again", 1)
    owner.upgrades.is_taken_back(_of_run_2(again))
    with pytest.raises(RefusedError) as caught:
        owner.offered(path, again)
    assert caught.value.rule == "sequence"
    payload = owner.offered(path, again, {"sequence": 9})
    part = owner.store.folder / "parts" / "one.part"
    part.write_bytes(path.read_bytes())
    owner.upgrades.received(Received("d", payload, part))
    assert owner.checked()[-1] == "failed"
    assert owner.upgrades.progress.rule == "sequence"


def test_what_was_tested_for_the_same_run_moves_to_another_and_not_the_other_way(
    owner, present, tmp_path
):
    new = _bundle(tmp_path, 2)
    path = _path(tmp_path, 2)
    owner.fetched(path, new)
    owner.checked()
    owner.upgrades.is_taken_back(_of_run_2(new))
    assert owner.upgrades.due
    owner.upgrades.announced(_announcement(present, new))
    before = owner.store.journal
    owner.upgrades.is_taken_back(_of_run_2(new))
    owner.upgrades.switch()
    assert owner.store.journal.last_round_id == 0
    # Before its new run has greeted it, the run before can have it back as it was.
    assert owner.upgrades.is_taken_back(_announcement(present))
    owner.upgrades.go_back()
    after = owner.store.journal
    assert (owner.bundle, after.state, after.in_use) == (
        present.digest,
        before.state,
        before.in_use,
    )
    assert after.run_id == "run1"

    wide = _bundle(tmp_path, 3, classes=5)
    owner.upgrades.is_taken_back(_of_run_2(wide))
    owner.fetched(_path(tmp_path, 3), wide)
    owner.checked()
    owner.upgrades.announced(_announcement(present, wide))  # it cannot be true
    assert not owner.upgrades.due
    owner.offered(_path(tmp_path, 3), wide)
    assert owner.checked()[-1] == "failed"
    assert owner.upgrades.progress.rule == "layout"


def test_a_run_that_changed_its_bundle_twice_is_the_same_run(owner, tmp_path):
    new = _bundle(tmp_path, 2)
    said = BundleWithdrawal(federation="lab", withdrawn="ab" * 32, restored=new.digest)
    owner.upgrades.is_taken_back(_announcement(new))
    owner.fetched(_path(tmp_path, 2), new)
    owner.checked()
    assert owner.upgrades.due
    before = owner.store.journal.state
    owner.upgrades.switch()
    assert owner.store.journal.state == before
    # What another run takes back is not this device's matter.
    other = _bundle(tmp_path, 4, classes=5)
    statement = sign_statement(_KEY, said)
    assert not owner.upgrades.is_taken_back(_of_run_2(other, withdrawal=statement))
    owner.fetched(_path(tmp_path, 4), other)
    assert owner.upgrades.has_other_run


def test_a_device_that_never_took_part_takes_another_runs_bundle(tmp_path, present):
    wide = _bundle(tmp_path, 2, classes=5)
    with Store.open(tmp_path / "store", device_id="d") as store:
        endpoint = FakeDeviceEndpoint(tmp_path / "store" / "parts", Clock(), [], "d")
        upgrades = Upgrades(
            endpoint,
            store,
            present.manifest,
            present=present.digest,
            rehearse=lambda _bundle, _path: None,
            trusted=_TRUSTED,
        )
        device = _Device.__new__(_Device)
        device.store, device.endpoint, device.upgrades = store, endpoint, upgrades
        upgrades.is_taken_back(_of_run_2(wide))
        device.fetched(_path(tmp_path, 2), wide)
        device.checked()
        upgrades.switch()
        assert device.bundle == wide.digest
        assert bundle_in_place(store, present) == bundle_path(store.folder, wide.digest)
        assert store.journal.fallback is None


def test_a_bundle_that_is_gone_fails_and_ends_nothing(owner, tmp_path):
    wide = _bundle(tmp_path, 2, classes=5)
    owner.upgrades.is_taken_back(_of_run_2(wide))
    owner.fetched(_path(tmp_path, 2), wide)
    owner.checked()
    bundle_path(owner.store.folder, wide.digest).unlink()
    assert owner.upgrades.switch() is None
    assert owner.upgrades.progress.state == "failed"
    assert owner.endpoint.receipts[-1].status == "reject"


def test_no_offer_overwrites_a_bundle_that_the_device_has(owner, present, tmp_path):
    """Not one that only the way back needs either."""
    first, second = _bundle(tmp_path, 2, classes=5), _bundle(tmp_path, 3, classes=5)
    owner.upgrades.is_taken_back(_of_run_2(first))
    owner.fetched(_path(tmp_path, 2), first)
    owner.checked()
    owner.upgrades.switch()  # no round counts with it: the model in use stays the one before
    owner.upgrades.is_taken_back(_announcement(second, run_id="run3", strategy="local"))
    owner.fetched(_path(tmp_path, 3), second)
    owner.checked()
    owner.upgrades.switch()
    for known in (present, first, second):
        with pytest.raises(RefusedError) as caught:
            owner.offered(_path(tmp_path, 2), known, {"sequence": 9})
        assert caught.value.rule in ("has-bundle", "announcement")


def test_a_rehearsal_trains_on_the_devices_data(tmp_path):
    (x, y), (x_test, y_test) = tiny_data(1, 40), tiny_data(2, 20)
    own = DeviceData(x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=_CLASSES)
    done = rehearse(_bundle(tmp_path, 1), LocalData(own=own), threads=1, backend="onnx")
    assert done.end_loss < done.start_loss
    wrong = (PROGRAMS / "4x3" / "features.onnx").read_bytes()
    with pytest.raises(ProvisionError, match="train"):
        rehearse(_bundle(tmp_path, 2, train=wrong), LocalData(own=own), threads=1, backend="onnx")


def test_what_processes_have_died_of_is_not_tried_again(tmp_path, present):
    new = _bundle(tmp_path, 2)
    device = _Device(tmp_path, present)
    with device.store:
        device.fetched(_path(tmp_path, 2), new)
        started = msgspec.structs.replace(device.store.journal.candidate, attempts=ATTEMPTS)
        device.store.commit(candidate=started)
        assert device.checked() == ["fetched", "failed"]
        assert f"ended {ATTEMPTS} times" in device.upgrades.progress.reason


def _upgraded(folder: Path, fatal: int) -> None:
    """Fetch, check, switch and settle; SIGKILL before the ``fatal``-th write."""
    die_at_write(fatal)
    _go_through(folder)


def _go_through(folder: Path) -> None:
    old, new = (Bundle.open(folder.parent / f"{n}.pfb", any_signer=True) for n in (1, 2))
    device = _Device(folder, old)
    with device.store:
        both = _announcement(old, new)
        if device.bundle != new.digest:
            if device.upgrades.progress is None:
                device.fetched(folder.parent / "2.pfb", new)
            device.checked()
            device.upgrades.announced(both)
            device.upgrades.switch()
        later = Upgrades(
            device.endpoint, device.store, new.manifest, present=new.digest, trusted=_TRUSTED
        )
        later.announced(_announcement(new, old))


@pytest.mark.slow(seconds=6)
def test_killed_at_any_write_a_device_has_either_bundle_whole_and_goes_on(ram_path):
    """A power cut in the middle: what is there can be used, and the next process ends it."""
    fork = multiprocessing.get_context("fork")
    old, new = _bundle(ram_path, 1), _bundle(ram_path, 2)
    ends = []
    for fatal in itertools.count(1):
        folder = ram_path / f"device-{fatal}"
        folder.mkdir()
        with _Device(folder, old).store:
            pass
        process = fork.Process(target=_upgraded, args=(folder, fatal))
        process.start()
        process.join()
        with Store.open(folder / "store") as store:
            bundle = store.journal.binding.bundle
            assert bundle in (old.digest, new.digest)
            path = bundle_path(store.folder, bundle)
            assert Bundle.open(path, trusted=_TRUSTED).digest == bundle
            np.testing.assert_array_equal(
                store.load_memory().state.tensors["a"], np.ones(3, np.float32)
            )
            ends.append(bundle == new.digest)
        _go_through(folder)
        with Store.open(folder / "store") as store:
            assert (store.journal.binding.bundle, store.journal.sequence) == (new.digest, 2)
            assert store.journal.fallback.settled
        if process.exitcode == 0:
            break
    assert ends == sorted(ends)  # one commit decides
    assert {True, False} == set(ends)
    assert len(ends) > 10
