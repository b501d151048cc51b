from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from altered import altered

from protofleet.errors import InputError
from protofleet.federation.randomness import server_rng
from protofleet.federation.server_tools import make_server_tools
from protofleet.strategies.aggregation import MEAN, build


def _asking(strategy, *objectives):
    description = replace(strategy.description, server_objectives=objectives)
    return altered(strategy, description=description)


def test_a_strategy_that_asks_gets_programs_that_train_and_predict(tiny):
    bundle, model = tiny.plan.bundle, tiny.plan.model
    make = make_server_tools(bundle, _asking(tiny.plan.strategy, "cross_entropy"), seed=4)
    x = np.eye(4, dtype=np.float32)[:2]
    logits = make(1).predict(model.network, x)
    np.testing.assert_allclose(logits, x @ model.params["w"], atol=1e-6)
    batch = {"x": x, "y": np.array([0, 1])}
    step = make(1).grad_fns["cross_entropy"](model.network, batch, make(1).rng)
    assert step.loss > 0


def test_other_strategies_get_randomness_alone(tiny):
    make = make_server_tools(tiny.plan.bundle, tiny.plan.strategy, seed=4)
    assert make(2).grad_fns == {}
    assert make(2).rng.integers(1 << 62) == server_rng(4, 2).integers(1 << 62)
    with pytest.raises(InputError, match="asked for no programs"):
        make(2).predict(tiny.plan.model.network, np.zeros((1, 4)))


@pytest.mark.parametrize("objectives", [(), ("cross_entropy",)])
def test_the_plan_s_aggregation_rule_reaches_the_strategy(tiny, objectives):
    rule, strategy = build("median", {}), _asking(tiny.plan.strategy, *objectives)
    make = make_server_tools(tiny.plan.bundle, strategy, seed=4, aggregator=rule)
    assert make(1).aggregator is rule
    assert make_server_tools(tiny.plan.bundle, strategy, seed=4)(1).aggregator is MEAN


def test_without_a_reason_a_coordinator_loads_no_runtime(tiny):
    """ONNX Runtime costs memory that most coordinators need not spend."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from protofleet.coordinator.process import run\n"
        "from protofleet.federation.server_tools import make_server_tools\n"
        "from protofleet.strategies import build\n"
        "from protofleet.bundle import Bundle\n"
        "bundle = Bundle.open(Path(sys.argv[1]), any_signer=True)\n"
        "strategy = build('fedavg', {}, bundle.model())\n"
        "make_server_tools(bundle, strategy, seed=0)(1)\n"
        "assert 'onnxruntime' not in sys.modules\n"
    )
    path = str(tiny.plan.config.bundle)
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
