"""The picture of scores over bytes: where names stand, and what is on the front."""

from __future__ import annotations

import pytest

from protofleet.experiments import _overview_figure


def test_names_in_a_column_never_overlap_and_stay_in_it_while_there_is_room():
    assert _overview_figure.apart([0.9, 0.5], [0.1, 0.1]) == pytest.approx([0.9, 0.5])
    assert _overview_figure.apart([0.5, 0.5], [0.1, 0.2]) == pytest.approx([0.5, 0.35])
    assert _overview_figure.apart([0.01, 0.0], [0.1, 0.1]) == pytest.approx([0.15, 0.05])
    assert _overview_figure.apart([1.0, 1.0], [0.5, 0.6]) == pytest.approx([0.75, 0.2])


def test_points_that_are_beaten_for_less_are_not_on_the_front():
    ends = {"a": (1.0, 50.0), "b": (2.0, 40.0), "c": (3.0, 60.0), "d": (3.0, 55.0)}
    assert _overview_figure.pareto(ends) == ["a", "c"]
    alike = {"a": (1.0, 50.0), "b": (1.005, 60.0), "c": (1.1, 55.0), "d": (1.1, 60.0)}
    assert _overview_figure.pareto(alike) == ["b"]
