"""Numeric hot loops, in Numba where it is installed and in NumPy with the same numbers elsewhere.

Importing this package loads neither Numba nor a compiled kernel; the first call does. Inputs are
never written unless a docstring says so, and no result depends on a number of threads.
"""

from protofleet.kernels.alp import AlpVariant, alp_infer, alp_train
from protofleet.kernels.blend import blend, inner_products
from protofleet.kernels.clusters import (
    davies_bouldin,
    predict_missing_prototypes,
    shared_class_similarity,
)
from protofleet.kernels.codecs import (
    Rounding,
    fp16_decode,
    fp16_encode,
    int8_decode,
    int8_encode,
    shuffle_decode,
    shuffle_encode,
    topk_decode,
    topk_encode,
)
from protofleet.kernels.distances import SquaredDistances
from protofleet.kernels.exact import ExactSum
from protofleet.kernels.kmeans import (
    EmptyClusters,
    KMeansResult,
    cluster_means,
    kmeans,
    kmeans_plusplus,
    kmeans_restarts,
)
from protofleet.kernels.mean import WeightedMean
from protofleet.kernels.native.pool import set_threads, threads
from protofleet.kernels.native.switch import numba_enabled
from protofleet.kernels.native.warm import CacheState, Warmed, cache_state, warm
from protofleet.kernels.norms import (
    squared_distance,
    squared_distance_and_norm,
    squared_distances,
)
from protofleet.kernels.pixelise import pixelise
from protofleet.kernels.simplex import gram, simplex_minimum
from protofleet.kernels.sinkhorn import SinkhornResult, sinkhorn
from protofleet.kernels.sphere import (
    hyperspherical_prototypes,
    uniform_loss,
    unit_rows,
)
from protofleet.kernels.steps import (
    EpsForm,
    adam_step,
    ala_step,
    bound_adam,
    bound_sgd,
    clip_by_norm,
    control_update,
    sgd_step,
)

__all__ = [
    "AlpVariant",
    "CacheState",
    "EmptyClusters",
    "EpsForm",
    "ExactSum",
    "KMeansResult",
    "Rounding",
    "SinkhornResult",
    "SquaredDistances",
    "Warmed",
    "WeightedMean",
    "adam_step",
    "ala_step",
    "alp_infer",
    "alp_train",
    "blend",
    "bound_adam",
    "bound_sgd",
    "cache_state",
    "clip_by_norm",
    "cluster_means",
    "control_update",
    "davies_bouldin",
    "fp16_decode",
    "fp16_encode",
    "gram",
    "hyperspherical_prototypes",
    "inner_products",
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
    "simplex_minimum",
    "sinkhorn",
    "squared_distance",
    "squared_distance_and_norm",
    "squared_distances",
    "threads",
    "topk_decode",
    "topk_encode",
    "uniform_loss",
    "unit_rows",
    "warm",
]
