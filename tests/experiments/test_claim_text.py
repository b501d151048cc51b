"""The page of the claims and what the terminal shows; every figure worked out by hand."""

import io

import msgspec
import pytest
from paired_runs import a_run, store_runs, write_files
from rich.console import Console

from protofleet.experiments.claim_registry import load_claims
from protofleet.experiments.claim_results import ClaimResult, digests_of, progress_of, result_of
from protofleet.experiments.claim_text import (
    claimed_text,
    label_of,
    number,
    pages,
    show,
    show_progress,
    verdict_text,
)
from protofleet.experiments.config import FOLDER


@pytest.fixture
def result(tmp_path, monkeypatch):
    """A is 1, 2 and 3 points better, at the same bytes."""
    monkeypatch.chdir(tmp_path)
    experiment = write_files(tmp_path)
    runs = [a_run("A", seed, [0.5, 0.5, 0.6 + seed / 100], loss=0.25) for seed in (1, 2, 3)]
    runs += [a_run("B", seed, [0.5, 0.5, 0.6], loss=0.5) for seed in (1, 2, 3)]
    store_runs(tmp_path / "one", experiment, *runs)
    (claim,) = load_claims(tmp_path / "papers")
    return result_of(claim, tmp_path)


def whole(result, pictures=None):
    """All pages of one claim."""
    return "\n".join(pages([result], pictures or {}, "claims").values())


def test_the_page_has_the_claim_its_setting_figures_and_verdict(result):
    """2 ± 4.303 / √3."""
    found = pages([result], {result.id: "images/a.png"}, "claims")
    assert list(found) == ["claims.md", "results/claims-figures.md", "results/claims-fedx.md"]
    assert (
        "| [fedx-better](results/claims-fedx.md#fedx-better): A scores higher than B. | +2.00 "
        "(inside); elsewhere +5.00 (outside) | A - B > 0: +2.00 [-0.48, +4.48] | 3 of 3 | not "
        "decided |"
    ) in found["claims.md"]
    text = found["results/claims-fedx.md"]
    assert (
        "| **A - B, personalisation, last round** | > 0 | 62.00 / 60.00 | +2.00 [-0.48, +4.48] | "
        "+2.00 (inside); elsewhere +5.00 (outside) | 3/3 | not decided; above +4.48 is excluded |"
    ) in text
    assert (
        "| A - B, loss, last round | < 0 | 0.250 / 0.500 | -0.250, the same in all seeds | - | "
        "3/3 | reproduced |"
    ) in text
    assert (
        "| A ÷ B, bytes up and down | < 1 | 3 kB / 3 kB | 1, the same in all seeds | - | 3/3 | "
        "not decided |"
    ) in text
    assert "(../images/a.png)" in text
    assert "- By seed differ who has which examples, which of them test, the initial" in text
    drawn = "- who has which examples and which of them test: [fedx-better](claims-fedx.md#"
    assert drawn in found["results/claims-figures.md"]
    assert "As expected." in text


def test_the_same_results_give_the_same_page(result):
    again = msgspec.json.decode(msgspec.json.encode(result), type=ClaimResult)
    assert whole(result) == whole(again)


def test_missing_seeds_make_a_verdict_one_so_far(result):
    one = msgspec.structs.replace(result.outcomes[1], asked=5)
    assert verdict_text(one) == "so far reproduced"


def test_other_comparisons_of_the_claims_measure_are_counted(result):
    """B's loss is surely higher, and its bytes are the same."""
    results = tuple(msgspec.structs.replace(one, detail=False) for one in result.outcomes)
    text = whole(msgspec.structs.replace(result, outcomes=results))
    assert "| partly: 1 of 3 yes, 2 not decided |" in text


def summary(result, *outcomes, **changes):
    """Seeds and verdict of a claim's line, and the whole page."""
    text = whole(msgspec.structs.replace(result, outcomes=outcomes, **changes))
    (line,) = (one for one in text.splitlines() if one.startswith("| [fedx-better]"))
    return line.removesuffix(" |").split(" | ")[3:5], text


def saying(result, *verdicts, **more):
    one = result.outcomes[0]
    return [msgspec.structs.replace(one, verdict=verdict, **more) for verdict in verdicts]


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        (["reproduced"], "yes"),
        (["refuted"], "no"),
        (["reproduced"] * 2, "yes: all 2"),
        (["refuted", "reproduced", "reproduced"], "partly: 2 of 3 yes, 1 no"),
        (["not decided", "refuted"], "no: 1 of 2 no, 1 not decided"),
        (["not measured", "not decided"], "not decided: 1 of 2 not decided, 1 not measured"),
        (["not measured"] * 2, "not measured: all 2"),
    ],
)
def test_a_claims_verdict_is_that_of_all_its_main_comparisons(result, verdicts, told):
    (_, verdict), _ = summary(result, *saying(result, *verdicts))
    assert verdict == told


def test_a_claims_line_tells_missing_seeds_and_those_that_diverged(result):
    missing = saying(result, "reproduced", asked=5)
    assert summary(result, *missing)[0] == ["3 of 5", "so far yes"]
    gone = saying(result, "reproduced", asked=4, diverged={"A": (4,)})
    gone += saying(result, "reproduced", asked=4, diverged={"A": (4,), "B": (4,)})
    told = "yes: all 2; A diverged with seed 4; B diverged with seed 4"
    assert summary(result, *gone)[0] == ["3 of 4", told]
    unmeasured = saying(result, "not measured", pairs=(), estimate=None)
    found, text = summary(result, *saying(result, "reproduced"), *unmeasured)
    assert found == ["0 to 3 of 3", "so far partly: 1 of 2 yes, 1 not measured"]
    assert "- Seeds: 0 to 3 of 3." in text
    assert summary(result, *unmeasured)[0] == ["0 of 3", "not measured"]


def test_the_page_names_the_claims_whose_comparisons_were_fixed_later(result):
    assert "fixed later" not in whole(result).lower()
    _, text = summary(result, *result.outcomes, changed="the margin, when results were known.")
    assert "when results were known, as told below:\n[fedx-better](claims-fedx.md#" in text
    assert "\n- Fixed later: the margin, when results were known.\n" in text


def test_a_seed_that_diverged_is_told_and_is_not_missing(result):
    one = msgspec.structs.replace(result.outcomes[1], asked=5, diverged={"A": (4,), "B": (4, 5)})
    assert verdict_text(one) == ("reproduced; A diverged with seed 4; B diverged with seeds 4-5")


def test_a_paper_is_neither_inside_nor_outside_of_an_interval_without_width(result):
    one = msgspec.structs.replace(result.outcomes[2], paper=0.9)
    text = whole(msgspec.structs.replace(result, outcomes=(result.outcomes[0], one)))
    assert "| 1, the same in all seeds | 0.9 | 3/3 |" in text


def test_a_relative_difference_and_a_margin_are_told(result):
    one = msgspec.structs.replace(result.outcomes[0], relative=True, threshold=-2.0)
    assert label_of(one) == "A - B, relative, personalisation, last round"
    assert claimed_text(one) == "> -2 %"
    assert number(one, 2.5) == "+2.50 %"


def test_the_terminal_shows_what_is_claimed_and_what_was_found(result):
    console = Console(file=io.StringIO(), width=100)
    show([result], console)
    printed = console.file.getvalue()
    assert "fedx-better: A scores higher than B." in printed
    assert "A - B, personalisation, last round > 0 (3/3 seeds): +2.00 [-0.48, +4.48]" in printed
    assert "loss" not in printed  # a detail


def test_the_terminal_says_once_that_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    (claim,) = load_claims(tmp_path / "papers")
    console = Console(file=io.StringIO(), width=100)
    show([result_of(claim, tmp_path)], console)
    (told,) = console.file.getvalue().splitlines()[1:]
    assert told == (
        "  A - B, personalisation, last round > 0 (0/3 seeds): not measured; the paper +2.00; "
        "elsewhere +5.00"
    )


def test_the_terminal_shows_which_seeds_are_missing(tmp_path):
    experiment = write_files(tmp_path)
    store_runs(tmp_path, experiment, a_run("A", 2, [0.5] * 3), a_run("A", 1, [0.5] * 3, key="old"))
    console = Console(file=io.StringIO(), width=100)
    show_progress({"one": progress_of("one", experiment, tmp_path)}, console)
    printed = console.file.getvalue()
    assert "0 to 1 of 3" in printed
    assert "30 s" in printed  # 15 rounds of 2 s
    assert "one lacks seeds 1, 3 (A); 1-3 (B)" in printed
    assert "one: 1 run of other settings or rounds than the file's: not counted" in printed


def test_the_committed_page_is_made_of_the_committed_figures():
    """Else make both again: protofleet experiment claims --status --out, as the page says."""
    docs = FOLDER.parent / "docs"
    results = msgspec.json.decode((docs / "claims.json").read_bytes(), type=list[ClaimResult])
    drawn = {path.stem.removeprefix("claims-"): path for path in docs.glob("images/claims-*.png")}
    pictures = {key: path.relative_to(docs).as_posix() for key, path in drawn.items()}
    made = pages(results, pictures, "claims")
    assert {name: (docs / name).read_text() for name in made} == made
    kept = {path.name for path in docs.glob("results/claims-*.md")}
    assert kept == {name.removeprefix("results/") for name in made} - {"claims.md"}
    claims = load_claims()
    assert [one.id for one in results] == [one.claim.id for one in claims]
    assert [one.digests for one in results] == [digests_of(one.experiment) for one in claims]
    for one, found in zip(claims, results, strict=True):
        words = one.claim.claim, one.claim.printed, one.claim.setting
        assert (found.claim, found.printed, found.setting) == words
        assert found.remarks == " ".join(one.claim.remarks.split())
        assert found.changed == one.claim.changed
        compared = [
            (each.method, each.against, *row, each.printed(row[1]), each.expect, each.relative)
            for each in one.claim.comparisons
            for row in each.rows()
        ]
        assert compared == [
            (
                *(each.method, each.against, each.measure, each.section),
                *(each.paper, each.expect, each.relative),
            )
            for each in found.outcomes
        ]
    assert drawn.keys() <= {one.id for one in results}
