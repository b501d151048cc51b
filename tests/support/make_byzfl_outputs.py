"""Write ``byzfl_outcomes.npz``: what ByzFL makes of the vectors of ``byzfl_cases.py``.

pip install byzfl==0.0.11        # in an environment of its own: it brings torch and torchvision
python tests/support/make_byzfl_outputs.py
"""

from pathlib import Path

import byzfl
import numpy as np
from byzfl_cases import CASES, key, vectors_of

RULES = {
    "mean": lambda _: byzfl.Average(),
    "median": lambda _: byzfl.Median(),
    "trimmed_mean": lambda liars: byzfl.TrMean(f=liars),
    "geometric_median": lambda _: byzfl.GeometricMedian(nu=0.1, T=7),
    "krum": lambda liars: byzfl.Krum(f=liars),
    "multi_krum": lambda liars: byzfl.MultiKrum(f=liars),
    "centred_clipping": lambda _: byzfl.CenteredClipping(L=3, tau=2.0),
}

if __name__ == "__main__":
    found = {}
    for case in CASES:
        vectors = vectors_of(case)
        for name, make in RULES.items():
            found[key(case, name)] = make(case.liars)(vectors)
            if name != "mean":
                mixed = byzfl.NNM(f=case.liars)(vectors)
                found[key(case, name, mixing=True)] = make(case.liars)(mixed)
    np.savez_compressed(Path(__file__).with_name("byzfl_outcomes.npz"), **found)
