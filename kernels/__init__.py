"""Numeric hot loops, in Numba where it is installed and in NumPy with the same numbers elsewhere.

Importing this package loads neither Numba nor a compiled kernel; the first call does. Inputs are
never written unless a docstring says so, and no result depends on a number of threads.
"""

from protofleet.kernels._alp import AlpVariant, alp_infer, alp_train
from protofleet.kernels._flat import EpsForm, WeightedMean, adam_step, sgd_step
from protofleet.kernels._kmeans import KMeansResult, cluster_means, kmeans
from protofleet.kernels._switch import numba_enabled, set_threads

__all__ = [
    "AlpVariant",
    "EpsForm",
    "KMeansResult",
    "WeightedMean",
    "adam_step",
    "alp_infer",
    "alp_train",
    "cluster_means",
    "kmeans",
    "numba_enabled",
    "set_threads",
    "sgd_step",
]
