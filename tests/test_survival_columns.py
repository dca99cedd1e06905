"""Columns of several sites: categories, missing values, and what they become in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines.datasets import load_gbsg2
from numpy.typing import NDArray
from pydantic import ValidationError

from fedapp.run_config import ConfigError
from fedapp.simulation import SimulationResult, simulate
from strategies.membership import Refused
from strategies.survival_columns import CommonColumns, common_columns, pooled_standardizer
from tasks.site.faults import SiteFault
from tasks.survival import client
from tasks.survival.categories import category_code, category_names, parse_categories
from tasks.survival.client import SurvivalSite
from tasks.survival.config import SurvivalConfig
from tasks.survival.encoding import ColumnEncoding, FeatureEncoding
from tasks.survival.medians import MEDIAN_BINS, kept_rows, median, slot_counts
from tasks.survival.predictor import SurvivalPredictor
from tasks.survival.risk_sets import RiskSetSums, time_grid
from tasks.survival.set_up_messages import StatisticsReply, StatisticsRequest, SurvivalFacts
from tasks.survival.standardization import FeatureMoments, Standardizer
from tests.patients import patients

GRADES = ["I", "II", "III"]


@dataclass(frozen=True)
class SetUp:
    """What the sites' introductions and statistics come to."""

    sites: list[SurvivalSite]
    facts: dict[str, SurvivalFacts]
    common: CommonColumns
    replies: list[StatisticsReply]
    standardizer: Standardizer

    @property
    def fills(self) -> dict[str, float | None]:
        encoding = self.standardizer.encoding
        return {column.name: column.fill for column in encoding.columns} if encoding else {}


def set_up(frames: Sequence[pd.DataFrame], **config: Any) -> SetUp:
    given = {"missing": "median", "test-fraction": 0.0, **config}
    settings_ = SurvivalConfig.model_validate(given)
    sites = [
        SurvivalSite.prepare(
            frame, name=f"s{i}", data_set="", time="time", event="event", config=settings_, seed=0
        )
        for i, frame in enumerate(frames)
    ]
    facts = {site.name: SurvivalFacts.from_facts(client.introduction(site).facts) for site in sites}
    common = common_columns(
        facts, settings_.declared_categories, allow_missing=settings_.missing == "median"
    )
    horizon = max(fact.horizon_bound for fact in facts.values())
    request = StatisticsRequest(horizon, common.encoding, common.median_ranges).to_record()
    asked = cast(Message, SimpleNamespace(content=request))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "Message", lambda content, reply_to: content)
        replies = [
            StatisticsReply.from_record(cast(Any, client.statistics(asked, site))) for site in sites
        ]
    return SetUp(sites, facts, common, replies, pooled_standardizer(common, facts, replies))


def dealt(frame: pd.DataFrame, sites: int, seed: int) -> list[pd.DataFrame]:
    """Rows dealt at random, at least a tenth of a fair share each."""
    rng = np.random.default_rng(seed)
    owner = np.concatenate(
        [np.arange(len(frame) // 2) % sites, rng.integers(sites, size=len(frame))]
    )
    owner = rng.permutation(owner[: len(frame)])
    return [frame[owner == site].reset_index(drop=True) for site in range(sites)]


def with_text(rows: int, seed: int = 0, *, missing: float = 0.0) -> pd.DataFrame:
    """Patients with a grade, and values missing at random where wanted."""
    rng = np.random.default_rng([7, seed])
    frame = patients(rows, seed=seed)
    frame["grade"] = rng.choice(GRADES, size=rows, p=[0.2, 0.5, 0.3])
    for column in ("x1", "grade"):
        frame[column] = frame[column].mask(rng.random(rows) < missing)
    return frame


# Declared categories -----------------------------------------------------------------------------


def test_declared_categories_are_read() -> None:
    declared = parse_categories(" grade = I< II <III ;hormone=yes, no;")
    assert declared["grade"].names == ("I", "II", "III")
    assert declared["grade"].ordered
    assert declared["hormone"].names == ("yes", "no")
    assert not declared["hormone"].ordered
    assert parse_categories("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grade", "'grade' must be \"column=category,category\""),
        ("=a,b", 'must be "column=category,category"'),
        ("grade=I", "'grade' must have two categories or more"),
        ("grade=I,,II", "none of them empty"),
        ("grade=I<II,III", "'grade' must have either"),
        ("arm=a=b,c", "'arm' must have categories without '='"),
        ("grade=I,II,I", "'grade' must name each category once: I"),
        ("a=1,2;a=3,4", "'a' is declared more than once"),
        (f"a=1,{'x' * 101}", "of 100 characters"),
    ],
)
def test_bad_declarations(text: str, said: str) -> None:
    with pytest.raises(ValidationError, match="categories: ") as caught:
        SurvivalConfig.model_validate({"categories": text})
    assert said in str(caught.value)


def test_all_bad_declarations_at_once_in_a_line_each(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        quick(tmp_path, [patients(30)] * 2, categories="a=1;b=2<3,4")
    first, second = caught.value.faults
    assert first.startswith("survival.categories: 'a' must")
    assert second.startswith("survival.categories: 'b' must")


def test_categories_of_columns_that_are_no_features() -> None:
    with pytest.raises(ValidationError, match="'arm' must be one of features"):
        SurvivalConfig.model_validate({"features": "x0,x1", "categories": "arm=a,b"})
    with pytest.raises(SiteFault, match="'arm' is no feature column"):
        set_up([patients(20)], categories="arm=a,b")


def test_names_and_codes_of_cells() -> None:
    cells = pd.Series(["a ", 1, 1.0, True, None, "", np.nan, 2.5], dtype=object)
    assert category_names(cells) == ["a", "1", "1", "True", None, None, None, "2.5"]
    codes = [category_code(name) for name in (*GRADES, "1", "a", "A")]
    assert len(set(codes)) == 6
    assert all(code == int(code) < 2**52 for code in codes)


@pytest.mark.parametrize("categories", ["grade=I<II", "grade=I,II"])
def test_what_is_outside_a_declared_list_is_refused_without_its_value(categories: str) -> None:
    frame = with_text(40)
    with pytest.raises(SiteFault) as caught:
        set_up([frame], categories=categories)
    n = int((frame["grade"] == "III").sum())
    assert str(caught.value) == (
        f"feature column 'grade': {n} of 40 rows are none of I, II (survival.categories)"
    )


def test_numbers_may_be_declared_as_categories() -> None:
    frame = patients(40)
    frame["inst"] = np.arange(40) % 3 + 1.0
    found = set_up([frame], categories="inst=1,2,3")
    inputs = inputs_of(found, frame)
    assert (inputs["inst=2"] == (frame["inst"] == 2)).all()


# Encoding ----------------------------------------------------------------------------------------


def inputs_of(found: SetUp, frame: pd.DataFrame) -> pd.DataFrame:
    """Encoded rows of all sites, not standardized, in their order."""
    encoding = found.standardizer.encoding
    assert encoding is not None
    rows = np.concatenate([encoding.apply(site.training.features) for site in found.sites])
    assert len(rows) == len(frame)
    return pd.DataFrame(rows, columns=list(encoding.input_names))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), sites=st.integers(1, 4))
def test_the_encoding_is_that_of_the_pooled_rows(seed: int, sites: int) -> None:
    frames = dealt(with_text(60, seed), sites, seed)
    pooled = pd.concat(frames, ignore_index=True)
    found = set_up(frames, **{"privacy-level": 1})
    inputs = inputs_of(found, pooled)
    dummies = pd.get_dummies(pooled[["grade"]], prefix_sep="=", dtype=float)
    pd.testing.assert_frame_equal(inputs[list(dummies)], dummies)
    assert list(inputs) == [*dummies, "x0", "x1", "x2"]
    np.testing.assert_array_equal(inputs["x1"], pooled["x1"])


def test_the_union_has_what_enough_rows_of_some_site_have() -> None:
    common, rare = with_text(60, 1), with_text(60, 2)
    common["grade"], rare["grade"] = ["I", "II"] * 30, ["II"] * 56 + ["III"] * 4
    found = set_up([common, rare])
    (grade,) = (c for c in found.common.encoding.columns if c.name == "grade")
    assert grade.categories == ("I", "II")
    assert not grade.closed
    inputs = inputs_of(found, pd.concat([common, rare]))
    assert (inputs[["grade=I", "grade=II"]].sum(axis=1) == [1] * 116 + [0] * 4).all()


def test_ordered_categories_are_one_input() -> None:
    frame = with_text(60)
    inputs = inputs_of(set_up([frame], categories="grade=I<II<III"), frame)
    assert (inputs["grade"] == frame["grade"].map({"I": 1, "II": 2, "III": 3})).all()


def test_missing_categories_have_an_input_of_their_own() -> None:
    frame = with_text(60, missing=0.2)
    inputs = inputs_of(set_up([frame]), frame)
    assert (inputs["grade is missing"] == frame["grade"].isna()).all()
    assert frame["grade"].isna().any()


def test_categories_are_not_standardized() -> None:
    found = set_up([with_text(60)]).standardizer
    assert found.encoding is not None
    is_category = np.array(["=" in name for name in found.encoding.input_names])
    assert (found.mean[is_category] == 0).all()
    assert (found.scale[is_category] == 1).all()


def test_an_encoding_is_read_as_it_was_written() -> None:
    encoding = set_up([with_text(60, missing=0.2)]).standardizer.encoding
    assert encoding is not None
    assert FeatureEncoding.from_json(encoding.to_json()) == encoding
    for text in ("[{}]", "3", '[{"name": "x"}]'):
        with pytest.raises(ValueError, match="no encoding of features"):
            FeatureEncoding.from_json(text)


# Medians -----------------------------------------------------------------------------------------


def lower_median(values: Any) -> float:
    known = np.asarray(values, dtype=float)
    return float(np.quantile(known[~np.isnan(known)], 0.5, method="inverted_cdf"))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sites=st.integers(1, 4),
    shape=st.sampled_from(["normal", "lognormal", "few values", "constant"]),
)
def test_a_median_is_that_of_the_pooled_rows_up_to_a_cell(
    seed: int, sites: int, shape: str
) -> None:
    rng = np.random.default_rng(seed)
    frame = patients(60, seed=seed)
    frame["x1"] = {
        "normal": rng.normal(size=60),
        "lognormal": rng.lognormal(sigma=3, size=60),
        "few values": rng.integers(4, size=60) * 1.0,
        "constant": np.full(60, 7.0),
    }[shape]
    frame.loc[rng.permutation(60)[:15], "x1"] = np.nan
    found = set_up(dealt(frame, sites, seed), **{"privacy-level": 1})
    low, high = found.common.median_ranges["x1"]
    fill = found.fills["x1"]
    assert fill is not None
    assert abs(fill - lower_median(frame["x1"])) <= (high - low) / MEDIAN_BINS * (1 + 1e-9)
    assert list(found.common.median_ranges) == ["x1"]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), level=st.integers(2, 8))
def test_a_merged_median_is_within_the_groups_of_the_sites(seed: int, level: int) -> None:
    """Of each site, fewer than three groups of rows lie on the wrong side at most."""
    frame = with_text(150, seed, missing=0.2)
    found = set_up(dealt(frame, 3, seed), **{"privacy-level": level})
    fill, known = found.fills["x1"], frame["x1"].dropna()
    assert fill is not None
    below = (known <= fill).mean()
    assert abs(below - 0.5) <= 3 * 3 * level / len(known)


def test_ordered_categories_are_filled_in_with_a_category() -> None:
    frame = with_text(90, missing=0.2)
    found = set_up(dealt(frame, 2, 0), categories="grade=I<II<III", **{"privacy-level": 1})
    assert found.fills["grade"] == lower_median(frame["grade"].map({"I": 1, "II": 2, "III": 3}))


def test_a_site_without_a_column_takes_part() -> None:
    frames = [with_text(60, 1), with_text(60, 2)]
    frames[1]["x1"] = np.nan
    frames[1]["grade"] = None
    found = set_up(frames, **{"privacy-level": 1})
    low, high = found.common.median_ranges["x1"]
    assert found.fills["x1"] == pytest.approx(
        lower_median(frames[0]["x1"]), abs=(high - low) / MEDIAN_BINS
    )
    assert found.replies[1].histograms.sum() == 0


def test_what_nobody_has_is_refused() -> None:
    frames = [patients(30, seed=i).assign(x1=np.nan) for i in range(2)]
    with pytest.raises(Refused, match="feature column 'x1': no site has a value of it"):
        set_up(frames)
    for frame in frames:
        frame.loc[:3, "x1"] = 1.5
    with pytest.raises(Refused, match="feature column 'x1': no site has enough values of it"):
        set_up(frames)


def test_a_histogram_that_is_hand_made() -> None:
    values = np.array([-9.0, 0.5, 0.5, 0.75, 12.0])
    counts = slot_counts(values, low=0.0, high=1.0, privacy_level=1)
    assert counts.sum() == 5
    assert (counts[0], counts[-1], counts[128]) == (1, 1, 2)
    assert median(counts, low=0.0, high=1.0) == pytest.approx(0.5, abs=1 / 256)
    merged = slot_counts(values, low=0.0, high=1.0, privacy_level=5)
    np.testing.assert_allclose(merged, 5 / 258)
    assert median(np.array([3.0, *[0.0] * 256, 1.0]), low=0.0, high=1.0) == 0.0
    assert median(np.array([1.0, *[0.0] * 256, 3.0]), low=0.0, high=1.0) == 1.0


# What the numbers tell ---------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 60),
    missing=st.integers(0, 60),
    level=st.integers(1, 9),
    seed=st.integers(0, 100),
)
def test_a_small_number_of_missing_values_is_not_told(
    rows: int, missing: int, level: int, seed: int
) -> None:
    missing = min(missing, rows)
    values = np.where(np.arange(rows) < missing, np.nan, 1.0)
    kept = kept_rows(values, privacy_level=level, rng=np.random.default_rng(seed))
    assert not np.isnan(values[kept]).any()
    left_out = rows - int(kept.sum())
    if kept.any():
        assert kept.sum() >= level
        assert left_out % level == 0
        assert missing <= left_out < missing + level
    else:
        assert rows - missing < 2 * level - 1 or level == 1


def test_sums_of_a_column_are_over_the_rows_told_of() -> None:
    frames = [with_text(60, seed, missing=0.1) for seed in range(3)]
    found = set_up(frames)
    for site, reply in zip(found.sites, found.replies, strict=True):
        (x1,) = (c.moments for c in found.facts[site.name].columns if c.name == "x1")
        values = site.columns.told_values("x1")
        assert x1 is not None
        assert x1.count == len(values) == pytest.approx(reply.histograms.sum())
        assert (60 - x1.count) % 5 == 0
        assert x1.mean[0] == pytest.approx(values.mean())
        group_rows = np.split(reply.histograms[0], np.flatnonzero(np.diff(reply.histograms[0])) + 1)
        assert min(group.sum() for group in group_rows) > 5 - 1e-9


@pytest.mark.parametrize("kind", ["numeric", "ordinal"])
def test_codes_of_categories_are_not_summed_for_a_server_that_asks(kind: Any) -> None:
    """They would tell, by their mean, which categories there are and how many rows have each."""
    site = set_up([with_text(60)]).sites[0]
    names = site.training.feature_names
    columns = tuple(ColumnEncoding(name, kind if name == "grade" else "numeric") for name in names)
    for encoding in (FeatureEncoding(columns), None, FeatureEncoding(columns[1:])):
        with pytest.raises(SiteFault, match="takes the columns for others"):
            site.columns.refuse_others(encoding)
    right = set_up([with_text(60)]).common.encoding
    site.columns.refuse_others(right)
    for name in ("grade", "gone"):
        request = StatisticsRequest(20.0, right, {name: (0.0, 1.0)}).to_record()
        with pytest.raises(SiteFault, match="asks for a median of what has none"):
            client.statistics(cast(Message, SimpleNamespace(content=request)), site)


# The same however rows are spread ----------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_set_up_does_not_depend_on_how_rows_are_spread(seed: int) -> None:
    frame = with_text(80, seed, missing=0.15)
    one, other = (set_up(dealt(frame, n, seed), **{"privacy-level": 1}) for n in (1, 4))
    assert one.common.encoding == other.common.encoding
    np.testing.assert_allclose(
        one.standardizer.mean, other.standardizer.mean, rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(one.standardizer.scale, other.standardizer.scale, rtol=1e-9)
    assert one.fills["x1"] == pytest.approx(other.fills["x1"], rel=1e-9)
    counts = [sum(reply.counts.at_risk_count for reply in s.replies) for s in (one, other)]
    np.testing.assert_array_equal(counts[0], counts[1])


def test_counts_by_time_are_those_of_the_pooled_rows() -> None:
    frame = patients(80)
    found = set_up(dealt(frame, 4, 1), **{"privacy-level": 1})
    horizon = max(fact.horizon_bound for fact in found.facts.values())
    grid = time_grid(horizon, 128)
    exact = RiskSetSums.of(frame["time"], frame["event"], np.zeros(80), grid=grid)
    events: NDArray[np.float64] = np.sum([reply.counts.events for reply in found.replies], axis=0)
    np.testing.assert_array_equal(events, exact.events)
    at_risk = np.sum([reply.counts.at_risk_count for reply in found.replies], axis=0)
    np.testing.assert_array_equal(at_risk, exact.at_risk_count)


# Whole runs --------------------------------------------------------------------------------------


def quick(tmp_path: Path, frames: list[pd.DataFrame] | None, **settings_: Any) -> SimulationResult:
    config = {
        "report": False,
        "survival.rounds": 2,
        "survival.local-steps": 2,
        "run-dir": str(tmp_path),
        **{f"survival.{key.replace('_', '-')}": value for key, value in settings_.items()},
    }
    return simulate("survival", sites=frames, config=config)


def test_a_model_of_raw_tables_predicts_from_raw_tables(tmp_path: Path) -> None:
    frames = [with_text(60, seed, missing=0.1) for seed in range(3)]
    result = quick(tmp_path, frames, missing="median")
    assert result.summary["status"] == "ok", result.summary.get("reason")
    assert result.exchanges == 2 + 4
    predictor = SurvivalPredictor.load(result.run_folder / "model.npz")
    assert predictor.feature_names == ("grade", "x0", "x1", "x2")
    risk = predictor.risk(frames[0])
    encoding = predictor.standardizer.encoding
    assert encoding is not None
    filled = frames[0].fillna({"x1": encoding.columns[2].fill})
    np.testing.assert_array_equal(predictor.risk(filled), risk)
    other = frames[0].assign(grade="IV")  # no category of the union: all its inputs are 0
    assert len(set(predictor.risk(other) - risk)) > 1
    with pytest.raises(ValueError, match='column "x0": 1 of 60 values are missing'):
        predictor.risk(frames[0].assign(x0=frames[0]["x0"].where(frames[0].index > 0)))


def test_a_declared_list_holds_for_predictions_too(tmp_path: Path) -> None:
    frames = [with_text(60, seed) for seed in range(2)]
    result = quick(tmp_path, frames, categories="grade=I<II<III")
    predictor = SurvivalPredictor.load(result.run_folder / "model.npz")
    assert np.isfinite(predictor.risk(frames[0])).all()
    with pytest.raises(ValueError, match='column "grade": 60 of 60 values are none of I, II, III'):
        predictor.risk(frames[0].assign(grade="secret"))


def test_declared_categories_win_over_those_of_bundled_data(tmp_path: Path) -> None:
    result = quick(tmp_path, None, categories="tgrade=I,II,III")
    predictor = SurvivalPredictor.load(result.run_folder / "model.npz")
    encoding = predictor.standardizer.encoding
    assert encoding is not None
    assert "tgrade=II" in encoding.input_names
    assert "horTh" in encoding.input_names
    raw = load_gbsg2()
    assert np.isfinite(predictor.risk(raw)).all()
    changed = predictor.risk(raw.assign(tgrade="I")) != predictor.risk(raw.assign(tgrade="II"))
    assert changed.all()


def _mixed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(x1=["secret", *frame["x1"].iloc[1:].astype(str)])


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (lambda f: f.assign(x1=f["x1"].mask(f.index == 3)), "1 of 40 rows are missing (NaN)"),
        (lambda f: f.assign(grade=f["grade"].mask(f.index == 3)), "1 of 40 rows are missing"),
        (lambda f: f.assign(x1=np.inf), "40 of 40 rows are infinite"),
        (_mixed, "neither numbers nor categories: 'x1'"),
        (lambda f: f.assign(x1=f["grade"]), "feature column 'x1': numbers at site-0; text at"),
        (lambda f: f.drop(columns="grade"), "missing: grade; further: none"),
        (lambda f: f.assign(grade=[f"secret {i}" for i in range(40)]), None),
        (lambda f: f.assign(x1=f["x1"] * 1e6), None),
        (lambda f: f.assign(event=0), None),
        (lambda f: f.assign(x1=3.5), None),
        (lambda f: f.head(1), "fewer than survival.privacy-level = 5 training rows"),
        (lambda f: f.assign(time=f["time"] * 300), None),
    ],
    ids=[
        *("missing", "missing text", "infinite", "mixed", "other kind", "no column"),
        *("rare categories", "unscaled", "all censored", "constant", "one row", "long follow-up"),
    ],
)
def test_bad_input_is_named_or_works(tmp_path: Path, second: Any, said: str | None) -> None:
    frames = [with_text(40, 1), second(with_text(40, 2))]
    result = quick(tmp_path, frames)
    if said is None:
        assert result.summary["status"] == "ok", result.summary.get("reason")
        return
    assert result.summary["status"] == "refused"
    reason = str(result.summary["reason"])
    assert said in reason
    assert "secret" not in reason
    assert "\n" not in reason


def test_no_event_anywhere_is_told(tmp_path: Path) -> None:
    result = quick(tmp_path, [patients(40, seed=i).assign(event=0) for i in range(2)])
    assert result.summary["status"] == "not-estimable"
    assert "no site has an event" in str(result.summary["detail"])


def test_names_that_nobody_shares_are_refused(tmp_path: Path) -> None:
    frames = [patients(40, seed=i).assign(name=[f"secret {j}" for j in range(40)]) for i in (1, 2)]
    result = quick(tmp_path, frames)
    assert result.summary["status"] == "refused"
    assert str(result.summary["reason"]).startswith("feature column 'name': text of which no value")
    assert "secret" not in str(result.summary["reason"])


def test_moments_of_plain_tables_are_those_of_the_whole_matrix_to_the_last_bit() -> None:
    found = set_up([patients(61, seed=i, features=7) for i in range(3)])
    pooled = FeatureMoments.merge(FeatureMoments.of(site.training.features) for site in found.sites)
    expected = pooled.standardizer()
    assert found.standardizer.encoding is None
    assert (found.standardizer.mean == expected.mean).all()
    assert (found.standardizer.scale == expected.scale).all()
