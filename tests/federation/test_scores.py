"""Scores of a round and of a run, by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from sklearn.metrics import r2_score

from protofleet.federation.outcomes.scores import last_scores, round_scores, run_scores
from protofleet.federation.records import Metrics, Scores, Spread
from protofleet.strategies.scores import error_sums, label_counts
from protofleet.strategies.types import Evaluation


def right_and_wrong(right, wrong):
    return np.array([[right, wrong], [0, 0]], np.int64)


def _spread(mean, std, n=2):
    return Spread(mean=pytest.approx(mean), std=pytest.approx(std), n=n)


def test_spread_is_the_population_s():
    """Accuracies 1 and 1/2: mean 0.75, population deviation 0.25 (the sample's would be 0.354)."""
    evaluations = [
        Evaluation(own=right_and_wrong(4, 0), pooled=right_and_wrong(1, 3)),
        Evaluation(own=right_and_wrong(2, 2)),
        Evaluation(),
        Evaluation(own=right_and_wrong(0, 0)),
    ]
    summary = round_scores(evaluations, None)
    assert summary.personalisation["accuracy"] == _spread(0.75, 0.25)
    assert summary.personalisation["macro_f1"].mean == pytest.approx((1 + 1 / 3) / 2)
    assert summary.generalisation["accuracy"] == _spread(0.25, 0.0, n=1)


def test_over_all_samples_a_test_part_counts_for_ten_times_the_median_at_most():
    """2⁵⁰ wrong ones count as 40 beside two parts of 4; the mean over clients is a third each."""
    evaluations = [Evaluation(own=right_and_wrong(4, 0))] * 2
    summary = round_scores([*evaluations, Evaluation(own=right_and_wrong(0, 2**50))], None)
    assert summary.personalisation["sample_accuracy"].mean == pytest.approx(8 / 48)
    assert summary.personalisation["accuracy"].mean == pytest.approx(2 / 3)
    fair = round_scores([*evaluations, Evaluation(own=right_and_wrong(0, 40))], None)
    assert fair.personalisation["sample_accuracy"].mean == pytest.approx(8 / 48)


def test_losses_are_averaged_over_the_clients_that_have_one():
    summary = round_scores([Evaluation(own_loss=1.0), Evaluation(own_loss=2.0), Evaluation()], None)
    assert summary == Scores(own_loss=Spread(mean=1.5, std=0.5, n=2))


def test_further_scores_are_sections_of_their_own():
    clients = [
        Evaluation(more={"before fit": right_and_wrong(4, 0)}),
        Evaluation(more={"before fit": right_and_wrong(2, 2), "empty": right_and_wrong(0, 0)}),
    ]
    scores = round_scores(clients, None)
    assert scores.sections.keys() == {"before fit"}
    assert scores.more["before fit"]["accuracy"] == _spread(0.75, 0.25)


def test_one_client_cannot_fill_a_summary_with_names_of_its_own():
    honest = [Evaluation(more={"z": right_and_wrong(1, 0)}) for _ in range(2)]
    inventors = [
        Evaluation(more={f"{who}{i}": right_and_wrong(1, 0) for i in range(8)}) for who in "ab"
    ]
    names = round_scores([*inventors, *honest], None).more.keys()
    assert len(names) == 8
    assert "z" in names


def test_a_section_nobody_has_is_absent():
    assert round_scores([Evaluation()], None) == Scores()
    assert round_scores([Evaluation(own=right_and_wrong(1, 0))], None).sections.keys() == {
        "personalisation"
    }


def test_sample_accuracy_counts_every_sample_alike():
    """8 of 10 and 1 of 2: clients' mean 0.65, samples' 9 of 12."""
    clients = [Evaluation(own=right_and_wrong(8, 2)), Evaluation(own=right_and_wrong(1, 1))]
    section = round_scores(clients, None).personalisation
    assert section["accuracy"].mean == pytest.approx(0.65)
    assert section["sample_accuracy"] == _spread(0.75, 0.0, n=1)


def _counts(right, wrong):
    return np.array([[right, wrong], [0, right + wrong]], np.int64)


def test_scores_of_a_round_are_means_and_population_deviations():
    clients = [Evaluation(own=_counts(10, 0)), Evaluation(own=_counts(5, 5))]
    scores = round_scores(clients, _counts(8, 2))
    assert scores.personalisation["accuracy"] == _spread(0.875, 0.125)
    assert scores.global_["accuracy"] == _spread(0.9, 0.0, n=1)
    assert scores.generalisation is None


def _scored(own, pooled, server, **more):
    def section(value):
        return Metrics(
            macro_f1=Spread(mean=value - 0.1, std=0.0), accuracy=Spread(mean=value, std=0.0)
        )

    return Scores(
        personalisation=section(own),
        generalisation=section(pooled),
        global_=None if server is None else section(server),
        **more,
    )


def test_a_run_scores_as_its_best_round_and_the_server_has_its_own():
    """The first of equals counts; generalisation is that of the best personal round."""
    rounds = [_scored(0.7, 0.9, 0.6), _scored(0.8, 0.4, 0.5), _scored(0.8, 0.3, 0.6)]
    better = {**rounds[2].global_, "macro_f1": Spread(mean=0.9, std=0.0)}
    rounds[2] = msgspec.structs.replace(rounds[2], global_=better)
    scores = run_scores(rounds)
    assert scores.personalisation == rounds[1].personalisation
    assert scores.generalisation == rounds[1].generalisation
    assert scores.global_ == rounds[0].global_
    assert run_scores([Scores()]) == Scores()


def test_loss_and_further_scores_come_from_the_same_round():
    first = _scored(0.7, 0.9, 0.6, own_loss=Spread(mean=0.1, std=0.0))
    loss = Spread(mean=0.2, std=0.0)
    second = _scored(0.8, 0.4, 0.5, own_loss=loss, more={"later": first.personalisation})
    scores = run_scores([first, second])
    assert scores.own_loss == loss
    assert scores.more == second.more


def test_after_a_final_fit_the_run_scores_as_that_fit():
    """Although a round before it was better; the server's model has its own best round."""
    rounds, final = [_scored(0.9, 0.9, 0.6)], _scored(0.8, 0.7, None)
    scores = run_scores(rounds, final)
    assert scores.personalisation == final.personalisation
    assert scores.generalisation == final.generalisation
    assert scores.global_ == rounds[0].global_


def _sums(outputs, y):
    """Statistics of a regression with two targets."""
    pairs = (np.array([[float(v), 1.0] for v in values], np.float32) for values in (outputs, y))
    return Evaluation(own=error_sums(*pairs))


def test_a_regressions_r2_over_all_samples_is_that_of_the_devices_together():
    """Each device alone varies little, both together much; what does not vary has no R²."""
    clients = [_sums([1, 2, 3], [1, 2, 4]), _sums([11, 12, 13], [11, 12, 14])]
    scores = round_scores(clients, None, task="regression", targets=("a", "constant"))
    section = scores.personalisation
    assert scores.task == "regression"
    assert list(section) == ["rmse", "mae", "r2", "sample_rmse", "sample_mae", "sample_r2"]
    assert section["r2"].mean == pytest.approx(r2_score([1, 2, 4], [1, 2, 3]))
    y, said = [1, 2, 4, 11, 12, 14], [1, 2, 3, 11, 12, 13]
    assert scores.targets["a"]["r2"] == pytest.approx(r2_score(y, said))
    assert section["sample_r2"].mean == pytest.approx(r2_score(y, said))
    assert scores.targets["constant"] == {"rmse": 0.0, "mae": 0.0}


def test_the_best_round_of_a_regression_has_the_smallest_error():
    def of_round(error):
        return round_scores([_sums([0, error], [0, 0])], None, task="regression", targets="ab")

    rounds = [of_round(error) for error in (4, 1, 2)]
    assert run_scores(rounds) == rounds[1]
    assert run_scores([Scores(task="regression")]).task == "regression"


def test_labels_are_scored_by_name():
    outputs, y = np.array([[1, -1], [1, 1]], "f4"), np.array([[1, 0], [0, 1]], "f4")
    clients = [Evaluation(own=label_counts(outputs, y)), Evaluation()]
    scores = round_scores(clients, None, task="multilabel", targets=("lamp", "door"))
    assert scores.targets["door"] == {"f1": 1.0, "precision": 1.0, "recall": 1.0}
    assert scores.targets["lamp"]["precision"] == 0.5
    assert scores.personalisation["macro_f1"] == _spread((1 + 2 / 3) / 2, 0.0, n=1)
    assert scores.personalisation["sample_micro_f1"] == _spread(4 / 5, 0.0, n=1)


def test_scores_of_targets_survive_json():
    scores = round_scores([_sums([1, 2], [1, 3])], None, task="regression", targets="ab")
    assert msgspec.json.decode(msgspec.json.encode(scores), type=Scores) == scores


def test_the_last_scores_are_each_section_s_last_and_the_final_fit_s_where_there_is_one():
    """The second round was not scored on everybody's test parts; a final fit has no server."""
    rounds = [_scored(0.9, 0.8, 0.7), Scores(personalisation=_scored(0.4, 0, 0).personalisation)]
    last = last_scores(rounds)
    assert last.personalisation == rounds[1].personalisation
    assert (last.generalisation, last.global_) == (rounds[0].generalisation, rounds[0].global_)
    final = Scores(personalisation=_scored(0.6, 0, 0).personalisation)
    fitted = last_scores(rounds, final)
    assert (fitted.personalisation, fitted.global_) == (final.personalisation, last.global_)
    assert last_scores([]) == Scores()
