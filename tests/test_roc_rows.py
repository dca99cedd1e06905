"""Labels and scores of a site: spellings, missing values, messages that hold no value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tasks.roc_glm.rows import LabelCoding, coding_faults, read_rows, spell_labels
from tasks.site.faults import SiteFault

SCORES = np.array([0.9, 0.1, 0.7, 0.3])


@pytest.mark.parametrize(
    ("labels", "positive_label", "negative"),
    [
        (np.array([1, 0, 1, 0]), "1", "0"),
        (np.array([1.0, 0.0, 1.0, 0.0]), "1", "0"),
        (np.array([True, False, True, False]), "1", "0"),
        (np.array([True, False, True, False]), "True", "0"),
        (np.array([2, 1, 2, 1]), "2", "1"),
        (np.array([1, -1, 1, -1]), "1", "-1"),
        (["yes", "no", "yes", "no"], "yes", "no"),
        (["1", "0", "1", "0"], "1", "0"),
        ([" yes", "no ", "yes", "no"], "yes", "no"),
        (pd.Series(["yes", "no", "yes", "no"], dtype="category"), "yes", "no"),
        ([True, 0, 1.0, "false"], "1", "0"),
        (["disease", "none", "disease", "none"], "disease", "none"),
        ([0.5, 1.5, 0.5, 1.5], "0.5", "1.5"),
    ],
)
def test_spellings_of_two_classes(labels: Any, positive_label: str, negative: str) -> None:
    for declared in ("", negative):
        rows, coding = read_rows(
            labels, SCORES, positive_label=positive_label, negative_label=declared
        )
        assert rows.positive.tolist() == [0.7, 0.9]
        assert rows.negative.tolist() == [0.1, 0.3]
        assert coding.negative == negative


def test_a_site_with_only_no() -> None:
    rows, coding = read_rows(["no"] * 4, SCORES, positive_label="yes")
    assert (rows.num_positive, rows.num_negative) == (0, 4)
    assert coding.negative == "no"


def test_a_site_with_only_yes() -> None:
    rows, coding = read_rows(["yes"] * 4, SCORES, positive_label="yes")
    assert (rows.num_positive, rows.num_negative) == (4, 0)
    assert coding.negative is None


def test_sites_that_mean_different_labels_are_named() -> None:
    codings = {
        "b": LabelCoding("yes", "no"),
        "a": LabelCoding("yes", "no"),
        "c": LabelCoding("yes", None),
    }
    assert coding_faults(codings) == []
    (fault,) = coding_faults(codings | {"d": LabelCoding("yes", "healthy")})
    assert "a, b / d" in fault
    assert "healthy" not in fault


def refused(*arguments: Any, **keywords: Any) -> str:
    with pytest.raises(SiteFault) as caught:
        read_rows(*arguments, **keywords)
    assert caught.value.code == "bad-rows"
    return str(caught.value)


def test_undeclared_labels_are_neither_counted_nor_shown() -> None:
    labels = ["yes", "no", "secret", "no"]
    message = refused(labels, SCORES, positive_label="yes", negative_label="no")
    assert message.startswith("rows have a label that is neither positive-label = 'yes'")
    assert "secret" not in message
    message = refused(labels, SCORES, positive_label="yes")
    assert "several different labels beside positive-label = 'yes'; allowed is 1" in message
    assert "secret" not in message


def test_missing_labels_and_scores_are_named_together() -> None:
    labels = ["yes", None, "no", float("nan"), "", "no", pd.NA]
    scores = np.array([0.123456, 0.2, np.nan, 0.4, 0.5, np.inf, 0.7])
    message = refused(labels, scores, positive_label="yes")
    assert "4 rows have no label" in message
    assert "2 rows have a NaN or infinite score" in message
    assert "allowed: 'drop'" in message
    assert "0.123456" not in message
    rows, _ = read_rows(labels, scores, positive_label="yes", missing="drop")
    assert rows.dropped == 6
    assert rows.positive.tolist() == [0.123456]


@pytest.mark.parametrize("labels", [[["yes"], ["no"]], [{"secret": 1}, "no"]])
def test_labels_that_are_no_scalars(labels: list[Any]) -> None:
    message = refused(labels, SCORES[:2], positive_label="yes")
    assert message == "labels are not bool, number or text"


def test_scores_that_are_lists_of_different_lengths() -> None:
    message = refused([1, 0], [[0.123], [0.4, 0.5]], positive_label="1")
    assert message == "scores are not numbers"


def test_scores_that_are_no_numbers() -> None:
    message = refused([1, 0], ["0.3", "patient 77"], positive_label="1")
    assert message == "scores are not numbers"
    assert "2 labels, but 3 scores" in refused([1, 0], [0.1, 0.2, 0.3], positive_label="1")
    assert "2 dimensions" in refused([1, 0], np.zeros((2, 2)), positive_label="1")


def test_labels_of_the_configuration() -> None:
    assert "positive-label = '': is no label" in refused([1], [0.1], positive_label="")
    message = refused([1], [0.1], positive_label="1", negative_label="1.0")
    assert "negative-label = '1.0': is the positive label too" in message


@pytest.mark.parametrize(
    ("scores", "inside"),
    [([0.0, 1.0], True), ([-1e-9, 0.5], False), ([0.5, 1.0000001], False), ([], True)],
)
def test_unit_interval_bit(scores: list[float], inside: bool) -> None:
    labels = [0, 1][: len(scores)]
    rows, _ = read_rows(labels, scores, positive_label="1")
    assert rows.in_unit_interval is inside


def test_logits_are_kept() -> None:
    rows, _ = read_rows([0, 1], [-7.5, 3.25], positive_label="1")
    assert not rows.in_unit_interval
    assert rows.positive.tolist() == [3.25]


def test_spelling_of_numbers_does_not_depend_on_the_type() -> None:
    expected = ["1", "0", "2", "-1"]
    for labels in ([1, 0, 2, -1], [1.0, 0.0, 2.0, -1.0], ["1", "0.0", "2", "-1"]):
        assert spell_labels(labels).tolist() == expected
        assert spell_labels(np.array(labels)).tolist() == expected
