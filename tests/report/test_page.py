from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest
from report.fake_run import CLASSES, write_comparison, write_run

from protofleet.errors import InputError, MissingDataError
from protofleet.federation.outcomes.calibration import choose
from protofleet.federation.records import RunRecord, Scores, Spread, load_record, save_record
from protofleet.report import (
    ComparedRecord,
    Details,
    load_details,
    save_details,
    write_report,
)
from protofleet.report._page import render
from protofleet.report.projection import principal_plane

pytestmark = pytest.mark.slow(seconds=1)


class _Page(HTMLParser):
    """Collects what a test asks about: references, pictures by figure, cells, nesting."""

    def __init__(self, html):
        super().__init__()
        self.references, self.pictures, self.open_tags, self.text = [], {}, [], []
        self._figure = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.references += [v for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]
        if tag == "figure":
            self._figure = found["id"]
        if tag == "img":
            self.pictures[self._figure] = found
        if tag not in ("meta", "img", "link"):
            self.open_tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open_tags:
            self.text.append(" ".join(data.split()))


def _page(folder):
    return _Page(write_report(folder).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def page(run):
    return _page(run)


def test_the_page_needs_nothing_from_outside(run, page):
    """No link, no script, no style sheet or font; the pictures refer to nothing either."""
    html = (run / "report.html").read_text()
    assert all(value.startswith("data:image/svg+xml;base64,") for value in page.references)
    assert not re.search(r"https?://|//cdn|<script src|<link|@import|url\(", html)
    for picture in page.pictures.values():
        svg = base64.b64decode(picture["src"].split(",")[1]).decode()
        assert not re.search(r'href="(?!#)', svg)
        assert not re.search(r"<(image|script|foreignObject)|url\((?!#)", svg)
    assert page.open_tags == []


def test_the_page_has_every_plot_with_a_text_for_those_who_cannot_see_it(page):
    expected = ["scores", "bytes-round", "bytes-device", "train-ms", "infer-ms"]
    assert list(page.pictures) == [*expected, "prototypes-0", "prototypes-1"]
    assert all(len(picture["alt"]) > 40 for picture in page.pictures.values())


def test_the_page_shows_the_numbers_of_the_run(run, page):
    result = load_record(run / "result.json", RunRecord)
    text = " ".join(page.text)
    assert "8 owners: balanced accuracy 84.0 % at the start, 86.2 % now" in text
    assert "6 better than at the start, 2 worse, 0 alike (on average +2.2 points" in text
    best = result.scores.personalisation["macro_f1"]
    assert f"{100 * best.mean:.1f} % ± {100 * best.std:.1f}" in text
    assert "fedali" in text
    assert "UCI-HAR" in text
    assert "3f" * 32 in text
    for device in result.devices:
        assert device.id in page.text
        assert f"{device.peak_rss_bytes / 1e6:.3g} MB" in page.text


def test_the_page_tells_the_codec_and_what_a_device_pays_for_a_round(tmp_path):
    folder = write_run(tmp_path / "run", devices=4, rounds=2)
    path = folder / "result.json"
    result = load_record(path, RunRecord)
    rounds = tuple(
        msgspec.structs.replace(one, bytes_up=8_000, bytes_down=6_000, participants=count)
        for one, count in zip(result.rounds, (4, 3), strict=True)
    )
    save_record(msgspec.structs.replace(result, rounds=rounds, codec="topk 0.1 / int4"), path)
    text = write_report(folder).read_text()
    assert "topk 0.1 / int4" in text
    assert "2.29 kB up, 1.71 kB down" in text


def test_the_learning_rates_that_were_tried_are_drawn(tmp_path):
    folder = write_run(tmp_path / "run", devices=4, rounds=2)
    path = folder / "result.json"
    chosen = choose("sgd", (0.01, 0.1, 1.0), [np.array([0.9, 0.3, 4.0])], otherwise=0.1)
    result = load_record(path, RunRecord)
    save_record(msgspec.structs.replace(result, calibration=chosen), path)
    page = _page(folder)
    assert "Line plot of 3 learning rates; learning rate 0.1" in page.pictures["rates"]["alt"]
    assert chosen.text in page.text
    untried = choose("sgd", (0.01, 0.1, 1.0), [], otherwise=0.1)
    save_record(msgspec.structs.replace(result, calibration=untried), path)
    page = _page(folder)
    assert "rates" not in page.pictures
    assert untried.text in page.text


def test_methods_stand_beside_each_other_with_what_they_start_from(tmp_path):
    folder = write_run(tmp_path / "run", devices=2, rounds=3)
    result = write_comparison(folder)
    page = _page(folder)
    text = " ".join(page.text)
    pictures = [key for key in page.pictures if key.startswith("compared-")]
    assert pictures == [
        f"compared-{kind}" for kind in ("personalisation", "generalisation", "global")
    ]
    alts = {key: page.pictures[key]["alt"] for key in pictures}
    assert "for 2 methods" in alts["compared-personalisation"]
    assert "for 1 methods" in alts["compared-global"]
    for method in result.comparison:
        assert f"start of {method.label}" in page.text
        assert method.label in page.text
        found = method.last.personalisation["macro_f1"]
        assert f"{100 * found.mean:.1f} ± {100 * found.std:.1f}" in text
    assert "Methods beside each other" not in _page(write_run(tmp_path / "alone", rounds=1)).text


def test_a_strategy_without_prototypes_and_a_run_with_one_device_are_shown(tmp_path):
    page = _page(write_run(tmp_path / "run", devices=1, rounds=1, prototypes=False))
    assert "The strategy fedavg has no prototypes to show." in page.text
    assert not any(key.startswith("prototypes") for key in page.pictures)
    assert {"scores", "bytes-device", "infer-ms"} <= page.pictures.keys()


def test_a_run_in_which_nothing_was_measured_is_shown(tmp_path):
    """Killed before its first round: no scores, no devices, no samples, and still a page."""
    empty = RunRecord(strategy="fedavg", seed=1, rounds=(), scores=Scores(), devices=())
    save_record(empty, tmp_path / "result.json")
    save_details(Details(title="Nothing", data="digits"), tmp_path / "details.json")
    assert _page(tmp_path).pictures == {}


def test_names_from_the_fleet_cannot_write_into_the_page(run):
    """A device chooses its own id, a bundle its provenance."""
    evil = "<script>alert(1)</script>"
    details = Details(title=evil, data=evil, provenance={evil: evil})
    page = render(load_record(run / "result.json", ComparedRecord), details)
    assert "<script>alert" not in page
    assert page.count("<script") == 1


def test_the_same_run_gives_the_same_page(tmp_path):
    run = write_run(tmp_path, devices=1, rounds=1, prototypes=False)
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_more_layers_groups_and_devices_than_fit_are_thinned(tmp_path):
    folder = write_run(tmp_path / "run", devices=45, rounds=1)
    details = load_details(folder / "details.json")
    layer = details.prototypes[0]
    many = tuple(f"device-{index}" for index in range(len(layer.groups)))
    layers = tuple(
        type(layer)(layer=f"layer{index}", values=layer.values, groups=many) for index in range(12)
    )
    page = _Page(
        render(
            load_record(folder / "result.json", ComparedRecord),
            Details(title="t", data="d", classes=CLASSES, prototypes=layers),
        )
    )
    assert sum(key.startswith("prototypes") for key in page.pictures) == 6
    assert "Prototypes of layer11" in page.text


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(MissingDataError, match="this is no run's folder"):
        write_report(tmp_path)
    write_run(tmp_path, rounds=1)
    (tmp_path / "details.json").write_text('{"title": "t"}')
    with pytest.raises(InputError, match=r"details\.json.*data"):
        write_report(tmp_path)


def test_the_projection_finds_a_plane_and_its_shares():
    """Points on a plane in five dimensions: distances survive, variance is all there."""
    rng = np.random.default_rng(0)
    flat = rng.normal(0, (3.0, 1.0), (50, 2))
    basis = np.linalg.qr(rng.normal(0, 1, (5, 2)))[0]
    points, shares = principal_plane(flat @ basis.T + 7)
    assert np.allclose(
        np.linalg.norm(np.diff(points, axis=0), axis=1),
        np.linalg.norm(np.diff(flat, axis=0), axis=1),
    )
    assert sum(shares) == pytest.approx(1)
    assert shares[0] > shares[1]


@pytest.mark.parametrize("values", [np.zeros((1, 4)), np.ones((3, 4)), np.ones((3, 1))])
def test_the_projection_of_points_without_spread_is_the_origin(values):
    points, shares = principal_plane(values)
    assert np.allclose(points, 0)
    assert shares == (0, 0)


def test_losses_and_further_scores_are_rows_and_a_final_fit_is_told(tmp_path):
    """Names come from devices: they are text, whatever is in them."""
    folder = write_run(tmp_path / "run", devices=2, rounds=2)
    result = load_record(folder / "result.json", RunRecord)
    last = result.rounds[-1]
    metrics = last.scores.personalisation
    scores = msgspec.structs.replace(
        last.scores, own_loss=Spread(mean=0.125, std=0.5), more={"<i>before": metrics}
    )
    final = msgspec.structs.replace(last, round_id=3, final=True, scores=scores)
    rounds = (*result.rounds, final)
    save_record(
        msgspec.structs.replace(result, rounds=rounds, scores=scores, last=last.scores),
        folder / "result.json",
    )
    page = _page(folder)
    assert "Loss on own test data" in page.text
    assert "0.125" in page.text
    assert "<i>before, macro-F1, %" in page.text
    assert "Personalisation as scored last, macro-F1, %" in page.text
    text = " ".join(page.text)
    assert "fit after the last round" in text
    assert "for 2 rounds" in text
    assert "over 2 rounds" in page.pictures["scores"]["alt"]


def _regression(rmse):
    both = {"rmse": Spread(mean=rmse, std=0.5), "r2": Spread(mean=0.25, std=0.0)}
    return Scores(
        task="regression",
        personalisation=both,
        more={"early": both},
        targets={"heart rate": {"rmse": 3.25, "mae": 2.0, "r2": 0.75}, "constant": {"mae": 0.0}},
    )


def test_a_regression_is_shown_in_its_own_scores_and_by_target(run, tmp_path):
    result = load_record(run / "result.json", RunRecord)
    rounds = tuple(msgspec.structs.replace(one, scores=_regression(4.5)) for one in result.rounds)
    changed = msgspec.structs.replace(result, rounds=rounds, scores=_regression(4.25))
    save_record(changed, tmp_path / "result.json")
    details = msgspec.structs.replace(load_details(run / "details.json"), confusions=())
    save_details(details, tmp_path / "details.json")
    page = _page(tmp_path)
    text = " ".join(" ".join(page.text).split())
    assert "4.25 ± 0.5" in text
    assert "RMSE R² 0.25 ± 0" in text
    assert "early, RMSE 4.25 0.5" in text
    assert "heart rate 3.25 2 0.75 constant - 0 -" in text
    assert "macro-F1" not in text
    assert "Confusion matrix" not in page.text
    assert "RMSE" in page.pictures["scores"]["alt"]
