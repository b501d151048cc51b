"""What a run's scores rest on, whatever its method: the test parts of its seed."""

from __future__ import annotations

import numpy as np

from protofleet.experiments.prepare import PreparedData
from protofleet.experiments.store import EvaluationData
from protofleet.federation.outcomes.scores import round_scores
from protofleet.strategies.scores import confusion
from protofleet.strategies.types import Evaluation


def evaluation_data(data: PreparedData) -> EvaluationData:
    """Read the labels of a seed's files."""
    evaluations = []
    for files in data.clients.values() if data.classes else ():
        with np.load(files.own) as own:
            train, test = own["y_train"], own["y_test"]
        named = np.full(len(test), np.bincount(train).argmax())
        evaluations.append(Evaluation(own=confusion(test, named, len(data.classes))))
    pooled = 0
    if data.pooled is not None:
        with np.load(data.pooled) as everybody:
            pooled = len(everybody["y_test"])
    found = round_scores(evaluations, None).personalisation
    return EvaluationData(pooled=pooled, most_frequent=found or {})
