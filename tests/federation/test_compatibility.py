"""Which bundles can be of one federation, as far as their inputs go."""

from __future__ import annotations

import msgspec
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.unbundled import manifest_for
from protofleet.edge.state.move import check_inputs
from protofleet.errors import ProvisionError, RefusedError
from protofleet.federation.compatibility import check_compatible

_PLAIN = Preprocessing(
    input_shape=(20, 2), rate_hz=10.0, window=20, hop=10, channels=("acc_x", "gyro_x")
)


def _in(*units):
    return msgspec.structs.replace(_PLAIN, units=units or msgspec.UNSET)


def _manifest(inputs):
    return manifest_for(inputs, ("a", "b"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (_in("g", "rad/s"), _in("g", "rad/s")),
        (_in(), _in("g", "rad/s")),
        (_in("g", "rad/s"), _in()),
    ],
)
def test_units_that_one_bundle_does_not_say_are_no_others(old, new):
    check_compatible(_manifest(old), _manifest(new))
    check_inputs(old, new)


def test_other_units_are_another_input():
    old, new = _in("g", "rad/s"), _in("m/s²", "rad/s")
    with pytest.raises(RefusedError, match=r"its units .* cannot train together"):
        check_compatible(_manifest(old), _manifest(new))
    with pytest.raises(ProvisionError, match=r"was in units \('g', 'rad/s'\), with the new bundle"):
        check_inputs(old, new)
