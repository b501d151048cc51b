"""The rules give what ByzFL 0.0.11 gave; ``tests/support/make_byzfl_outputs.py`` wrote it down."""

from pathlib import Path

import byzfl_cases
import numpy as np
import pytest
from byzfl_cases import CASES, key, vectors_of
from toy_model import zeros

from protofleet.strategies.aggregation import build

_OUTCOMES = np.load(Path(byzfl_cases.__file__).with_name("byzfl_outcomes.npz"))
# Of ours the defaults are others: ByzFL begins at zeros too, with a fixed number of steps.
_SETTINGS = {
    "geometric_median": {"smoothing": 0.1, "steps": 7},
    "centred_clipping": {"radius": 2.0, "steps": 3},
}
_RULES = (
    "median",
    "trimmed_mean",
    "geometric_median",
    "krum",
    "multi_krum",
    "centred_clipping",
)


def _combined(case, name, settings):
    vectors = vectors_of(case).astype(np.float32)
    rule = build(name, settings)
    return rule.combine(zeros(case.size), [(vector, 1.0) for vector in vectors])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"seed {case.seed}")
@pytest.mark.parametrize("mixing", [False, True], ids=["alone", "after mixing"])
@pytest.mark.parametrize("name", _RULES)
def test_rules_are_byzfls(name, mixing, case):
    settings = {"liars": case.liars, "mixing": mixing, **_SETTINGS.get(name, {})}
    expected = _OUTCOMES[key(case, name, mixing=mixing)]
    np.testing.assert_allclose(_combined(case, name, settings), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"seed {case.seed}")
def test_the_mean_is_byzfls(case):
    expected = _OUTCOMES[key(case, "mean")]
    np.testing.assert_allclose(_combined(case, "mean", {}), expected, rtol=1e-6, atol=1e-6)
