"""The command that trains a head alone, on a bundle that was exported, and what predicts then."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import protofleet

pytestmark = pytest.mark.slow(seconds=8)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A bundle that was trained on ninety digits, and an owner's examples."""
    folder = tmp_path_factory.mktemp("head")
    torch.manual_seed(0)
    everybody, public = protofleet.hold_out(protofleet.load_dataset("digits"), 0.05)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    protofleet.pretrain(model, public.x, public.y, folder=folder / "central")
    protofleet.export_model(model, folder / "digits.pfb", input_shape=(1, 8, 8), head="3")
    clients = protofleet.split(everybody, 8, alpha=0.5)
    clients["client-000"].save(folder / "mine.npz")
    return folder


def _printed(*arguments):
    command = [sys.executable, "-m", "protofleet", "device", *(str(one) for one in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_command_trains_and_says_what_is_in_use(place):
    data, store = place / "mine.npz", place / "store"
    arguments = ("--bundle", place / "digits.pfb", "--data", data, "--store", store)
    told = json.loads(_printed("personalise", *arguments, "--json")[0])
    assert (told["event"], told["model"], told["round_id"]) == ("personalised", "head", 0)
    assert told["probability"] > 0.9
    said = _printed("predict", "--data", data, "--store", store, "--summary")
    assert said[0] == "bundle 'digits', with a head trained on this device"
    assert said[1].startswith("in use: head: a head trained alone has")
    pinned = _printed("predict", "--data", data, "--store", store, "--summary", "--use", "bundle")
    assert pinned[0] == "bundle 'digits', its own values"
    assert "a head trained alone" in _printed("stores", place)[1]
