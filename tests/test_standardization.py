"""Moments of feature columns over sites, against numpy on the pooled rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from tasks.survival.standardization import (
    LARGEST_MAGNITUDE,
    LARGEST_STANDARDIZED,
    FeatureMoments,
    Standardizer,
)

UNIT = np.finfo(float).eps


@st.composite
def split_rows(draw: st.DrawFn) -> tuple[NDArray[np.float64], list[NDArray[np.float64]], float]:
    """Rows of 3 columns at some offset and scale, dealt to sites that may be empty."""
    n_rows = draw(st.integers(2, 60))
    offset = draw(st.sampled_from([0.0, 1.0, -30.0, 1e3, 1e6, -1e6]))
    scale = draw(st.sampled_from([1e-3, 1.0, 1e3]))
    seed = draw(st.integers(0, 2**32 - 1))
    cuts = draw(st.lists(st.integers(0, n_rows), max_size=7))
    rows = offset + scale * np.random.default_rng(seed).normal(size=(n_rows, 3))
    return rows, np.split(rows, sorted(cuts)), offset


@given(split_rows())
@settings(max_examples=200, deadline=None)
def test_merged_moments_are_those_of_the_pooled_rows(
    case: tuple[NDArray[np.float64], list[NDArray[np.float64]], float],
) -> None:
    rows, parts, offset = case
    merged = FeatureMoments.merge([FeatureMoments.of(part) for part in parts])
    deviation = rows.std(axis=0)
    # A site's mean is rounded when it is stored; that error, in deviations, is the floor.
    rounding = 4 * UNIT * np.abs(offset) / deviation.min()
    assert merged.count == len(rows)
    np.testing.assert_allclose(
        merged.mean, rows.mean(axis=0), rtol=1e-10, atol=1e-12 * deviation.max()
    )
    np.testing.assert_allclose(merged.m2, len(rows) * rows.var(axis=0), rtol=1e-10 + rounding)


def test_offset_that_ruins_sums_of_squares() -> None:
    rows = 1e6 + 1e-3 * np.random.default_rng(0).normal(size=(300, 1))
    exact = 300 * (rows - 1e6).var()  # the subtraction is exact in binary floating point
    naive = float((rows**2).sum() - rows.sum() ** 2 / 300)
    merged = FeatureMoments.merge([FeatureMoments.of(part) for part in np.split(rows, 20)])
    assert abs(naive / exact - 1) > 1
    assert merged.m2[0] == pytest.approx(exact, rel=1e-7)
    assert FeatureMoments.of(rows).m2[0] == pytest.approx(exact, rel=1e-10)


def test_standardizer_agrees_with_scikit_learn() -> None:
    rows = np.random.default_rng(1).normal(5, 3, size=(100, 4))
    parts = [FeatureMoments.of(part) for part in np.array_split(rows, 7)]
    standardized = FeatureMoments.merge(parts).standardizer().apply(rows)
    assert standardized.dtype == np.float32
    np.testing.assert_allclose(standardized, StandardScaler().fit_transform(rows), atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e6 / 3, 1e90, 1e-300])
def test_constant_column_has_scale_one(value: float) -> None:
    parts = [FeatureMoments.of(np.full((n, 1), value)) for n in (3, 7, 11, 1)]
    standardizer = FeatureMoments.merge(parts).standardizer()
    assert standardizer.scale.tolist() == [1.0]
    np.testing.assert_allclose(
        standardizer.apply(np.full((2, 1), value)), 0, atol=1e-13 * max(1.0, abs(value))
    )


def test_empty_sites_count_for_nothing() -> None:
    rows = np.random.default_rng(2).normal(size=(9, 2))
    empty = FeatureMoments.of(np.empty((0, 2)))
    merged = FeatureMoments.merge([empty, FeatureMoments.of(rows), empty])
    np.testing.assert_array_equal(merged.mean, FeatureMoments.of(rows).mean)
    with pytest.raises(ValueError, match="no rows"):
        FeatureMoments.merge([empty, empty]).standardizer()


def test_largest_values_do_not_overflow() -> None:
    extremes = np.array([[LARGEST_MAGNITUDE], [-LARGEST_MAGNITUDE]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = [FeatureMoments.of(row[None]) for row in np.repeat(extremes, 50, axis=0)]
        standardized = FeatureMoments.merge(parts).standardizer().apply(extremes)
    np.testing.assert_allclose(standardized, [[1], [-1]], rtol=1e-6)


def test_far_value_of_a_constant_column_stays_finite() -> None:
    standardizer = FeatureMoments.of(np.zeros((5, 2))).standardizer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        standardized = standardizer.apply(np.array([[1e90, -1e308]]))
    assert standardized.tolist() == [[LARGEST_STANDARDIZED, -LARGEST_STANDARDIZED]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e101])
def test_moments_refuse_values_that_are_no_numbers(bad: float) -> None:
    with pytest.raises(ValueError, match="within"):
        FeatureMoments.of(np.array([[1.0], [bad]]))


def test_impossible_moments_are_refused_with_all_faults() -> None:
    with pytest.raises(ValueError, match=r"count is -1.*mean holds.*m2 holds"):
        FeatureMoments(-1, np.array([np.nan]), np.array([-1.0]))
    with pytest.raises(ValueError, match="shapes"):
        FeatureMoments(1, np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match=r"number of columns: \[1, 2\]"):
        FeatureMoments.merge([FeatureMoments.of(np.zeros((2, p))) for p in (1, 2)])
    with pytest.raises(ValueError, match="no moments"):
        FeatureMoments.merge([])


def test_impossible_standardizer_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        Standardizer(np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="finite"):
        Standardizer(np.array([np.nan]), np.ones(1))
    with pytest.raises(ValueError, match="shapes"):
        Standardizer(np.zeros(1), np.ones(2))
    with pytest.raises(ValueError, match=r"allowed: \(n, 1\)"):
        Standardizer(np.zeros(1), np.ones(1)).apply(np.zeros((3, 2)))
