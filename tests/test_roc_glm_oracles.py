"""A server that asks a site more than the run needs learns nothing from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from tasks.roc_glm.counts import equal_cuts
from tasks.roc_glm.counts_messages import (
    COUNTS,
    ROC_GLM_FISHER,
    CountsReply,
    CountsRequest,
    RocGlmFisherRequest,
)
from tasks.roc_glm.messages import RELEASE, MaskedReply, ReleaseReply, ReleaseRequest, SiteFacts
from tasks.roc_glm.survivor import CellSurvivor, LinearSurvivor, ScoreSurvivor
from tasks.secure.keys import SiteKeys
from tasks.secure.roster import Roster
from tasks.site.foreign_text import printable
from tasks.site.messages import HELLO, HelloReply, HelloRequest
from tests import test_roc_glm_disclosure as recorded
from tests.test_roc_glm_disclosure import Recorded, ask, begin_anew, record, request_of


def why(reply: Message) -> str:
    assert reply.has_error()
    return str(reply.error.reason)


def content_of(run: Recorded, message_type: str) -> RecordDict:
    return request_of(run, message_type).content


def with_features() -> list[pd.DataFrame]:
    generator = np.random.default_rng(1)
    return [
        part.assign(age=generator.integers(20, 90, len(part)), size=generator.random(len(part)))
        for part in ORIGINAL()
    ]


ORIGINAL = recorded.cohort


# The noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["noisy-scores", "noisy-counts"])
def test_no_server_can_make_the_noise_smaller_than_a_site_estimates(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "cohort", with_features)
    config: dict[str, bool | int | float | str] = {
        "roc-glm.release": release,
        "roc-glm.estimate-sensitivity": True,
    }
    run = record(tmp_path, config)
    estimates = []
    for _, reply in run.replies(HELLO):
        facts = SiteFacts.from_facts(HelloReply.from_record(reply.content).task.facts)
        assert facts.sensitivity is not None
        estimates.append(facts.sensitivity.sensitivity)
    assert run.result.summary["sensitivity-used"] == max(estimates)
    asked = ReleaseRequest.from_record(content_of(run, RELEASE))
    own = estimates[0]
    for lie in (1e-300, 0.0, -1.0, float("nan"), float("inf"), np.nextafter(own, 0.0)):
        begin_anew(run, 1)
        content = replace(asked, sensitivity=float(lie)).to_record()
        assert "the noise would be too small" in why(ask(run, 1, content, RELEASE))
    begin_anew(run, 1)
    assert not ask(run, 1, replace(asked, sensitivity=own).to_record(), RELEASE).has_error()


@pytest.mark.parametrize("release", ["noisy-scores", "noisy-counts", "noisy-histogram"])
def test_a_node_that_lost_its_state_draws_no_noise_anew(release: str, tmp_path: Path) -> None:
    run = record(tmp_path, {"roc-glm.release": release})
    context = run.grid.contexts[1]
    context.state = RecordDict()
    content = content_of(run, RELEASE)
    assert why(ask(run, 1, content, RELEASE)).startswith("lost-state")
    # Introduced anew, only a note on its disk can tell the node that it has released before.
    context.node_config["state-dir"] = str(tmp_path / "state")
    begin_anew(run, 1)
    first = ask(run, 1, content, RELEASE)
    again = ask(run, 1, content, RELEASE)
    values = [ReleaseReply.from_record(m.content).negative.tolist() for m in (first, again)]
    assert values[0] == values[1]
    begin_anew(run, 1)
    assert why(ask(run, 1, content, RELEASE)).startswith("lost-state")


@pytest.mark.parametrize("bad", ["a-file", "a-file/below", "nul\0", "~no-such-user/state"])
def test_a_state_dir_that_cannot_be_written_is_said_at_the_introduction(
    bad: str, tmp_path: Path
) -> None:
    (tmp_path / "a-file").touch()
    directory = bad if bad.startswith(("nul", "~")) else str(tmp_path / bad)
    run = record(tmp_path / "noisy", {"roc-glm.release": "noisy-counts"})
    run.grid.contexts[1].node_config["state-dir"] = directory
    run.grid.contexts[1].state = RecordDict()
    reply = HelloReply.from_record(ask(run, 1, content_of(run, HELLO), HELLO).content)
    assert reply.fault_code == "bad-configuration"
    (reason,) = reply.fault_reasons
    name = printable(directory)
    assert reason.startswith(f'node config "state-dir" = "{name}": no file can be written there (')
    run.grid.contexts[1].node_config["state-dir"] = str(tmp_path / "made")
    begin_anew(run, 1)
    assert not list((tmp_path / "made" / "roc-glm").iterdir())  # nothing is noted yet


def test_without_noise_no_state_dir_is_looked_at(tmp_path: Path) -> None:
    run = record(tmp_path, {"roc-glm.release": "binned"})
    (tmp_path / "a-file").touch()
    run.grid.contexts[1].node_config["state-dir"] = str(tmp_path / "a-file")
    reply = HelloReply.from_record(ask(run, 1, content_of(run, HELLO), HELLO).content)
    assert (reply.fault_code, reply.fault_reasons) == ("", [])


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (RELEASE, {"roc-glm.release": "secure-counts"}),
        (RELEASE, {"roc-glm.release": "binned"}),
        (COUNTS, {"roc-glm.release": "noisy-scores"}),
        (ROC_GLM_FISHER, {"roc-glm.release": "binned", "roc-glm.mode": "fisher"}),
    ],
)
def test_no_step_is_answered_before_the_introduction(
    kind: str, config: dict[str, Any], tmp_path: Path
) -> None:
    run = record(tmp_path, config)
    run.grid.contexts[1].state = RecordDict()
    assert why(ask(run, 1, content_of(run, kind), kind)).startswith("lost-state")


# Oracles -----------------------------------------------------------------------------------------


def test_sums_of_positives_are_given_under_one_request(tmp_path: Path) -> None:
    run = record(tmp_path, {"roc-glm.release": "noisy-scores"})
    said = next(reply for _, reply in run.replies(COUNTS))
    again = ask(run, 1, content_of(run, COUNTS), COUNTS)
    first, second = (CountsReply.from_record(reply.content) for reply in (said, again))
    assert first.moments == second.moments
    asked = CountsRequest.from_record(content_of(run, COUNTS))
    other = replace(asked, is_probability=False)
    assert why(ask(run, 1, other.to_record(), COUNTS)).startswith("second-request")


def after_the_release(run: Recorded) -> tuple[CountsRequest, ScoreSurvivor, LinearSurvivor]:
    """The request of a run, whose first site has not answered it yet."""
    begin_anew(run, 1)
    assert not ask(run, 1, content_of(run, RELEASE), RELEASE).has_error()
    asked = CountsRequest.from_record(content_of(run, COUNTS))
    pool, deconvolved = asked.survivors
    assert isinstance(pool, ScoreSurvivor)
    assert isinstance(deconvolved, LinearSurvivor)
    return asked, pool, deconvolved


def test_no_survivor_function_of_a_servers_making_is_answered(tmp_path: Path) -> None:
    """All mass in the cell of the lowest positive would give that patient's exact score."""
    seeded: dict[str, bool | int | float | str] = {"seeded-noise": True}
    run = record(tmp_path, {"roc-glm.release": "noisy-scores", **seeded})
    asked, pool, deconvolved = after_the_release(run)
    single = np.zeros(1000)
    single[int(1000 * run.rows["east"].positive[0])] = 1.0
    shifted = deconvolved.probabilities + 1e-4 * (np.arange(50) == 7)
    without = np.isin(pool.levels, noisy_negatives(run), invert=True)
    step = ScoreSurvivor.of(np.array([0.5]))
    lone = LinearSurvivor(single)
    for survivors in (
        (lone,),
        (pool, lone),
        (step,),
        (step, deconvolved),
        (pool,),
        (deconvolved, pool),
        (pool, LinearSurvivor(shifted)),
        (pool, LinearSurvivor(np.array([1.0]))),
        (ScoreSurvivor(pool.levels[without], pool.counts[without]), deconvolved),
        (ScoreSurvivor(pool.levels[::-1], pool.counts), deconvolved),
        (ScoreSurvivor(pool.levels, pool.counts[:-1]), deconvolved),
        (ScoreSurvivor(pool.levels, np.where(without, pool.counts, 0)), deconvolved),
        (pool, deconvolved, deconvolved),
        (),
    ):
        request = replace(asked, survivors=survivors).to_record()
        said = why(ask(run, 1, request, COUNTS))
        assert said.startswith("bad-request")
        assert "survivor function" in said
    assert not ask(run, 1, asked.to_record(), COUNTS).has_error()


def noisy_negatives(run: Recorded) -> np.ndarray[Any, Any]:
    return ReleaseReply.from_record(dict(run.replies(RELEASE))["east"].content).negative


def test_what_a_server_can_still_do_with_invented_scores_is_said(tmp_path: Path) -> None:
    """The site cannot know other sites' noisy scores; statement and ledger say who is trusted."""
    seeded: dict[str, bool | int | float | str] = {"seeded-noise": True, "roc-glm.debias": False}
    run = record(tmp_path, {"roc-glm.release": "noisy-scores", **seeded})
    begin_anew(run, 1)
    assert not ask(run, 1, content_of(run, RELEASE), RELEASE).has_error()
    own = noisy_negatives(run)
    invented = np.concatenate([own, np.full(10**6, 0.5)])
    request = CountsRequest((ScoreSurvivor.of(invented),), True)
    assert not ask(run, 1, request.to_record(), COUNTS).has_error()
    assert "that the others' are real, the server is trusted" in run.result.summary["privacy"]
    assert any("invents other sites' noisy scores" in row["reveals"] for row in run.result.ledger)


@pytest.mark.parametrize("release", ["binned", "secure-counts", "noisy-scores", "exact"])
def test_rounds_come_after_what_they_are_about(release: str, tmp_path: Path) -> None:
    run = record(tmp_path, {"roc-glm.release": release, "roc-glm.mode": "fisher"})
    begin_anew(run, 1)
    assert "after roc-glm" in why(ask(run, 1, content_of(run, ROC_GLM_FISHER), ROC_GLM_FISHER))
    assert not ask(run, 1, content_of(run, RELEASE), RELEASE).has_error() or (
        release == "secure-counts"  # whose keys are new
    )
    if release == "noisy-scores":
        said = why(ask(run, 1, content_of(run, ROC_GLM_FISHER), ROC_GLM_FISHER))
        assert "after roc-glm-counts only" in said


def test_sums_of_positives_come_after_the_release(tmp_path: Path) -> None:
    run = record(tmp_path, {"roc-glm.release": "noisy-scores"})
    begin_anew(run, 1)
    assert "after the release" in why(ask(run, 1, content_of(run, COUNTS), COUNTS))


@pytest.mark.parametrize("release", ["binned", "secure-counts", "noisy-scores", "exact"])
def test_a_round_is_answered_once_and_under_one_survivor_function(
    release: str, tmp_path: Path
) -> None:
    run = record(tmp_path, {"roc-glm.release": release, "roc-glm.mode": "fisher"})
    requests = [
        RocGlmFisherRequest.from_record(request.content)
        for request, _ in run.messages
        if request.metadata.message_type == ROC_GLM_FISHER and request.metadata.dst_node_id == 1
    ]
    last = requests[-1]
    assert len(requests) > 2

    def fisher(request: RocGlmFisherRequest) -> Message:
        return ask(run, 1, request.to_record(), ROC_GLM_FISHER)

    assert not fisher(last).has_error()  # the same message, sent twice
    theta = np.array([0.3, 0.7])
    assert why(fisher(replace(last, coefficients=theta))).startswith("second-request")
    assert why(fisher(requests[0])).startswith("second-request")
    later = replace(last, server_round=last.server_round + 1)
    if isinstance(last.survivor, CellSurvivor):
        other: Any = CellSurvivor(last.survivor.cuts, last.survivor.counts + 1)
        finer = CellSurvivor(np.array([0.123]), np.array([1, 1]))
        assert "cut points" in why(fisher(replace(later, survivor=finer)))
        step = ScoreSurvivor.of(np.array([0.4]))
        assert "has not" in why(fisher(replace(later, survivor=step)))
    else:
        other = ScoreSurvivor.of(np.array([0.4]))
    assert "another survivor function" in why(fisher(replace(later, survivor=other)))
    assert not fisher(later).has_error()
    assert "max-rounds" in why(fisher(replace(last, server_round=26)))


def cells_of_many_rows() -> list[pd.DataFrame]:
    return ORIGINAL(rows=1200)


@pytest.mark.parametrize("number", [1.5, 6.5, 2.0, True, "7", [7]])
@pytest.mark.parametrize("release", ["secure-counts", "binned"])
def test_rounds_are_whole_numbers(number: Any, release: str, tmp_path: Path) -> None:
    """Between two whole ones lie as many rounds as a server likes."""
    run = record(tmp_path, {"roc-glm.release": release, "roc-glm.mode": "fisher"})
    begin_anew(run, 1)
    content = content_of(run, ROC_GLM_FISHER)
    content.config_records["request"]["round"] = number
    assert why(ask(run, 1, content, ROC_GLM_FISHER)).startswith("bad-request: a request of another")


@pytest.mark.parametrize(
    ("kind", "record_name", "name", "value"),
    [
        (RELEASE, "release", "is-probability", 1),
        (RELEASE, "release", "sensitivity", "1"),
        (RELEASE, "release", "roster", "text"),
        (ROC_GLM_FISHER, "request", "fits", 1.0),
    ],
)
def test_a_field_of_another_type_is_refused(
    kind: str, record_name: str, name: str, value: Any, tmp_path: Path
) -> None:
    run = record(tmp_path, {"roc-glm.release": "binned", "roc-glm.mode": "fisher"})
    begin_anew(run, 1)
    content = content_of(run, kind)
    content.config_records[record_name][name] = value
    assert why(ask(run, 1, content, kind)).startswith("bad-request: a request of another form")


@pytest.mark.parametrize(
    ("release", "broken"),
    [
        ("binned", lambda s: CellSurvivor(s.cuts, s.counts[:10])),
        ("secure-counts", lambda s: CellSurvivor(s.cuts, s.counts[:-1])),
        ("exact", lambda s: ScoreSurvivor(s.levels, s.counts[:-1])),
        ("exact", lambda s: ScoreSurvivor(s.levels[:3], s.counts)),
        ("noisy-scores", lambda _: LinearSurvivor(np.empty(0))),
        ("noisy-scores", lambda _: LinearSurvivor(np.zeros(50))),
        ("noisy-scores", lambda _: LinearSurvivor(np.array([2.0, -1.0]))),
    ],
)
def test_parts_of_a_survivor_function_belong_together(
    release: str, broken: Any, tmp_path: Path
) -> None:
    run = record(tmp_path, {"roc-glm.release": release, "roc-glm.mode": "fisher"})
    asked = RocGlmFisherRequest.from_record(content_of(run, ROC_GLM_FISHER))
    content = replace(asked, survivor=broken(asked.survivor)).to_record()
    said = why(ask(run, 1, content, ROC_GLM_FISHER))
    assert said == "bad-request: a survivor function whose parts do not belong together"


@pytest.mark.parametrize("content", [RecordDict(), RecordDict({"hello": ConfigRecord()})])
def test_an_introduction_without_its_parts_is_a_bad_request(
    content: RecordDict, tmp_path: Path
) -> None:
    run = record(tmp_path, {"roc-glm.release": "binned"})
    reply = HelloReply.from_record(ask(run, 1, content, HELLO).content)
    assert reply.fault_code == "bad-request"
    assert reply.fault_reasons == ["a request of another form than expected (KeyError)"]


# Under masks -------------------------------------------------------------------------------------


def other_roster(run: Recorded, *, invented: bool) -> bytes:
    """A roster without the last site; or of the first one and two that nobody knows."""
    hello = dict(run.replies(HELLO))
    keys = [hello[name].content.config_records["keys"]["bundle"] for name in recorded.NAMES]
    name = f"run-{run.grid.run.run_id}"
    kept: list[Any] = keys[:3]
    if invented:
        kept = [keys[0], *(SiteKeys.generate(site=s, run=name).public for s in ("x", "y"))]
    return Roster.from_bundles(kept, run=name).to_bytes()


@pytest.mark.parametrize("invented", [True, False])
@pytest.mark.parametrize("drop_outs", ["error", "semi-honest-server"])
def test_a_roster_that_was_refused_is_not_that_of_later_rounds(
    invented: bool, drop_outs: str, tmp_path: Path
) -> None:
    """Two sums that differ by a site give that site's own."""
    settings: dict[str, bool | int | float | str] = {
        "roc-glm.release": "secure-counts",
        "roc-glm.mode": "fisher",
        "roc-glm.drop-outs": drop_outs,
    }
    run = record(tmp_path, settings)
    asked = ReleaseRequest.from_record(content_of(run, RELEASE))
    other = replace(asked, roster=other_roster(run, invented=invented))
    reply = ask(run, 1, other.to_record(), RELEASE)
    assert why(reply).startswith("second-roster")
    rounds = [
        (RocGlmFisherRequest.from_record(request.content), MaskedReply.from_record(reply.content))
        for request, reply in run.messages
        if request.metadata.message_type == ROC_GLM_FISHER
    ]
    next_one = replace(rounds[-1][0], server_round=rounds[-1][0].server_round + 1)
    answer = ask(run, 1, next_one.to_record(), ROC_GLM_FISHER)
    assert MaskedReply.from_record(answer.content).masked.roster_digest == (
        rounds[0][1].masked.roster_digest
    )


@pytest.mark.parametrize("level", ["class", "cell"])
def test_a_release_in_clear_is_given_at_one_set_of_cut_points(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "cohort", cells_of_many_rows)
    config = {"roc-glm.release": "binned", "roc-glm.privacy-level-of": level}
    run = record(tmp_path, config)
    asked = ReleaseRequest.from_record(content_of(run, RELEASE))
    said = next(reply for _, reply in run.replies(RELEASE))
    again = ask(run, 1, asked.to_record(), RELEASE)
    first, second = (ReleaseReply.from_record(reply.content) for reply in (said, again))
    assert first.positive.tolist() == second.positive.tolist()
    for cut in set(equal_cuts(50)) - set(asked.cuts):  # differences of these are counts of cells
        content = replace(asked, cuts=np.array([cut])).to_record()
        assert why(ask(run, 1, content, RELEASE)).startswith("second-request")


def test_cut_points_that_a_site_cannot_keep_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "cohort", cells_of_many_rows)
    config = {"roc-glm.release": "binned", "roc-glm.privacy-level-of": "cell"}
    run = record(tmp_path, config)
    reply = next(reply for _, reply in run.replies(HELLO))
    kept = SiteFacts.from_facts(HelloReply.from_record(reply.content).task.facts).kept_cuts
    cuts = equal_cuts(50)
    assert 0 < sum(kept) < len(cuts)
    asked = ReleaseRequest.from_record(content_of(run, RELEASE))
    for cut, is_kept in zip(cuts, kept, strict=True):
        begin_anew(run, 1)
        reply = ask(run, 1, replace(asked, cuts=np.array([cut])).to_record(), RELEASE)
        assert reply.has_error() is not is_kept


def test_an_answer_is_not_given_again_from_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(tmp_path, {"roc-glm.release": "binned"})
    monkeypatch.setattr(recorded, "cohort", lambda: [part.iloc[1:] for part in ORIGINAL()])
    assert why(ask(run, 1, content_of(run, RELEASE), RELEASE)).startswith("second-answer")


# The introduction --------------------------------------------------------------------------------


def linear(feature: str, intercept: float) -> str:
    return json.dumps(
        {
            "format": "fedapp-score-model",
            "kind": "logistic",
            "features": [feature],
            "coefficients": [1.0],
            "intercept": intercept,
        }
    )


def hello_with(run: Recorded, model: str) -> tuple[str, str]:
    asked = HelloRequest.from_record(content_of(run, HELLO))
    content = replace(asked, task={**asked.task, "model": model}).to_record()
    reply = HelloReply.from_record(ask(run, 1, content, HELLO).content)
    return reply.fault_code, "; ".join(reply.fault_reasons)


def test_no_model_is_taken_that_the_configuration_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "cohort", with_features)
    run = record(tmp_path, {"roc-glm.release": "binned"})
    code, words = hello_with(run, linear("age", -50.0))
    assert code == "bad-request"
    assert "no roc-glm.model" in words
    run.grid.contexts[1].state = RecordDict()
    assert hello_with(run, linear("age", -50.0))[0] == "bad-request"


def test_the_model_of_the_first_introduction_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "cohort", with_features)
    path = tmp_path / "model.json"
    path.write_text(linear("size", -0.5))
    run = record(tmp_path, {"roc-glm.release": "binned", "roc-glm.model": str(path)})
    assert run.result.summary["status"] == "ok"
    said = next(reply for _, reply in run.replies(HELLO))
    assert hello_with(run, linear("age", -50.0))[0] == "second-request"
    assert hello_with(run, path.read_text()) == ("", "")
    again = ask(run, 1, content_of(run, HELLO), HELLO)
    assert again.content.config_records["facts"] == said.content.config_records["facts"]
    assert not ask(run, 1, content_of(run, RELEASE), RELEASE).has_error()
