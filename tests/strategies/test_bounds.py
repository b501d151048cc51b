"""Bounds of settings in their types."""

from typing import Annotated, ClassVar

import msgspec
import pytest

from protofleet.errors import InputError
from protofleet.strategies.bounds import Bounded, Bounds, Count, Share, Weight, bounds_of


class Inner(Bounded, frozen=True, kw_only=True):
    place: ClassVar[str] = "inner."

    share: Share = 0.5


class Settings(Bounded, frozen=True, kw_only=True):
    mu: Weight = 0.1
    epochs: Count = 5
    limit: Annotated[float, Bounds(1e-12)] | None = None
    words: str = ""
    inner: Inner = Inner()


class Fewer(Settings, frozen=True, kw_only=True):
    epochs: int = 1


@pytest.mark.parametrize("kind", [Settings, Fewer])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mu": -0.1}, "setting 'mu': expected a number between 0 and 1e\\+09, got -0.1"),
        ({"mu": 2e9}, "'mu': .* got 2000000000"),
        ({"mu": float("nan")}, "'mu': .* got nan"),
        ({"epochs": 0}, "'epochs': expected a number between 1 and"),
        ({"epochs": 2**70}, "'epochs': .* got more than 64 bits"),
        ({"limit": 0}, "'limit': expected a number between 1e-12"),
        ({"inner": {"share": 1.5}}, "setting 'inner.share': expected a number between 0 and 1,"),
    ],
)
def test_a_number_outside_its_bounds_is_named(kind, given, message):
    with pytest.raises((InputError, msgspec.ValidationError), match=message):
        msgspec.convert(given, kind)


def test_bounds_belong_to_numbers_also_where_none_may_stand():
    assert bounds_of(Fewer) == {
        "mu": Bounds(0),
        "epochs": Bounds(1),
        "limit": Bounds(1e-12),
    }
    assert Fewer(mu=0, epochs=1).limit is None
