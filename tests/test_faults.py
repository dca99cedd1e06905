"""Every task with one site that answers wrongly, twice, late or for another run, at every step.

Nothing of such an answer is in a result: a run either has none, or the one that it has when the
site answers with an error instead. The site is named, and no run takes longer than its limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedapp import simulation
from fedapp.run_folder import RunFolder
from fedapp.simulation import InProcessGrid, SimulationResult, simulate
from tasks.roc_glm.counts_messages import ROC_GLM_FISHER
from tasks.roc_glm.messages import RELEASE
from tasks.site.messages import HELLO
from tasks.survival.curves_messages import CURVES
from tasks.survival.messages import EVALUATE, TRAIN
from tasks.survival.set_up_messages import STATISTICS
from tasks.vertical_xgboost.aggregate_messages import AGGREGATE
from tasks.vertical_xgboost.decide_messages import DECIDE
from tasks.vertical_xgboost.end_messages import FINISH
from tasks.vertical_xgboost.level_messages import HISTOGRAMS
from tasks.vertical_xgboost.messages import BUCKETS, LABELS
from tests import faulty_sites
from tests.faulty_sites import Case, Disturbance, time_limit
from tests.patients import patients
from tests.test_roc_glm_disclosure import NAMES, cohort
from tests.vertical_attacks import frames_of

TIMEOUT = 0.3
"""Seconds after which a reply is late."""

LIMIT = 60.0
"""Seconds within which a run ends, on a busy machine too: none of them waits for ten replies."""

ROC_GLM = dict(zip(NAMES, cohort(), strict=True))
SURVIVAL = {f"site-{at}": patients(40, seed=at) for at in range(4)}
VERTICAL = {f"site-{at}": frame for at, frame in enumerate(frames_of())}
TREE: dict[str, Any] = {
    "vertical-xgboost.encryption": "none",
    "vertical-xgboost.num-trees": 1,
    "vertical-xgboost.max-depth": 1,
    "vertical-xgboost.max-bin": 4,
}
CASES = {
    "survival": Case(
        "survival",
        SURVIVAL,
        {
            "survival.rounds": 2,
            "survival.local-steps": 2,
            "survival.hidden-layers": "4",
            "survival.dp-mechanism": "none",
        },
        "site-1",
    ),
    "roc-glm masked": Case("roc-glm", ROC_GLM, {}, "north"),
    "roc-glm binned": Case("roc-glm", ROC_GLM, {"roc-glm.release": "binned"}, "north"),
    "roc-glm fisher": Case("roc-glm", ROC_GLM, {"roc-glm.mode": "fisher"}, "north"),
    "vertical": Case("vertical-xgboost", VERTICAL, TREE, "site-1"),
    "vertical source": Case(
        "vertical-xgboost", VERTICAL, {**TREE, "vertical-xgboost.aggregator": "source"}, "site-1"
    ),
}
STEPS = [
    *(("survival", kind) for kind in (HELLO, STATISTICS, TRAIN, EVALUATE, CURVES)),
    *(("roc-glm masked", kind) for kind in (HELLO, RELEASE)),
    ("roc-glm binned", RELEASE),
    ("roc-glm fisher", ROC_GLM_FISHER),
    *(("vertical", kind) for kind in (HELLO, LABELS, BUCKETS, HISTOGRAMS, DECIDE, FINISH)),
    ("vertical source", AGGREGATE),
]
RESULTS = ("c-index", "ibs", "auc", "auc-variance", "gamma-1", "deviance", "brier", "test-loss")
WRONG = {
    "other records": faulty_sites.of_other_records,
    "nothing": faulty_sites.of_nothing,
    "text": faulty_sites.of_text,
    "nan": faulty_sites.of_no_numbers,
    "shapes": faulty_sites.of_wrong_shapes,
}


def failing(content: RecordDict) -> Error:
    return Error(2, "the disk is gone")


@dataclass(frozen=True)
class Ended:
    """How a run ended: its results, its model, and what it says."""

    result: SimulationResult

    @property
    def status(self) -> str:
        return str(self.result.summary["status"])

    @property
    def words(self) -> str:
        """Reason and faults: all in which a site can be named."""
        status = RunFolder.open(self.result.run_folder).read().status
        return str([status.get("reason", ""), self.result.summary["faults"]])

    @property
    def numbers(self) -> dict[str, Any]:
        return {key: self.result.summary[key] for key in RESULTS if key in self.result.summary}

    @property
    def model(self) -> dict[str, bytes]:
        """Model files, without the configuration in them."""
        path = self.result.run_folder / "model.npz"
        if not path.exists():
            return {}
        with np.load(path) as model:
            return {name: model[name].tobytes() for name in model.files if name != "header"}

    @property
    def parts(self) -> list[Path]:
        """Parts of a vertical model, a party each."""
        return sorted(self.result.run_folder.rglob("parties/*.json"))

    def stopped(self) -> set[object]:
        """Who was told that a vertical run has ended without a model."""
        rows = self.result.ledger
        return {row["receiver"] for row in rows if row["step"] == "stop"} - {"server"}


class Runs:
    """Runs of the cases; those that are not disturbed, or only by an error, are made once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._kept: dict[tuple[str, ...], Any] = {}

    def disturbed(self, case: str, kind: str, **how: Any) -> Ended:
        """Run with a disturbance, within the limit."""
        disturbance = Disturbance(CASES[case].bad, kind, **how)
        began = time.monotonic()
        with time_limit(LIMIT):
            timeout = TIMEOUT if how.get("late") else LIMIT
            result = CASES[case].run(self.directory, disturbance, timeout=timeout)
        assert time.monotonic() - began < LIMIT
        assert disturbance.disturbed, "nobody asked the site"
        return Ended(result)

    def plain(self, case: str, *, without: str = "") -> Ended:
        """The run that nobody disturbs, over all sites or all but one."""
        return self._once(
            ("plain", case, without),
            lambda: Ended(CASES[case].run(self.directory, without=without)),
        )

    def failed(self, case: str, kind: str) -> Ended:
        """The run in which the site answers with an error."""
        return self._once(("failed", case, kind), lambda: self.disturbed(case, kind, spoil=failing))

    def elsewhere(self, case: str, kind: str) -> list[RecordDict]:
        """What the site answers in another run."""
        found = self._once(("elsewhere", case), lambda: CASES[case].replies(self.directory))
        return list(found[kind])

    def _once(self, key: tuple[str, ...], make: Any) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    # Which party decrypts whose sums is drawn; here it is the same in every run.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "strategies.vertical_xgboost.draw_split_clients",
            lambda names: dict(zip(names, ("site-1", "site-0", "site-1"), strict=True)),
        )
        yield Runs(tmp_path_factory.mktemp("faults"))


def check_named_and_not_used(runs: Runs, case: str, kind: str, ended: Ended) -> None:
    bad = CASES[case].bad
    # Before its introduction was read a node has no name but its number.
    assert bad in ended.words or (kind == HELLO and "node-2" in ended.words)
    if ended.status == "ok":
        without = runs.plain(case, without=bad) if kind == HELLO else runs.failed(case, kind)
        assert without.status == "ok"
        assert ended.numbers == without.numbers != {}
        assert ended.model == without.model
        return
    assert ended.status in ("failed", "refused")
    assert ended.numbers == {}
    assert ended.model == {}
    # Who has heard `finish` keeps its part, which is whole; the run has no model all the same.
    assert kind == FINISH or ended.parts == []
    if case.startswith("vertical") and kind != HELLO:
        assert ended.stopped() == set(VERTICAL)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("case", "kind"), STEPS)
def test_a_wrong_answer_is_not_used(runs: Runs, case: str, kind: str, wrong: str) -> None:
    runs.plain(case)  # imports are made here, outside of the limit
    ended = runs.disturbed(case, kind, spoil=WRONG[wrong])
    check_named_and_not_used(runs, case, kind, ended)


@pytest.mark.parametrize(("case", "kind"), STEPS)
def test_a_message_of_another_run_is_not_used(runs: Runs, case: str, kind: str) -> None:
    other = faulty_sites.of_another(runs.elsewhere(case, kind))
    ended = runs.disturbed(case, kind, spoil=other, run_id=12345)
    check_named_and_not_used(runs, case, kind, ended)
    assert "the reply is of another run" in ended.words


@pytest.mark.parametrize(("case", "kind"), STEPS)
def test_a_second_copy_of_an_answer_changes_nothing(runs: Runs, case: str, kind: str) -> None:
    ended, plain = runs.disturbed(case, kind, copies=3), runs.plain(case)
    assert ended.status == "ok"
    assert ended.result.summary["faults"] == []
    assert ended.numbers == plain.numbers != {}
    assert ended.model == plain.model
    assert [row["step"] for row in ended.result.ledger] == [
        row["step"] for row in plain.result.ledger
    ]


@pytest.mark.parametrize(("case", "kind"), STEPS)
def test_an_answer_after_the_time_limit_is_not_used(runs: Runs, case: str, kind: str) -> None:
    """It arrives while the next exchange waits for its own replies."""
    runs.plain(case)
    ended = runs.disturbed(case, kind, late=True)
    assert f"no reply within {TIMEOUT:g} s" in ended.words
    if case == "survival" and kind == TRAIN:  # late twice in a row: not asked again, see below
        assert "left out after 2 late replies" in ended.words
        network = {key for key in ended.model if key.startswith("net")}
        assert network
        without = runs.failed(case, kind).model
        assert {key: ended.model[key] for key in network} == {key: without[key] for key in network}
        return
    check_named_and_not_used(runs, case, kind, ended)


@pytest.mark.parametrize(("case", "kind"), STEPS)
def test_a_site_that_was_started_again_goes_on_or_ends_the_run(
    runs: Runs, case: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = runs.plain(case)
    ended = runs.disturbed(case, kind, forgetting=True)
    assert "Traceback" not in caplog.text
    if ended.status == "ok" and not ended.result.summary["faults"]:  # it needs nothing of before
        assert ended.numbers == plain.numbers != {}
        assert ended.model == plain.model
        return
    assert not case.startswith("survival")
    check_named_and_not_used(runs, case, kind, ended)
    assert "has lost its state of this run" in ended.words


def test_a_site_whose_node_comes_back_takes_part_again(runs: Runs) -> None:
    """Killed in round 2, unknown to the runtime in round 3, there again in round 4."""
    asked = {"site-0": 0, "site-1": 0}

    class LeavingGrid(InProcessGrid):
        def get_node_ids(self) -> list[int]:
            away = asked["site-1"] == 2 and asked["site-0"] < 3
            return [node for node in self.contexts if not (away and node == 2)]

        def _handle(self, message: Message) -> Message:
            site = f"site-{message.metadata.dst_node_id - 1}"
            if message.metadata.message_type == TRAIN and site in asked:
                asked[site] += 1
                if site == "site-1" and asked[site] == 2:
                    gone = Error(ErrorCode.NODE_UNAVAILABLE, "Error: Node Unavailable")
                    return Message(gone, reply_to=message)
            return super()._handle(message)

    with pytest.MonkeyPatch.context() as patch, time_limit(LIMIT):
        patch.setattr(simulation, "InProcessGrid", LeavingGrid)
        case = CASES["survival"]
        result = simulate(
            case.task,
            sites=list(case.frames.values()),
            config={**case.settings, "run-dir": str(runs.directory), "survival.rounds": 4},
        )
    assert result.summary["status"] == "ok"
    assert result.summary["faults"] == ["site-1: train: Node Unavailable"]
    told = [row for row in result.ledger if row["sender"] == "server" and row["step"] == "train"]
    rounds = sorted({row["exchange"] for row in told})
    assert [
        any(row["receiver"] == "site-1" for row in told if row["exchange"] == number)
        for number in rounds
    ] == [True, True, False, True]
    answered = {row["sender"] for row in result.ledger if row["step"] == "evaluate"}
    assert "site-1" in answered
