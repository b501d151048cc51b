"""FedAvg-C: FedAvg, and at the very end every client fine-tunes the global model for itself.

Source: McMahan et al., arXiv:1602.05629, with the fine-tuning that makes it a baseline of
personalised methods. All rounds are those of ``fedavg.py``, symbols and deviations included. The
payload after the last round holds the final global model; every client trains it once more as in a
round and is scored with the outcome, which the server does not average.
"""

from __future__ import annotations

from dataclasses import replace

from protofleet.strategies.methods.fedavg import FedAvg


class FedAvgC(FedAvg):
    """FedAvg with a final fit."""

    description = replace(FedAvg.description, name="fedavg_c", final_fit=True)
