"""Pictures of claims."""

from itertools import pairwise

import msgspec
import pytest
from matplotlib.figure import Figure
from paired_runs import a_run, store_runs, write_files

from protofleet.experiments.claim_figures import _comparison, _plain_ticks, draw, look_of
from protofleet.experiments.claim_files import draw_claims
from protofleet.experiments.claim_registry import load_claims
from protofleet.experiments.claim_results import result_of
from protofleet.experiments.comparisons import Estimate


@pytest.mark.parametrize("measure", ["last", "equal_bytes", "rounds_to", "uplink"])
def test_a_picture_of_each_measure_is_drawn_twice_alike(tmp_path, monkeypatch, measure):
    """Seed 3's B never reaches the target, so that one end of an interval is open."""
    monkeypatch.chdir(tmp_path)
    experiment = write_files(tmp_path)
    file = tmp_path / "papers" / "fedx.toml"
    sections = 'sections = ["personalisation"]'
    one = f'{"" if measure == "uplink" else sections}\nmeasures = ["{measure}"]\n'
    text = file.read_text().replace(sections, one + ("target = 0.6\n" * (measure == "rounds_to")))
    file.write_text(text)
    runs = [a_run("A", seed, [0.5, 0.5, 0.6 + seed / 100], loss=0.2) for seed in (1, 2, 3)]
    runs += [a_run("B", seed, [0.5, 0.5, 0.65 - seed / 50], loss=0.5, up=900) for seed in (1, 2, 3)]
    store_runs(tmp_path / "one", experiment, *runs)
    (claim,) = load_claims(tmp_path / "papers")
    result = result_of(claim, tmp_path)
    for name in ("a.png", "b.png"):
        draw(result, tmp_path / name)
    drawn = (tmp_path / "a.png").read_bytes()
    assert drawn == (tmp_path / "b.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")


def test_a_picture_stays_where_a_curve_is_elsewhere(tmp_path, monkeypatch):
    """Earlier figures may lack them; without a picture what there is is drawn."""
    monkeypatch.chdir(tmp_path)
    experiment = write_files(tmp_path)
    runs = [a_run(label, seed, [0.5, 0.6, 0.7]) for label in "AB" for seed in (1, 2)]
    store_runs(tmp_path / "one", experiment, *runs)
    (claim,) = load_claims(tmp_path / "papers")
    result = result_of(claim, tmp_path)
    less = msgspec.structs.replace(result, curves={"A": result.curves["A"]})
    picture = tmp_path / "claims-fedx-better.png"
    drawn = [
        draw_claims([one], tmp_path)[one.id].read_bytes() for one in (less, result, less, result)
    ]
    assert drawn[0] != drawn[1] == drawn[2] == drawn[3]
    assert draw_claims([msgspec.structs.replace(result, outcomes=())], tmp_path) == {}
    assert picture.is_file()


@pytest.mark.parametrize(
    ("kind", "ends"), [("t", [0.0, 2.0]), ("log t", [0.0, 2.0]), ("order", [1.0, 2.0])]
)
def test_an_interval_reaches_to_nothing_unless_that_end_is_open(tmp_path, monkeypatch, kind, ends):
    """Order statistics of ratios know no lower bound then: the line is from the value alone."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    (claim,) = load_claims(tmp_path / "papers")
    one = result_of(claim, tmp_path).outcomes[0]
    axes = Figure().add_subplot()
    _comparison(axes, 0, one, Estimate(value=1.0, low=0.0, high=2.0, kind=kind))
    assert list(axes.lines[0].get_xdata()) == ends


def test_curves_are_told_apart():
    """A claim's first eight methods by colour, further ones by their line."""
    looks = [look_of(number) for number in range(13)]
    assert len({(one["color"], one["ls"]) for one in looks}) == len(looks)
    assert len({one["color"] for one in looks[:8]}) == 8


@pytest.mark.parametrize(
    "edges", [(0.97, 1.04), (0.3, 1.1), (0.015, 1.1), (0.02, 15), (0.007, 110)]
)
def test_numbers_of_a_logarithmic_axis_do_not_overlap(edges):
    """On a panel as narrow as that of the curves."""
    figure = Figure(figsize=(3.3, 3), dpi=100)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_xlim(edges)
    _plain_ticks(axes)
    figure.draw_without_rendering()
    boxes = [
        label.get_window_extent()
        for label in axes.get_xticklabels()
        if label.get_text() and edges[0] <= label.get_position()[0] <= edges[1]
    ]
    assert len(boxes) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
