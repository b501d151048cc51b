"""The device: durable store, local training, agent, meter, sensor intake.

Loads NumPy, ONNX Runtime and paho, and neither PyTorch nor SciPy.
"""

from protofleet.edge.data.local_data import load_local_data
from protofleet.edge.join import JoinOptions, JoinSettings, join
from protofleet.edge.learning.training import LocalData
from protofleet.edge.learning.trial import Trial, try_bundle
from protofleet.edge.notices import Report
from protofleet.edge.personal import PersonalModel, open_bundle, open_personal
from protofleet.edge.predictions import Predictions
from protofleet.edge.state.store import Store

__all__ = [
    "JoinOptions",
    "JoinSettings",
    "LocalData",
    "PersonalModel",
    "Predictions",
    "Report",
    "Store",
    "Trial",
    "join",
    "load_local_data",
    "open_bundle",
    "open_personal",
    "try_bundle",
]
