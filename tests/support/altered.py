"""A strategy with something else in the place of a method or of what it says of itself."""

import copy


def altered(strategy, **changes):
    other = copy.copy(strategy)
    for name, value in changes.items():
        setattr(other, name, value)
    return other
