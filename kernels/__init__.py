"""Numeric hot loops, in Numba where it is installed and in NumPy with the same numbers elsewhere.

Importing this package loads neither Numba nor a compiled kernel; the first call does. Inputs are
never written unless a docstring says so, and no result depends on a number of threads.
"""

from protofleet.kernels._alp import AlpVariant, alp_infer, alp_train
from protofleet.kernels._clusters import (
    davies_bouldin,
    predict_missing_prototypes,
    shared_class_similarity,
)
from protofleet.kernels._codecs import (
    Rounding,
    fp16_decode,
    fp16_encode,
    int8_decode,
    int8_encode,
    shuffle_decode,
    shuffle_encode,
)
from protofleet.kernels._flat import EpsForm, adam_step, sgd_step
from protofleet.kernels._kmeans import (
    KMeansResult,
    cluster_means,
    kmeans,
    kmeans_plusplus,
    kmeans_restarts,
)
from protofleet.kernels._mean import WeightedMean
from protofleet.kernels._pixelise import pixelise
from protofleet.kernels._pool import set_threads
from protofleet.kernels._sinkhorn import SinkhornResult, sinkhorn
from protofleet.kernels._sphere import (
    hyperspherical_prototypes,
    uniform_loss,
)
from protofleet.kernels._switch import numba_enabled
from protofleet.kernels._topk import topk_decode, topk_encode
from protofleet.kernels._updates import ala_step, clip_by_norm, control_update
from protofleet.kernels._warm import Warmed, warm

__all__ = [
    "AlpVariant",
    "EpsForm",
    "KMeansResult",
    "Rounding",
    "SinkhornResult",
    "Warmed",
    "WeightedMean",
    "adam_step",
    "ala_step",
    "alp_infer",
    "alp_train",
    "clip_by_norm",
    "cluster_means",
    "control_update",
    "davies_bouldin",
    "fp16_decode",
    "fp16_encode",
    "hyperspherical_prototypes",
    "int8_decode",
    "int8_encode",
    "kmeans",
    "kmeans_plusplus",
    "kmeans_restarts",
    "numba_enabled",
    "pixelise",
    "predict_missing_prototypes",
    "set_threads",
    "sgd_step",
    "shared_class_similarity",
    "shuffle_decode",
    "shuffle_encode",
    "sinkhorn",
    "topk_decode",
    "topk_encode",
    "uniform_loss",
    "warm",
]
