"""Sites of Fisher scoring: lost, malformed or misnamed ones, and what a site tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedapp.simulation import InProcessGrid
from strategies.exchange import Exchange, TooFewSites
from strategies.fisher_scoring import FisherScoring
from strategies.membership import Refused
from tasks.glm.client import answer
from tasks.glm.messages import FisherRequest
from tests.fakes import Answer, Clock, ScriptedGrid
from tests.glm_sites import (
    NAMES,
    PRECISE,
    assert_equal_fits,
    draw,
    grid_of,
    grid_with,
    pooled,
    thirds,
)

# Sites that are lost ----------------------------------------------------------------------------


def test_a_late_site_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock.installed(monkeypatch)
    x, y = draw("logit", 0)
    sites = thirds(x, y)

    def answering(name: str) -> Answer:
        return Answer(
            lambda message: answer(message, *sites[name], intercept=True, site=name).content,
        )

    grid = ScriptedGrid({1: answering("site-0"), 2: Answer(None), 3: answering("site-2")}, clock)
    exchange = Exchange.around(grid, timeout=20)
    ours = FisherScoring(family="logit", **PRECISE).start(exchange)
    assert ours.sites == ("site-0", "site-2")
    assert ours.lost_sites == ("node-2",)
    assert [fault.code for fault in exchange.faults] == ["late"]
    assert clock.slept < 2 * 20  # waited for once, not in every iteration
    kept = np.arange(len(y)) % 3 != 1
    assert_equal_fits(ours, pooled("logit", x[kept], y[kept]))
    with pytest.raises(TooFewSites, match="2 of 3 sites gave a usable reply"):
        FisherScoring(family="logit", min_sites=3).start(grid, timeout=20)


def test_a_site_that_is_lost_on_the_way_takes_its_rows_along() -> None:
    x, y = draw("probit", 6)
    sites = thirds(x, y)
    asked: list[tuple[str, int]] = []

    def handler(message: Message, site: str) -> Message:
        number = FisherRequest.from_record(message.content).server_round
        asked.append((site, number))
        if site == "site-1" and number == 4:
            raise RuntimeError("patient 0815 is not to be shown")
        return answer(message, *sites[site], intercept=True, site=site)

    exchange = Exchange.around(grid_of(list(sites), handler))
    ours = FisherScoring(family="probit", **PRECISE).start(exchange)
    kept = np.arange(len(y)) % 3 != 1
    assert_equal_fits(ours, pooled("probit", x[kept], y[kept]))
    assert (ours.sites, ours.lost_sites) == (("site-0", "site-2"), ("site-1",))
    assert [len(iteration.sites) for iteration in ours.history[:4]] == [3, 3, 3, 2]
    assert [number for site, number in asked if site == "site-1"] == [1, 2, 3, 4]
    assert ours.fit.rounds == ours.iterations == exchange.count
    assert "0815" not in str(exchange.faults)


def _spoil(what: str) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        sums, fisher = content.array_records["sums"], content.config_records["fisher"]
        score, information = (sums[key].numpy().copy() for key in ("score", "information"))
        if what == "nothing there":
            content.clear()
        elif what == "NaN in the score":
            score[0] = np.nan
            fisher["deviance"] = 10.0
        elif what == "information of two coefficients":
            information = information[:2, :2]
        elif what == "asymmetric information":
            information[0, 1] += 1.0 + abs(information[0, 1])
        elif what == "negative variance":
            information[1, 1] = -1.0
        elif what == "one coefficient more":
            score, information = np.append(score, 1.0), np.eye(4)
            fisher["feature-names"] = []
        elif what == "negative rows":
            fisher["rows"] = -3
        elif what == "text as deviance":
            fisher["deviance"] = "large"
        elif what == "deviance that is no number":
            fisher["deviance"] = float("nan")
        elif what == "too few names":
            fisher["feature-names"] = ["age"]
        else:
            score = score.astype(np.float32)
        if content:
            arrays = {"score": Array(score), "information": Array(information)}
            content["sums"] = ArrayRecord(arrays)

    return spoil


@pytest.mark.parametrize("from_round", [1, 3])
@pytest.mark.parametrize(
    "what",
    [
        *("nothing there", "NaN in the score", "information of two coefficients"),
        *("asymmetric information", "negative variance", "negative rows", "text as deviance"),
        *("deviance that is no number", "too few names", "single precision"),
    ],
)
def test_a_malformed_reply_does_not_enter_the_sums(what: str, from_round: int) -> None:
    x, y = draw("logit", 0)
    sites = thirds(x, y)

    def handler(message: Message, site: str) -> Message:
        reply = answer(message, *sites[site], intercept=True, site=site)
        number = FisherRequest.from_record(message.content).server_round
        if site == "site-2" and number >= from_round:
            _spoil(what)(reply.content)
        return reply

    exchange = Exchange.around(grid_of(list(sites), handler))
    ours = FisherScoring(family="logit", **PRECISE).start(exchange)
    kept = np.arange(len(y)) % 3 != 2
    assert_equal_fits(ours, pooled("logit", x[kept], y[kept]))
    assert [fault.code for fault in exchange.faults] == ["malformed"]
    assert len(ours.lost_sites) == 1


@pytest.mark.parametrize(("number", "error"), [(1, Refused), (3, None)])
def test_sums_of_more_coefficients(number: int, error: type[Exception] | None) -> None:
    x, y = draw("logit", 0)
    sites = thirds(x, y)

    def handler(message: Message, site: str) -> Message:
        reply = answer(message, *sites[site], intercept=True, site=site)
        if site == "site-2" and FisherRequest.from_record(message.content).server_round >= number:
            _spoil("one coefficient more")(reply.content)
        return reply

    grid = grid_of(list(sites), handler)
    if error is not None:
        with pytest.raises(error, match="site-2: 4 coefficients"):
            FisherScoring().start(grid)
    else:
        assert FisherScoring().start(grid).lost_sites == ("site-2",)


def test_names_that_do_not_fit_together_are_refused_all_at_once() -> None:
    x, y = draw("logit", 0)
    sites = thirds(x, y)
    sites["site-1"] = (sites["site-1"][0][["bmi", "age"]], sites["site-1"][1])
    with pytest.raises(Refused) as caught:
        FisherScoring().start(grid_with(sites))
    assert caught.value.faults == [
        "site-1: its columns are (intercept), bmi, age, not (intercept), age, bmi"
    ]
    for twice in ("site-0", "server"):

        def handler(message: Message, site: str, twice: str = twice) -> Message:
            return answer(message, x, y, site=twice if site == "site-1" else site)

        with pytest.raises(Refused, match=f"{twice}: must be the name of one site only"):
            FisherScoring().start(grid_of(["site-0", "site-1"], handler))


def test_without_names_columns_are_numbered_or_named_by_the_server() -> None:
    x, y = draw("gaussian", 0)
    design = np.column_stack([np.ones(len(x)), x])
    grid = grid_of(
        ["a", "b"],
        lambda message, site: answer(message, design[site == "a" :: 2], y[site == "a" :: 2]),
    )
    assert FisherScoring(family="gaussian").start(grid).feature_names == ("x1", "x2", "x3")
    named = FisherScoring(family="gaussian", feature_names=NAMES).start(grid)
    assert tuple(named.table()) == NAMES
    assert_equal_fits(named, pooled("gaussian", x, y))
    with pytest.raises(ValueError, match="2 names of 3 coefficients"):
        FisherScoring(family="gaussian", feature_names=["a", "b"]).start(grid)


# What a site says -------------------------------------------------------------------------------


def faults_of(grid: InProcessGrid, **options: Any) -> str:
    exchange = Exchange.around(grid, disclosures=FisherScoring.disclosures)
    with pytest.raises(TooFewSites):
        FisherScoring(**options).start(exchange)
    return "\n".join(map(str, exchange.faults))


def test_fewer_rows_than_the_privacy_level_stay_at_the_site() -> None:
    x, y = draw("logit", 0, number=60)
    few = np.where(np.cumsum(y) <= 4, y, 0.0)  # 4 ones
    said = faults_of(grid_with({"a": (x, few), "b": (x, few)}))
    assert "node-1: fisher: fewer than privacy-level = 5 responses 1 here" in said
    assert " 4 " not in said
    x, y = draw("gaussian", 0, number=3)
    said = faults_of(grid_with({"a": (x, y), "b": (x, y)}), family="gaussian")
    assert "node-2: fisher: fewer than privacy-level = 5 rows here" in said


def test_a_site_tells_of_bad_rows_without_their_values() -> None:
    x, y = draw("logit", 0)
    text, wild = x.astype(object), x.copy()
    text.iloc[3, 0], wild.iloc[5, 1] = "Mrs Smith", np.inf
    said = faults_of(grid_with({"a": (text, y), "b": (wild, y), "c": (x, y + 7.25)}))
    assert "node-1: fisher: X holds something that is not a number" in said
    assert "node-2: fisher: 1 rows have a NaN or infinite covariate" in said
    assert "node-3: fisher: 300 rows have a response that is not 0 or 1" in said
    assert "Smith" not in said
    assert "7.25" not in said
    grid = grid_of(["a", "b"], lambda message, site: answer(message, x, y[1:], trials=-y[2:]))
    said = faults_of(grid)
    assert "y has 299 entries, X 300 rows" in said
    assert "trials has 298 entries" in said
    assert "rows have trials that are not a finite number from 0" in said
