"""The papers' claims as files: what is read and refused, and that the committed ones fit."""

import re

import pytest

from protofleet.errors import InputError
from protofleet.experiments.claim_registry import (
    CLAIMS,
    Comparison,
    chosen_claims,
    experiments_of,
    load_claims,
)

_EXPERIMENT = """
title = "Digits"
paper = "fedx"
table = "1"
rounds = 2
partition = {kind = "iid", clients = 2}
model = {name = "mlp"}
data = [{name = "digits"}]
score = {sections = ["personalisation"]}
methods = [{label = "A", strategy = "fedavg"}, {label = "B", strategy = "local"}]
"""
_HEAD = 'paper = "FedX"\nreference = "somewhere"\n'
_CLAIM = """
[[claims]]
id = "one"
claim = "A is better."
printed = "Table 1: +1"
experiment = "one.toml"
setting = "digits"
"""
_COMPARED = '[[claims.comparisons]]\nmethod = "A"\nagainst = "B"\n'
_SECTION = 'sections = ["personalisation"]\n'


def figures_in(remark):
    """What looks measured in it."""
    words = re.sub(r"\]\([^)]*\)|\w+ = [0-9.]+", "", remark)
    return re.findall(r"\d|%|\bper cent\b|\bpoints?\b", words)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.toml").write_text(_EXPERIMENT)
    return tmp_path / "papers"


def _load(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "fedx.toml").write_text(text, encoding="utf-8")
    return load_claims(folder)


def test_a_claim_is_read_with_its_defaults(folder):
    (found,) = _load(folder, _HEAD + _CLAIM + _COMPARED + _SECTION)
    (compared,) = found.claim.comparisons
    assert (compared.measures, compared.expect, compared.threshold) == (("last",), "greater", None)
    assert found.experiment.title == "Digits"
    assert found.paper.paper == "FedX"


def test_rows_are_every_measure_of_every_section():
    one = Comparison(
        method="A",
        against="B",
        measures=("last", "best"),
        sections=("global", "generalisation"),
        paper={"global": 2.0},
    )
    assert list(one.rows()) == [
        ("last", "global"),
        ("last", "generalisation"),
        ("best", "global"),
        ("best", "generalisation"),
    ]
    assert (one.printed("global"), one.printed("generalisation")) == (2.0, None)
    assert list(Comparison(method="A", against="B", measures=("bytes",), paper=2.4).rows()) == [
        ("bytes", None)
    ]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ('sections = ["global"]\n', "section 'global': expected one of `score.sections` of one"),
        ('sections = ["nowhere"]\n', "nowhere"),
        ("", "`sections`: expected at least one"),
        (_SECTION + 'measures = ["bytes"]\n', "none for bytes"),
        (_SECTION + 'measures = ["rounds_to"]\n', "`target`: expected one for `rounds_to`"),
        (_SECTION + 'measures = ["recovery"]\n', "`recovery`: expected `[dynamic]` in one"),
        (_SECTION + 'measures = ["last", "rounds_to"]\n', "differences or ratios, got both"),
        (_SECTION + "paper = {global = 1.0}\n", "no 'global' in `sections`"),
        ('measures = ["uplink"]\nrelative = true\n', "`relative`: expected differences"),
        ('measures = ["uplink"]\nthreshold = 0.0\n', "a ratio above 0"),
        ('sections = ["loss", "personalisation"]\n', "a comparison of its own for 'loss'"),
        (_SECTION + "papers = 1.0\n", "papers"),
        (
            'sections = ["personalisation", "global"]\nelsewhere = {HHAR = 1.0}\n',
            "`elsewhere`: expected a single section",
        ),
    ],
)
def test_a_wrong_comparison_is_refused_with_the_field(folder, more, told):
    with pytest.raises(InputError, match=r"claims '.*fedx.toml'") as error:
        _load(folder, _HEAD + _CLAIM + _COMPARED + more)
    assert told in str(error.value)


def test_a_label_that_the_experiment_lacks_is_refused(folder):
    text = _HEAD + _CLAIM + _COMPARED.replace('"B"', '"C"') + _SECTION
    with pytest.raises(InputError, match=r"'one': method 'C': expected one of one\.toml: A, B"):
        _load(folder, text)


def test_a_method_against_itself_is_refused(folder):
    text = _HEAD + _CLAIM + _COMPARED.replace('"B"', '"A"') + _SECTION
    with pytest.raises(InputError, match="expected another method than 'A'"):
        _load(folder, text)


def test_a_claim_of_details_alone_is_refused(folder):
    text = _HEAD + _CLAIM + _COMPARED + _SECTION + "detail = true\n"
    with pytest.raises(InputError, match="`comparisons`: expected at least one without `detail"):
        _load(folder, text)


def test_no_two_committed_claims_say_the_same():
    claims = [one.claim.claim for one in load_claims()]
    assert len(set(claims)) == len(claims)


def test_an_id_comes_once(folder):
    text = _HEAD + 2 * (_CLAIM + _COMPARED + _SECTION)
    with pytest.raises(InputError, match="ids that differ, got 'one' twice"):
        _load(folder, text)


def test_a_target_may_be_the_experiments(folder):
    (folder.parent / "one.toml").write_text(
        _EXPERIMENT.replace('"personalisation"]', '"personalisation"], target = 0.9')
    )
    (found,) = _load(folder, _HEAD + _CLAIM + _COMPARED + _SECTION + 'measures = ["rounds_to"]\n')
    assert found.experiment.score.target == 0.9


def test_an_unknown_name_is_refused_with_those_that_are_near():
    claims = load_claims()
    with pytest.raises(InputError, match=r"did you mean .*fedali-alignment"):
        chosen_claims(claims, ["fedali-aligment"])
    assert [one.claim.id for one in chosen_claims(claims, ["fedali-alignment"])] == [
        "fedali-alignment"
    ]
    assert chosen_claims(claims, []) == claims


def test_every_committed_claim_fits_its_experiment_and_every_experiment_has_a_claim():
    """Loading checks labels and sections."""
    claims = load_claims()
    names = {f"claims/{file.stem}" for file in CLAIMS.parent.glob("*.toml")}
    assert experiments_of(claims).keys() >= names
    assert all(any(not one.detail for one in each.claim.comparisons) for each in claims)


@pytest.mark.parametrize("claim", [one.claim for one in load_claims()], ids=lambda one: one.id)
def test_remarks_of_committed_claims_have_no_figures(claim):
    """Those are measured. Digits may stand in a link's target and in a setting such as β = 0."""
    assert figures_in(claim.remarks) == []


@pytest.mark.parametrize(
    ("remark", "has"),
    [
        ("Alone it has 90.6.", True),
        ("It is two points behind.", True),
        ("β = 0 is as far ([there](#one-2)).", False),
    ],
)
def test_what_counts_as_a_figure(remark, has):
    assert bool(figures_in(remark)) == has
