"""FedAvg-C: FedAvg, and at the very end every client fine-tunes the global model for itself.

Source: McMahan et al., arXiv:1602.05629, with the fine-tuning that makes it a baseline of
personalised methods. All rounds are those of ``fedavg.py``, symbols and deviations included. The
payload after the last round holds the final global model; every client trains it once more as in a
round and is scored with the outcome, which the server does not average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from protofleet.strategies.methods import fedavg
from protofleet.strategies.types import Strategy
from protofleet.tensors import Model

DESCRIPTION = replace(fedavg.DESCRIPTION, name="fedavg_c", final_fit=True)


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedAvg with a final fit, for one model.

    Raises:
        InputError: unknown setting, wrong type or a value outside its range.
    """
    return fedavg.build_as(DESCRIPTION, settings, model)
