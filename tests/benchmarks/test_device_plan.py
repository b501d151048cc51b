"""What ``bench device`` measures with, what it finds lacking, and what it asks for."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle

from protofleet.benchmarks.device import traffic
from protofleet.benchmarks.device.compare import compare_devices
from protofleet.benchmarks.device.plan import absence
from protofleet.benchmarks.device.report import (
    RANDOM,
    BundleFacts,
    Combination,
    DeviceReport,
    Energy,
    Settings,
    StrategyTraffic,
)
from protofleet.benchmarks.device.request import device_data
from protofleet.bundle import Bundle
from protofleet.cli.bench import bench
from protofleet.federation.coding import initial_tensors
from protofleet.tensors import blobs
from protofleet.wire import codecs


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    path = tmp_path_factory.mktemp("choices") / "tiny.pfb"
    return Bundle.open(tiny_bundle(path, Ed25519PrivateKey.generate()), any_signer=True).manifest


def test_random_examples_are_legal_as_numbers_of_words(manifest):
    data = device_data("", manifest, seed=3)
    assert min(data.x_train.min(), data.x_test.min()) >= 0
    assert len(np.unique(data.x_train)) == data.x_train.size


@pytest.mark.parametrize(
    ("which", "has", "words"),
    [
        (("onnx", "float32"), (), "no program 'infer'; export it again"),
        (("onnx", "int8"), (), "--precision int8"),
        (("litert", "float32"), ("infer",), "of 'infer'; export it again with"),
        (("litert", "float16"), ("infer_float16",), "again, then quantise it again"),
    ],
)
def test_what_a_bundle_lacks_has_a_remedy_that_helps(manifest, monkeypatch, which, has, words):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    programs = dict.fromkeys(has, manifest.programs["infer"])
    what = Combination(backend=which[0], precision=which[1], threads=1)
    assert words in absence(what, msgspec.structs.replace(manifest, programs=programs))


def test_a_runtime_has_the_remedy_of_the_runtime_itself(manifest, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    what = Combination(backend="onnx", precision="float32", threads=1)
    assert "apt install python3-onnxruntime" in absence(what, manifest)


@pytest.mark.parametrize(("data", "judged"), [(RANDOM, 0), ("mine.npz", 1)])
def test_compressed_bytes_of_other_random_examples_are_not_judged(data, judged):
    first = _report(data, seed=0, up_bytes=100)
    assert f"{judged} worse" in compare_devices(first, _report(data, seed=1, up_bytes=200))[-1]
    assert "1 worse" in compare_devices(first, _report(data, seed=0, up_bytes=200))[-1]


def _report(data, *, seed, up_bytes):
    return DeviceReport(
        machine={},
        bundle=BundleFacts(name="b", digest="d", strategy="s", params=1, state=0, bytes=1),
        settings=Settings(seconds=1.0, seed=seed, quick=False, stream_batch=1, traffic_examples=1),
        load_average=0.0,
        data=data,
        energy=Energy(source=None),
        runs=[],
        traffic=[StrategyTraffic(strategy="s", codec="int8+zlib", down_bytes=1, up_bytes=up_bytes)],
    )


@pytest.mark.parametrize(("given", "batches"), [([], (1, 8, 32, 64)), (["--batch", ""], ())])
def test_an_empty_batch_asks_for_inference_alone(monkeypatch, tmp_path, given, batches):
    seen = []
    monkeypatch.setattr(
        "protofleet.cli.bench._measure_device", lambda options, *_: seen.append(options)
    )
    monkeypatch.setattr("protofleet.benchmarks.device.table.lines", lambda _report: [])
    arguments = ["device", "--bundle", str(tmp_path), *given]
    done = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert tuple(seen[0].batches) == batches


def test_a_coded_payload_names_the_one_before(tmp_path, monkeypatch):
    """As a second round's does, so that its bytes are counted too."""
    bundle = Bundle.open(
        tiny_bundle(tmp_path / "b.pfb", Ed25519PrivateKey.generate()), any_signer=True
    )
    named, encode = [], codecs.encode

    def spied(*arguments, reference="", **more):
        named.append(reference)
        return encode(*arguments, reference=reference, **more)

    monkeypatch.setattr(codecs, "encode", spied)
    request = traffic.TrafficRequest(
        bundle=str(tmp_path / "b.pfb"),
        digest=bundle.digest,
        strategy="fedavg",
        seed=0,
        data="",
        examples=8,
    )
    traffic.main(msgspec.json.encode(request).decode())
    model = bundle.model()
    first = hashlib.sha256(blobs.encode(initial_tensors(model))).hexdigest()
    rounds, measured = named[:2], named[2:]
    assert rounds == ["", ""]
    assert measured == [first, ""] * len(codecs.NAMES)
