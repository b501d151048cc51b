"""A store that moves to another bundle: what it keeps, what it refuses, and a kill at any write."""

from __future__ import annotations

import itertools
import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deadly_writes import die_at_write
from trained_round import trained_round

from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.manifest import (
    FORMAT_VERSION,
    Manifest,
    Preprocessing,
    StrategyDecl,
    TensorDecl,
)
from protofleet.edge.state.journal import StoreBinding, bundle_path
from protofleet.edge.state.move import BundleMove
from protofleet.edge.state.store import Store, read_personal
from protofleet.errors import ProvisionError
from protofleet.strategies.types import ClientState
from protofleet.tensors import Layout, blobs

_KEY = Ed25519PrivateKey.generate()
_CLASSES = ("sit", "walk", "run")
_INPUT = Preprocessing(
    input_shape=(8, 2), rate_hz=50.0, window=8, hop=4, channels=("a", "b"), std=(2.0, 2.0)
)


@dataclass(frozen=True)
class _Model:
    """A bundle's model: a body, a head, and the body's buffer."""

    width: int = 5
    classes: tuple[str, ...] = _CLASSES
    value: float = 0.0
    name: str = "body"
    inputs: Preprocessing = _INPUT

    def bundle(self, folder: Path) -> Bundle:
        params = {
            f"{self.name}.weight": (self.width, 4),
            "head.weight": (len(self.classes), self.width),
            "head.bias": (len(self.classes),),
        }
        buffers = {"norm.mean": (4,)}
        files = {
            f"{kind}.safetensors": blobs.encode(
                {name: np.full(shape, self.value, np.float32) for name, shape in shapes.items()}
            )
            for kind, shapes in (("params", params), ("state", buffers))
        }
        manifest = Manifest(
            format=FORMAT_VERSION,
            name="model",
            created="2026-01-01T00:00:00Z",
            layout_hash=Layout.of(params).hash,
            params=tuple(TensorDecl(name=n, shape=s) for n, s in params.items()),
            state=tuple(TensorDecl(name=n, shape=s) for n, s in buffers.items()),
            programs={},
            preprocessing=self.inputs,
            classes=self.classes,
            strategy=StrategyDecl(name="local", settings={}),
            provenance={},
            files={},
        )
        path = folder / f"{len(list(folder.glob('*.pfb')))}.pfb"
        write_bundle(path, manifest, files, _KEY)
        return Bundle.open(path, any_signer=True)


@pytest.fixture
def old(tmp_path: Path) -> Bundle:
    return _Model().bundle(tmp_path)


def _binding(bundle: Bundle, federation: str = "fed") -> StoreBinding:
    return StoreBinding(
        federation=federation, bundle=bundle.digest, layout_hash=bundle.manifest.layout_hash
    )


def _bind(store: Store, bundle: Bundle, federation: str = "fed") -> Any:
    return BundleMove(store, _binding(bundle, federation), bundle).commit()


def _state(bundle: Bundle, round_id: int, **more: Any) -> ClientState:
    """As a round leaves it: the n-th number of each tensor is n, plus ten for each round."""
    model = bundle.model()
    tensors = {f"params/{name}": value for name, value in model.params.items()}
    tensors |= {f"state/{name}": value for name, value in model.buffers.items()}
    counted = {
        name: (np.arange(value.size) + 10 * round_id).reshape(value.shape).astype(np.float32)
        for name, value in tensors.items()
    }
    return ClientState(round_id=round_id, tensors={**counted, **more})


def _deliver(store: Store, bundle: Bundle, round_id: int, strategy: str = "local") -> ClientState:
    state = _state(bundle, round_id, **{"optimiser/0.0": np.ones(3, np.float32)})
    store.bind_strategy(strategy, {})
    residual = {"params/head.bias": np.ones(3, np.float32)}
    store.commit_received(round_id, "t", b"payload", reference="")
    store.commit_trained(trained_round(state, b"update", residual), transfer_id="t")
    store.commit_delivered()
    return state


@pytest.fixture
def store(tmp_path: Path, old: Bundle):
    """A store whose device has finished round 3 of strategy ``local``."""
    with Store.open(tmp_path / "store", device_id="anna") as opened:
        _bind(opened, old)
        _deliver(opened, old, 3)
        yield opened


def _assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_same_architecture_trained_anew_keeps_the_whole_model_and_no_moments(
    store, old, tmp_path
):
    new = _Model(value=1.0).bundle(tmp_path)
    move = _bind(store, new)
    memory = store.load_memory()
    assert (memory.state.round_id, memory.residual) == (0, {})
    _assert_equal(memory.state.tensors, _state(old, 3).tensors)
    fates = move.by_fate()
    assert (len(fates["kept"]), fates["new"], fates["dropped"]) == (4, [], ["optimiser/0.0"])
    assert str(move) == "tensors: 4 kept, 1 dropped"
    assert store.journal.payloads == ()
    assert store.journal.last_round_id == 0


def test_an_added_class_keeps_the_rows_of_the_classes_that_both_name(store, old, tmp_path):
    """In whatever order: rows go by name."""
    new = _Model(value=-1.0, classes=("lie", "run", "sit", "walk")).bundle(tmp_path)
    move = _bind(store, new)
    was, now = _state(old, 3).tensors, store.load_memory().state.tensors
    for name in ("params/head.weight", "params/head.bias"):
        np.testing.assert_array_equal(now[name][1:], was[name][[2, 0, 1]])
        assert (now[name][0] == -1).all()
    assert move.by_fate()["kept_in_part"] == ["params/head.bias", "params/head.weight"]
    assert "state/norm.mean" in move.by_fate()["kept"]
    (line,) = [str(one) for one in move.tensors if one.name == "params/head.bias"]
    assert line == "kept in part: params/head.bias ((3,) is now (4,): the rows of 3 classes)"


def test_a_widened_layer_is_new_and_so_are_buffers(store, old, tmp_path):
    """They were measured behind parameters that are no more."""
    move = _bind(store, _Model(width=6, value=7.0).bundle(tmp_path))
    was, now = _state(old, 3).tensors, store.load_memory().state.tensors
    assert (now["state/norm.mean"] == 7).all()
    assert (now["params/head.weight"] == 7).all()
    np.testing.assert_array_equal(now["params/head.bias"], was["params/head.bias"])
    assert move.by_fate()["kept"] == ["params/head.bias"]
    lines = [str(one) for one in move.tensors]
    assert "new: params/body.weight ((5, 4) is now (6, 4))" in lines
    why = "belongs to parameters of which 'params/body.weight' is not kept"
    assert f"new: state/norm.mean ({why})" in lines


def test_predictions_stay_those_of_the_model_before_until_a_round_counts(store, old, tmp_path):
    new = _Model(value=1.0).bundle(tmp_path)
    _bind(store, new)
    personal, state = read_personal(store.folder)
    assert (personal.binding.bundle, state.round_id) == (old.digest, 3)
    _assert_equal(
        state.tensors, {**_state(old, 3).tensors, "optimiser/0.0": np.ones(3, np.float32)}
    )
    assert all(bundle_path(store.folder, one.digest).exists() for one in (old, new))
    store.commit_trained(trained_round(_state(new, 1), b"lost"), transfer_id="t")
    store.commit_dropped()
    assert read_personal(store.folder)[0].binding.bundle == old.digest
    _deliver(store, new, 1)
    personal, state = read_personal(store.folder)
    assert (personal.binding.bundle, state.round_id) == (new.digest, 1)
    assert not bundle_path(store.folder, old.digest).exists()
    assert not store.journal.former


def test_before_a_round_counts_the_way_back_is_open(store, old, tmp_path):
    """Who joined with a wrong bundle by mistake has lost nothing, the residual neither."""
    before = store.journal
    _bind(store, _Model(width=6).bundle(tmp_path))
    _bind(store, _Model(width=7).bundle(tmp_path))
    assert read_personal(store.folder)[0].binding.bundle == old.digest
    assert _bind(store, old) is None
    assert (store.journal.state, store.journal.former) == (before.state, None)
    assert store.load_memory().residual
    assert len(list(store.folder.glob("*.pfb"))) == 1


def test_what_is_on_its_way_does_not_move_and_is_told(store, old, tmp_path, caplog):
    store.commit_trained(trained_round(_state(old, 4), b"update"), transfer_id="t4")
    (store.partial / "anna").mkdir()
    (store.partial / "anna" / "t5.part").write_bytes(b"half")
    move = _bind(store, _Model(value=1.0).bundle(tmp_path))
    assert "the update of round 4, which had no receipt yet, is dropped" in move.notes
    assert (store.journal.stage, store.journal.transfers) == ("idle", ())
    assert not list(store.partial.iterdir())
    assert "kept: params/body.weight" in caplog.text
    assert "dropped: optimiser/0.0" in caplog.text


def test_a_strategy_whose_model_comes_from_the_federation_takes_nothing_along(tmp_path, old):
    with Store.open(tmp_path / "store") as store:
        _bind(store, old)
        _deliver(store, old, 2, "fedavg")
        # Nothing of it moves, so that neither inputs nor classes need be alike.
        new = _Model(classes=("x", "y", "z")).bundle(tmp_path)
        assert "'fedavg' takes nothing along" in _bind(store, new).notes[0]
        assert store.load_memory().state is None
        store.bind_strategy("fedper", {})
        assert read_personal(store.folder)[0].strategy == "fedavg"


def test_a_store_without_a_finished_round_just_changes_its_bundle(tmp_path, old):
    with Store.open(tmp_path / "store") as store:
        _bind(store, old)
        new = _Model(value=1.0).bundle(tmp_path)
        assert _bind(store, new).start is None
        assert store.journal.binding == _binding(new)


_REFUSED = {
    "classes": (_Model(classes=("walk", "sit", "run")), r"as many, so that shapes do not show"),
    "channels": (
        _Model(inputs=Preprocessing(input_shape=(8, 2), channels=("b", "a"), std=(2.0, 2.0))),
        r"channels \('a', 'b'\), with the new bundle it is \('b', 'a'\)",
    ),
    "scale": (
        _Model(inputs=Preprocessing(input_shape=(8, 2), mean=(0.0, 4.0), std=(2.0, 2.0))),
        "input was|scaled otherwise",
    ),
    "names": (_Model(width=6, name="trunk", classes=("a", "b", "c", "d")), "holds another model"),
}


@pytest.mark.parametrize("what", sorted(_REFUSED))
def test_a_state_that_would_mean_something_else_is_refused_with_the_way_out(store, tmp_path, what):
    model, words = _REFUSED[what]
    before = store.journal
    with pytest.raises(ProvisionError, match=words) as error:
        _bind(store, model.bundle(tmp_path))
    assert f"protofleet device reset --store {store.folder}" in str(error.value)
    assert store.journal == before


def test_a_little_change_of_scale_is_told_and_a_large_one_refused(store, tmp_path):
    def scaled(mean: float, std: float) -> Bundle:
        change = {"mean": (mean, mean), "std": (std, std)}
        inputs = Preprocessing(
            input_shape=(8, 2), rate_hz=50.0, window=8, hop=4, channels=("a", "b"), **change
        )
        return _Model(inputs=inputs).bundle(tmp_path)

    for mean, std in ((1.5, 2.0), (0.0, 4.5), (0.0, 0.9)):
        with pytest.raises(ProvisionError, match="scaled otherwise"):
            _bind(store, scaled(mean, std))
    (note,) = _bind(store, scaled(0.2, 2.1)).notes
    assert "scaled a little otherwise: means differ by up to 0.1 standard deviations" in note


def test_another_federation_is_refused(store, old):
    with pytest.raises(ProvisionError, match="belongs to federation 'fed', got 'other'"):
        _bind(store, old, "other")


def test_a_store_without_a_copy_of_its_bundle_cannot_move(tmp_path, old):
    with Store.open(tmp_path / "store") as store:
        BundleMove(store, _binding(old), old, keep_bundle=False).commit()
        _deliver(store, old, 1)
        with pytest.raises(ProvisionError, match="no copy of its bundle"):
            _bind(store, _Model(value=1.0).bundle(tmp_path))


def _numbered(folder: Path, value: float, sequence: int, replaces_up_to: int = 0) -> Bundle:
    """The same model with other values and these numbers."""
    made = _Model(value=value).bundle(folder)
    files = {name: made.read(name) for name in made.manifest.files}
    numbers = {"sequence": sequence, "replaces_up_to": replaces_up_to}
    path = folder / f"{sequence}-{replaces_up_to}.pfb"
    write_bundle(path, msgspec.structs.replace(made.manifest, **numbers), files, _KEY)
    return Bundle.open(path, any_signer=True)


def test_a_store_never_goes_back_to_an_older_bundle_unless_its_signer_says_so(store, tmp_path):
    second, fifth = (_numbered(tmp_path, number, number) for number in (2, 5))
    _bind(store, second)
    _bind(store, fifth)
    assert store.journal.sequence == 5
    before = store.journal
    told = r"sequence 5, got 'model' of sequence 2, .*--sequence 6, or with --replaces-up-to 5"
    with pytest.raises(ProvisionError, match=told):
        _bind(store, second)
    with pytest.raises(ProvisionError, match="sequence 3"):
        _bind(store, _numbered(tmp_path, 3, 3, 4))
    assert store.journal == before
    allowed = _numbered(tmp_path, 4, 4, 5)
    _bind(store, allowed)
    _bind(store, allowed)
    assert (store.journal.binding, store.journal.sequence) == (_binding(allowed), 5)
    with pytest.raises(ProvisionError, match="sequence 2"):
        _bind(store, second)


def test_the_way_back_to_a_bundle_of_the_same_number_stays_open(store, old, tmp_path):
    new = _numbered(tmp_path, 7, 0)
    _bind(store, new)
    _bind(store, old)
    assert store.journal.binding == _binding(old)


def _moved(folder: Path, new: Path, fatal: int) -> None:
    """Join with the new bundle; SIGKILL before the ``fatal``-th write."""
    die_at_write(fatal)
    with Store.open(folder) as store:
        _bind(store, Bundle.open(new, any_signer=True))


@pytest.mark.slow(seconds=3)
def test_killed_at_any_write_a_move_has_happened_or_not(ram_path):
    """Never in between: the state, its bundle and its strategy always belong together."""
    fork = multiprocessing.get_context("fork")
    old, new = _Model().bundle(ram_path), _Model(value=1.0, width=5).bundle(ram_path)
    ends, expected = set(), _state(old, 3).tensors
    for fatal in itertools.count(1):
        folder = ram_path / f"store-{fatal}"
        with Store.open(folder) as store:
            _bind(store, old)
            _deliver(store, old, 3)
        process = fork.Process(target=_moved, args=(folder, ram_path / "1.pfb", fatal))
        process.start()
        process.join()
        with Store.open(folder) as store:
            moved = store.journal.binding == _binding(new)
            ends.add(moved)
            kept = store.load_memory().state.tensors
            _assert_equal({name: kept[name] for name in expected}, expected)
            personal, state = read_personal(folder)
            assert (personal.binding, state.round_id) == (_binding(old), 3)
            assert (
                Bundle.open(bundle_path(folder, old.digest), any_signer=True).digest == old.digest
            )
            kept = {path.stem for path in folder.glob("*.pfb")}
            assert kept == ({old.digest, new.digest} if moved else {old.digest})
            _bind(store, new)
            assert store.journal.binding == _binding(new)
        if process.exitcode == 0:
            break
    assert fatal > 6
    assert ends == {False, True}
