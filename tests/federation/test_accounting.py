"""ε and δ: against printed values, integrals, and Google's dp-accounting."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from protofleet.cli.privacy import privacy
from protofleet.errors import InputError
from protofleet.federation.accounting import (
    epsilon_of,
    gaussian_delta,
    gaussian_epsilon,
    noise_for,
    rounds_within,
    sampled_epsilon,
)

_DOCS = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"


def test_a_hundred_rounds_of_a_device_with_four_clips_of_noise():
    """What dp-accounting's privacy loss distribution gives, 9.237; its Rényi bound is 10.36."""
    assert epsilon_of(4, 100, 1 / 300) == pytest.approx(9.2368, abs=1e-4)


def test_one_round_is_the_analytic_gaussian_mechanism():
    """δ = Φ(1/2) - Φ(-1/2) at ε = 0 and μ = 1: the total variation of two normals one apart."""
    assert gaussian_delta(0, 1) == pytest.approx(math.erf(0.5 / math.sqrt(2)), rel=1e-12)
    assert gaussian_epsilon(1, 0.5) == 0


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.0])
def test_delta_is_the_integral_that_defines_it(mu, epsilon):
    """∫ max(p - e^ε q, 0) of the two normals, by the trapezoidal rule."""
    x = np.linspace(-12, 20, 2_000_001)
    p = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    q = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    expected = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x)
    assert gaussian_delta(epsilon, mu) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_far_tails_neither_overflow_nor_vanish():
    epsilon = gaussian_epsilon(50, 1e-12)
    assert gaussian_delta(epsilon, 50) == pytest.approx(1e-12, rel=1e-3)
    assert gaussian_delta(epsilon, 50) <= 1e-12
    assert gaussian_epsilon(1e-3, 1e-9) < 0.01


def test_noise_and_rounds_of_a_budget_are_on_its_safe_side():
    noise = noise_for(8, 100, 1e-4)
    assert epsilon_of(noise, 100, 1e-4) <= 8 < epsilon_of(0.999 * noise, 100, 1e-4)
    rounds = rounds_within(8, 4, 1e-4)
    assert epsilon_of(4, rounds, 1e-4) <= 8 < epsilon_of(4, rounds + 1, 1e-4)
    assert rounds_within(0.01, 0.1, 1e-5) == 0


def test_rounds_in_which_everyone_takes_part_are_dp_accounting_s():
    dp = pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    from dp_accounting.pld import PLDAccountant  # noqa: PLC0415 - optional

    accountant = PLDAccountant()
    accountant.compose(dp.GaussianDpEvent(2.0), 40)
    assert epsilon_of(2, 40, 1e-4) == pytest.approx(accountant.get_epsilon(1e-4), rel=1e-3)


def test_secret_sampling_spends_less_and_all_of_it_is_everyone():
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    assert sampled_epsilon(1, 0.1, 100, 1 / 300) == pytest.approx(4.1067, abs=1e-3)
    assert sampled_epsilon(4, 1.0, 100, 1 / 300) == pytest.approx(9.237, abs=2e-3)
    assert sampled_epsilon(1, 0.1, 0, 1e-5) == 0


def _told(*arguments):
    return CliRunner().invoke(privacy, arguments)


def test_the_command_tells_noise_and_epsilon_of_each_other_and_a_table_without():
    """docs/privacy.md shows what it prints."""
    (asked,) = json.loads(_told("--devices", "300", "--epsilon", "8", "--json").output)
    assert epsilon_of(asked["noise_multiplier"], 100, 0.1 / 300) == pytest.approx(8, rel=1e-4)
    (back,) = json.loads(
        _told("--devices", "300", "--noise", str(asked["noise_multiplier"]), "--json").output
    )
    assert back["epsilon"] == pytest.approx(8, rel=1e-4)
    for line in _told().output.splitlines():
        assert line in _DOCS.read_text()
    assert "give --noise or --epsilon" in _told("--noise", "1", "--epsilon", "1").output
    assert "--devices: how many" in _told("--noise", "1").output


def test_the_command_tells_of_devices_that_are_drawn():
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    told = _told(
        "--devices", "30", "--noise", "1", "--rate", "0.1", "--delta", "0.00333333", "--json"
    )
    (row,) = json.loads(told.output)
    assert row["epsilon"] == pytest.approx(4.1067, abs=1e-3)


def test_a_missing_accountant_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"pip install 'protofleet\[privacy\]'"):
        sampled_epsilon(1, 0.1, 1, 1e-5)
