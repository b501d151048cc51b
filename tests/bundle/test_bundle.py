from __future__ import annotations

import os
import zipfile

import msgspec
import numpy as np
import pytest
from attacks.hostile import INFER, KEY, PUBLIC, Forge
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_bundle import initial_params, tiny_bundle

from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.rules import parse
from protofleet.errors import InputError, RefusedError


@pytest.fixture(params=["bundle", "bundle.pfb"])
def written(request, tmp_path):
    """A good bundle in either form."""
    return tiny_bundle(tmp_path / request.param, KEY)


def test_what_was_written_is_read(written):
    bundle = Bundle.open(written, trusted={PUBLIC})
    model = bundle.model()
    assert bundle.manifest.name == "tiny"
    assert bundle.signer == PUBLIC.hex()
    assert bundle.manifest.files[INFER].bytes == len(bundle.read(INFER))
    assert model.params.layout == initial_params().layout
    assert np.array_equal(model.params.buffer, initial_params().buffer)
    assert (len(model.buffers), model.num_classes) == (0, 3)


def test_the_two_forms_are_the_same_bundle(tmp_path):
    paths = [tiny_bundle(tmp_path / name, KEY) for name in ("a", "a.pfb")]
    assert len({Bundle.open(path, any_signer=True).digest for path in paths}) == 1


def test_equal_input_gives_equal_bytes(tmp_path):
    first = tiny_bundle(tmp_path / "1.pfb", KEY)
    bundle = Bundle.open(first, any_signer=True)
    files = {name: bundle.read(name) for name in reversed(bundle.manifest.files)}
    digest = write_bundle(tmp_path / "2.pfb", bundle.manifest, files, KEY)
    assert digest == bundle.digest
    assert (tmp_path / "2.pfb").read_bytes() == first.read_bytes()


def test_any_zip_tool_opens_the_single_file(tmp_path):
    path = tiny_bundle(tmp_path / "a.pfb", KEY)
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        file.extractall(tmp_path / "unpacked")
    assert (
        Bundle.open(tmp_path / "unpacked", any_signer=True).digest
        == Bundle.open(path, any_signer=True).digest
    )


def test_the_models_tensors_belong_to_the_caller(written):
    bundle = Bundle.open(written, any_signer=True)
    bundle.model().params.buffer[:] = 0
    assert np.array_equal(bundle.model().params.buffer, initial_params().buffer)


def test_writing_again_replaces_the_bundle_and_leaves_nothing_beside_it(written):
    tiny_bundle(written, KEY, classes=5)
    assert Bundle.open(written, any_signer=True).model().num_classes == 5
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_a_bundle_that_would_be_refused_is_not_written(written):
    before = Bundle.open(written, any_signer=True).digest
    manifest = msgspec.structs.replace(
        Bundle.open(written, any_signer=True).manifest, layout_hash="0" * 64
    )
    with pytest.raises(RefusedError, match="layout hash"):
        write_bundle(written, manifest, _files(written), KEY)
    assert Bundle.open(written, any_signer=True).digest == before
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_a_crash_while_writing_keeps_the_old_bundle(written, monkeypatch):
    """The disk fails at the last file; only the renamed, synced whole may replace the old one."""
    before = Bundle.open(written, any_signer=True).digest
    calls = iter(range(100))

    def failing_sync(_descriptor):
        if next(calls) >= (0 if written.suffix else 4):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", failing_sync)
    with pytest.raises(OSError, match="No space"):
        tiny_bundle(written, KEY, classes=5)
    monkeypatch.undo()
    assert Bundle.open(written, any_signer=True).digest == before
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(b"x")
    with pytest.raises(InputError, match="no bundle"):
        tiny_bundle(tmp_path / "photos", KEY)
    assert (tmp_path / "photos" / "1.jpg").read_bytes() == b"x"


def test_a_file_that_changes_after_the_bundle_was_opened_is_noticed(tmp_path):
    path = tiny_bundle(tmp_path / "bundle", KEY)
    bundle = Bundle.open(path, any_signer=True)
    data = bytearray((path / INFER).read_bytes())
    data[-1] ^= 1
    (path / INFER).write_bytes(data)
    with pytest.raises(RefusedError) as caught:
        bundle.read(INFER)
    assert caught.value.rule == "sha256"


def test_nothing_at_the_path_is_the_callers_mistake(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        Bundle.open(tmp_path / "absent", any_signer=True)
    with pytest.raises(InputError, match="no file 'x'"):
        Bundle.open(tiny_bundle(tmp_path / "a", KEY), any_signer=True).read("x")


def test_fields_of_a_later_minor_version_are_ignored(tmp_path):
    forge = Forge(tmp_path)
    forge.manifest["licence"] = "Apache-2.0"
    forge.manifest["programs"]["infer"]["tags"] = ["fast"]
    for path in forge.both():
        assert Bundle.open(path, any_signer=True).manifest.name == "tiny"


def test_an_empty_state_may_have_its_file_or_none(tmp_path):
    forge = Forge(tmp_path)
    forge.files["state.safetensors"] = (2).to_bytes(8, "little") + b"{}"
    assert len(Bundle.open(forge.declare().single(), any_signer=True).model().buffers) == 0


def _files(path):
    bundle = Bundle.open(path, any_signer=True)
    return {name: bundle.read(name) for name in bundle.manifest.files}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return tiny_bundle(tmp_path_factory.mktemp("good") / "good.pfb", KEY).read_bytes()


_FUZZ = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@_FUZZ
@given(data=st.data())
def test_every_altered_byte_of_the_single_file_is_refused(good, tmp_path, data):
    """Unlike in an ordinary archive there is no byte that does not matter."""
    position = data.draw(st.integers(0, len(good) - 1))
    altered = bytearray(good)
    altered[position] ^= data.draw(st.integers(1, 255))
    _assert_refused(tmp_path / "x.pfb", bytes(altered))


@_FUZZ
@given(data=st.data())
def test_every_truncated_extended_or_shuffled_single_file_is_refused(good, tmp_path, data):
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(good))] * 2)))
    insert = data.draw(st.binary(max_size=8))
    altered = good[:start] + insert + good[end:]
    if altered != good:
        _assert_refused(tmp_path / "x.pfb", altered)


@pytest.fixture(scope="module")
def forge(tmp_path_factory):
    """Nothing of it changes: each example alters the manifest's text."""
    return Forge(tmp_path_factory.mktemp("forge"))


@_FUZZ
@given(data=st.data())
def test_an_altered_manifest_is_refused_or_harmless_even_if_signed(forge, data):
    """A trusted signer's mistake ends in a reason, never in another exception."""
    text = bytearray(msgspec.json.encode(forge.manifest))
    position = data.draw(st.integers(0, len(text) - 1))
    text[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        bundle = Bundle.open(forge.single(forge.content(bytes(text))), trusted={PUBLIC})
    except RefusedError:
        return
    assert bundle.manifest == parse(bytes(text))


def _assert_refused(path, data):
    path.write_bytes(data)
    with pytest.raises(RefusedError):
        Bundle.open(path, any_signer=True)
