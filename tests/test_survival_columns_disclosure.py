"""A recorded run on text and missing values: no rare category, no small count leaves a site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message

from tasks.site.messages import HELLO, HelloReply
from tasks.survival import client as site_half
from tasks.survival import site_columns
from tasks.survival.set_up_messages import STATISTICS, StatisticsReply, SurvivalFacts
from tests.test_what_leaves_a_site import (
    LEVEL,
    Recorded,
    check_ledger,
    cohort,
    numbers,
    raw_bytes,
    record,
    texts,
)

RARE = ("rare-a", "rare-b", "rare-c")
CONFIG = {"survival.missing": "median"}


def tables() -> list[pd.DataFrame]:
    """Sites with a common category each, rare ones, and 3, 13 or no missing values in x1."""
    frames = cohort()
    for number, frame in enumerate(frames):
        rng = np.random.default_rng(number)
        words = np.array(["common-a", "common-b"])[np.arange(len(frame)) % 2].astype(object)
        words[rng.permutation(len(frame))[: LEVEL - 1]] = RARE[number]
        frame["kind"] = words
        frame.loc[rng.permutation(len(frame))[: (3, 13, 0)[number]], "x1"] = np.nan
        frame.loc[rng.permutation(len(frame))[:number], "kind"] = None
    return frames


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    run = record(tables(), CONFIG, run_dir=tmp_path_factory.mktemp("columns"))
    assert run.result.summary["status"] == "ok"
    return run


def facts_of(reply: Message) -> SurvivalFacts:
    return SurvivalFacts.from_facts(HelloReply.from_record(reply.content).task.facts)


def check_no_rare_category(run: Recorded) -> None:
    """No category leaves a site, in any message, that fewer than privacy-level of its rows have."""
    common = 0
    for request, reply in run.messages:
        frame = run.frames[request.metadata.dst_node_id - 1]
        rows = frame["kind"].value_counts()
        said, data = "\n".join(texts(reply)), raw_bytes(reply)
        for category in (*RARE, "common-a", "common-b"):
            told = category in said or category.encode() in data
            common += told
            assert not told or rows.get(category, 0) >= LEVEL, "a rare category leaves"
    assert common  # else nothing was looked at


def check_no_small_count(run: Recorded) -> None:
    """Missing values are told of as present or not, and counted in multiples of the level."""
    told = 0
    for number, _, reply in run.replies(HELLO):
        rows = len(run.site(number).training)
        for column in facts_of(reply).columns:
            if column.moments is not None:
                told += column.moments.count != rows
                assert (rows - column.moments.count) % LEVEL == 0, "a small count leaves"
    assert told
    for number, _, reply in run.replies(STATISTICS):
        rows = len(run.site(number).training)
        (counts,) = StatisticsReply.from_record(reply.content).histograms
        assert round((rows - counts.sum()) % LEVEL, 6) in (0, LEVEL), "a small count leaves"
        groups = np.split(counts, np.flatnonzero(np.abs(np.diff(counts)) > 1e-9) + 1)
        assert min(group.sum() for group in groups) > LEVEL - 1e-6, "a small count leaves"


def check_no_value(run: Recorded) -> None:
    for request, reply in run.messages:
        frame = run.frames[request.metadata.dst_node_id - 1]
        cells = frame[["time", "x0", "x1", "x2"]].to_numpy(dtype=float).ravel()
        cells = cells[~np.isnan(cells)]
        sent = numbers(reply.content)
        assert not np.isin(sent, cells).any(), "a value of a row leaves"
        data = raw_bytes(reply)
        assert not any(cell.tobytes() in data for cell in cells), "a value of a row leaves"


def test_neither_values_nor_rare_categories_nor_small_counts_leave(recorded: Recorded) -> None:
    check_no_value(recorded)
    check_no_rare_category(recorded)
    check_no_small_count(recorded)
    check_ledger(recorded)


def test_the_union_reaches_every_site(recorded: Recorded) -> None:
    for request, _ in recorded.messages:
        if request.metadata.message_type == STATISTICS:
            said = "\n".join(texts(request))
            assert "common-a" in said
            assert not any(category in said for category in RARE)


def test_a_category_of_few_rows_could_be_any_other(recorded: Recorded, tmp_path: Path) -> None:
    frames = tables()
    frames[0]["kind"] = frames[0]["kind"].replace(RARE[0], "another")
    other = record(frames, CONFIG, run_dir=tmp_path)
    sent, before = ([raw_bytes(reply) for _, reply in r.messages] for r in (other, recorded))
    assert sent == before


def all_categories(self: Any, column: str, codes: Any) -> tuple[str, ...]:
    return tuple(sorted(self.training.texts[column].values()))


def all_observed(values: Any, **_: Any) -> Any:
    return ~np.isnan(values)


def as_they_are(values: Any, *, low: float, high: float, privacy_level: int) -> Any:
    return REAL_COUNTS(values, low=low, high=high, privacy_level=1)


REAL_COUNTS = site_half.slot_counts


@pytest.mark.parametrize(
    ("owner", "name", "leak", "check"),
    [
        (site_columns.SiteColumns, "_told_categories", all_categories, check_no_rare_category),
        (site_columns, "kept_rows", all_observed, check_no_small_count),
        (site_half, "slot_counts", as_they_are, check_no_small_count),
    ],
    ids=["rare categories", "exact numbers", "fine histograms"],
)
def test_a_leak_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    owner: Any,
    name: str,
    leak: Any,
    check: Callable[[Recorded], None],
) -> None:
    monkeypatch.setattr(owner, name, leak)
    run = record(tables(), CONFIG, run_dir=tmp_path)
    assert run.result.summary["status"] == "ok"
    with pytest.raises(AssertionError, match="leaves"):
        check(run)
