"""``protofleet bundle quantise``: what it writes, and when it writes nothing."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from trained_round import trained_round

from protofleet import strategies
from protofleet.bundle import Bundle, write_bundle
from protofleet.cli.bundle import bundle as command
from protofleet.datasets import DeviceData
from protofleet.edge.state.store import Store, StoreBinding
from protofleet.errors import ExportError, InputError, ProvisionError, RefusedError
from protofleet.runtime import open_classifier
from protofleet.strategies.common import PARAMS, prefixed
from protofleet.tensors.blobs import encode
from tests.export.quantise_bundles import Digits, infer_bundle

pytestmark = pytest.mark.slow(seconds=1)


@pytest.fixture(scope="session")
def data_path(digits, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    digits.save(path)
    return path


@pytest.fixture
def quantise(digits_bundle, data_path, signing_key, tmp_path):
    """Run the command on the digits with further options; its output and where it writes."""

    def run(*options, bundle=digits_bundle[1], data=data_path):
        out = tmp_path / "out.pfb"
        given = ["--data", data, "--out", out, "--key", signing_key[1], *options]
        arguments = ["quantise", str(bundle), *map(str, given)]
        result = CliRunner().invoke(command, arguments, catch_exceptions=False)
        return result, out

    return run


def test_the_new_bundle_has_the_old_programs_and_the_new_ones(quantise, digits_bundle, digits):
    result, out = quantise()
    assert result.exit_code == 0
    written, old = Bundle.open(out, any_signer=True), digits_bundle[0]
    assert written.manifest.programs.keys() == {"infer", "infer_float16", "infer_int8"}
    assert written.manifest.programs["infer"] == old.manifest.programs["infer"]
    assert written.manifest.provenance["quantised from"] == old.digest
    assert written.read("params.safetensors") == old.read("params.safetensors")
    for precision in ("float16", "int8"):
        assert f"programs/infer_{precision}.tflite" in written.manifest.files
        found = open_classifier(written, precision=precision).predict(digits.x_test)
        assert np.mean(found.argmax(1) == digits.y_test) > 0.93
    assert all(word in result.stdout for word in ("float16", "int8", "onnx", "litert", "ratio"))
    counts = f"scored on {len(digits.y_test)} test examples, calibrated on 256 windows"
    assert counts in result.stdout
    assert "no TFLite" not in result.output
    assert "warning" not in result.output
    shown = CliRunner().invoke(command, ["inspect", str(out)], catch_exceptions=False).stdout
    line = next(line for line in shown.splitlines() if "infer_int8:" in line)
    assert "int8, programs/infer_int8.tflite" in line


def test_few_examples_are_warned_of(quantise, digits, tmp_path):
    path = tmp_path / "few.npz"
    few = {"x_train": digits.x_train[:40], "y_train": digits.y_train[:40]}
    few |= {"x_test": digits.x_test[:50], "y_test": digits.y_test[:50]}
    DeviceData(**few, classes=digits.classes).save(path)
    result, _ = quantise("--precision", "float16", "--json", "--allow-loss", "1.9", data=path)
    assert len(json.loads(result.stdout)) == 4
    assert "scored on 50 test examples, calibrated on 40 windows" in result.stderr
    assert "warning: one of 50 test examples weighs about 2 points" in result.stderr
    assert "warning: the train part has only 40 of the 256 windows" in result.stderr
    result, _ = quantise("--precision", "float16", "--allow-loss", "2", data=path)
    assert "weighs" not in result.output


def test_a_bundle_without_tflite_says_what_would_help(
    quantise, digits_bundle, signing_key, tmp_path
):
    opened, path = digits_bundle[0], tmp_path / "onnx.pfb"
    infer = msgspec.structs.replace(opened.manifest.programs["infer"], tflite=None)
    manifest = msgspec.structs.replace(opened.manifest, programs={"infer": infer})
    kept = [name for name in opened.manifest.files if not name.endswith(".tflite")]
    write_bundle(path, manifest, {name: opened.read(name) for name in kept}, signing_key[0])
    result, _ = quantise("--precision", "float16", bundle=path)
    assert "note: the bundle has no TFLite programs" in result.stdout
    assert "export the bundle again" in result.stdout
    shown = CliRunner().invoke(command, ["inspect", str(path)], catch_exceptions=False).stdout
    assert "float32, no TFLite file" in shown


def test_the_measurements_are_to_be_had_as_json(quantise):
    result, out = quantise("--precision", "float16", "--json")
    rows = json.loads(result.stdout)
    assert [(r["precision"], r["backend"]) for r in rows] == [
        ("float32", "onnx"),
        ("float16", "onnx"),
        ("float32", "litert"),
        ("float16", "litert"),
    ]
    assert all(row["p50_ms"] > 0 and row["file_bytes"] > 0 for row in rows)
    assert "infer_int8" not in Bundle.open(out, any_signer=True).manifest.programs


def test_a_model_that_8_bits_ruin_is_refused_unless_told(
    digits_model, digits, signing_key, quantise, tmp_path
):
    """Half the units work on a scale 1e4 times the others', which 256 steps for all cannot show."""
    torch.manual_seed(0)
    model = Digits()
    model.load_state_dict(digits_model.state_dict())
    with torch.no_grad():
        hidden, head = model.body[6], model.head
        hidden.weight[:16] *= 1e4
        hidden.bias[:16] *= 1e4
        head.weight[:, :16] *= 1e-4
    path = tmp_path / "scaled.pfb"
    infer_bundle(model, (1, 8, 8), digits.classes, path, signing_key[0])
    out = tmp_path / "out.pfb"
    with pytest.raises(ExportError, match=r"at most 1 points, but int8 in onnx scores .* where"):
        quantise(bundle=path)
    assert not out.exists()
    quantise("--precision", "float16", bundle=path)
    assert out.exists()
    out.unlink()
    quantise("--allow-loss", "100", bundle=path)
    assert "infer_int8" in Bundle.open(out, any_signer=True).manifest.programs


def test_other_parameters_become_the_new_bundles_own(quantise, digits_bundle, digits, tmp_path):
    """Float32 and baked programs then say the same."""
    old = digits_bundle[0].model().params
    moved = {name: value + (name == "head.bias") * np.float32(0.25) for name, value in old.items()}
    moved["head.weight"] = moved["head.weight"] * np.float32(0.5)
    file = tmp_path / "mine.safetensors"
    file.write_bytes(encode(moved))
    _, out = quantise("--params", file, "--precision", "float16", "--allow-loss", "100")
    written = Bundle.open(out, any_signer=True)
    assert all(np.array_equal(written.model().params[n], v) for n, v in moved.items())
    exact = open_classifier(written).predict(digits.x_test)
    half = open_classifier(written, precision="float16").predict(digits.x_test)
    former = open_classifier(digits_bundle[0]).predict(digits.x_test)
    assert np.abs(half - exact).max() < 2e-3 * np.abs(exact).max()
    assert np.abs(exact - former).max() > 0.1


def _store(folder, opened, strategy, tensors=None):
    """A store whose device has finished one round of ``strategy``."""
    built = strategies.build(strategy, {}, opened.model())
    state = built.client_init(opened.model())
    state = type(state)(round_id=1, tensors={**state.tensors, **(tensors or {})})
    with Store.open(folder) as store:
        layout = opened.manifest.layout_hash
        store.bind(StoreBinding(federation="f", bundle=opened.digest, layout_hash=layout))
        store.bind_strategy(strategy, {})
        store.commit_trained(trained_round(state, b"update"), transfer_id="t")
        store.commit_delivered()
    return folder


def test_a_devices_personal_model_can_be_quantised(quantise, digits_bundle, tmp_path):
    opened = digits_bundle[0]
    model = opened.model()
    model.params["head.bias"][...] += 1
    tensors = prefixed(PARAMS, model.params)
    store = _store(tmp_path / "store", opened, "local", tensors)
    _, out = quantise("--store", store, "--precision", "float16")
    written = Bundle.open(out, any_signer=True).model().params
    np.testing.assert_array_equal(written.buffer, model.params.buffer)


def test_a_store_of_another_bundle_is_refused(quantise, digits_bundle, tmp_path):
    store = _store(tmp_path / "store", digits_bundle[0], "local")
    _, out = quantise("--precision", "float16")
    with pytest.raises(ProvisionError, match="belongs to another bundle"):
        quantise("--store", store, bundle=out.rename(tmp_path / "other.pfb"))


def test_a_strategy_that_does_not_use_the_head_is_refused(
    quantise, digits_bundle, signing_key, tmp_path
):
    """Its bundle gives features, too; that they are logits here is all the same."""
    plain = digits_bundle[0]
    infer = plain.manifest.programs["infer"]
    outputs = (msgspec.structs.replace(infer.outputs[0], key="features"),)
    programs = {"infer": infer, "features": msgspec.structs.replace(infer, outputs=outputs)}
    manifest = msgspec.structs.replace(plain.manifest, programs=programs)
    files = {path: plain.read(path) for path in manifest.files}
    write_bundle(tmp_path / "both.pfb", manifest, files, signing_key[0])
    bundle = Bundle.open(tmp_path / "both.pfb", any_signer=True)
    store = _store(tmp_path / "store", bundle, "fedproto", {"present": np.ones(10, np.float32)})
    with pytest.raises(InputError, match="'fedproto' classifies by features"):
        quantise("--store", store, bundle=tmp_path / "both.pfb")


def test_quantising_again_replaces_what_was_there(quantise, tmp_path):
    _, out = quantise("--precision", "float16")
    first = out.rename(tmp_path / "first.pfb")
    _, second = quantise("--precision", "int8", bundle=first)
    manifest = Bundle.open(second, any_signer=True).manifest
    assert manifest.programs.keys() == {"infer", "infer_int8"}
    assert not any("float16" in file for file in manifest.files)


@pytest.mark.parametrize("part", ["train", "test"])
def test_both_parts_are_needed(quantise, digits, tmp_path, part):
    arrays = {name: getattr(digits, name) for name in ("x_train", "y_train", "x_test", "y_test")}
    arrays |= {name: array[:0] for name, array in arrays.items() if name.endswith(part)}
    path = tmp_path / "data.npz"
    DeviceData(**arrays, classes=digits.classes).save(path)
    with pytest.raises(InputError, match=f"expected examples in the {part} part"):
        quantise(data=path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y_test": np.full(597, 0.7)}, "597 of 597 that are not whole, such as 0.7"),
        ({"x_train": np.ones((1200, 1, 8, 8), complex)}, "expected real numbers"),
    ],
)
def test_data_that_no_program_takes_are_refused(quantise, data_path, tmp_path, changes, said):
    path = tmp_path / "data.npz"
    np.savez(path, **{**np.load(data_path), **changes})
    with pytest.raises(InputError, match=said):
        quantise(data=path)


def test_data_of_another_shape_are_refused(quantise, digits, tmp_path):
    path = tmp_path / "data.npz"
    DeviceData(
        x_train=digits.x_train[:, :, :4],
        y_train=digits.y_train,
        x_test=digits.x_test[:, :, :4],
        y_test=digits.y_test,
        classes=digits.classes,
    ).save(path)
    with pytest.raises(InputError, match=r"expected x_train \(n, 1, 8, 8\)"):
        quantise(data=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head.bias": None}, "'head.bias' is in the bundle, but not in the file"),
        ({"tail": np.zeros(3, np.float32)}, "'tail' is not in the bundle, but in the file"),
        (
            {"tail": np.zeros(3, np.float32), "head.bias": None},
            "'tail' is not in the bundle, but in the file",
        ),
        ({"head.bias": np.zeros(9, np.float32)}, r"expected \(10,\) float32, got \(9,\)"),
        ({"head.bias": np.zeros(10, np.float64)}, r"expected \(10,\) float32, got \(10,\) float64"),
        ({"head.bias": np.full(10, np.nan, np.float32)}, "expected finite numbers"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(quantise, digits_bundle, tmp_path, change, message):
    tensors = {**digits_bundle[0].model().params, **change}
    file = tmp_path / "mine.safetensors"
    file.write_bytes(encode({n: v for n, v in tensors.items() if v is not None}))
    with pytest.raises(InputError, match=message):
        quantise("--params", file)


def test_pickled_parameters_are_answered_with_the_line_that_converts_them(quantise, tmp_path):
    torch.save({"head.bias": torch.zeros(10)}, tmp_path / "mine.pt")
    with pytest.raises(InputError, match=r"parameters '.*mine.pt': is PyTorch's .* python -c "):
        quantise("--params", tmp_path / "mine.pt")


def test_a_strangers_bundle_is_not_signed_again(digits_bundle, data_path, tmp_path, monkeypatch):
    """It would come out with the trust that this user's own key has."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    arguments = ["quantise", digits_bundle[1], "--data", data_path, "--out", tmp_path / "o.pfb"]
    with pytest.raises(RefusedError, match="not trusted"):
        CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert not (tmp_path / "o.pfb").exists()


def test_the_bundle_itself_is_not_written_over(quantise, digits_bundle):
    path = digits_bundle[1]
    before = path.read_bytes()
    with pytest.raises(InputError, match="expected another path"):
        quantise("--out", path)
    assert path.read_bytes() == before


def test_an_unknown_precision_is_named(quantise):
    result, _ = quantise("--precision", "int4")
    assert result.exit_code == 2
    assert "'int4'" in result.output
