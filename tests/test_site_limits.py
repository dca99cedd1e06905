"""A site's own limits hold whatever the run's configuration says and the server sends."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedapp import client_app, prepared_sites, run_config, server_app
from fedapp.fingerprint import code_fingerprint
from fedapp.node_config import NODE_KEYS
from fedapp.run_folder import RunFolder
from fedapp.simulation import InProcessGrid
from fedapp.site_data import MEMORY_PREFIX, forget_frame, register_frame
from fedapp.site_limits import read_limits
from tasks.privacy.site_budget import read_ledger, spent
from tasks.site.faults import SiteFault
from tasks.site.messages import HELLO, HelloReply, HelloRequest
from tests.fakes import ScriptedGrid

DOCS = Path(__file__).resolve().parent.parent / "docs"
Value = bool | int | float | str
NodeConfig = dict[str, Value]

MESSAGES = {
    "survival": ("query.survival_statistics", "train", "evaluate", "query.survival_curves"),
    "roc-glm": ("query.roc_glm_release", "query.roc_glm_counts", "query.roc_glm_fisher"),
    "vertical-xgboost": ("query.vertical_invite", "query.vertical_labels", "query.vertical_export"),
}

SURVIVAL: dict[str, Value] = {
    "task": "survival",
    "survival.model": "CoxPH",
    "survival.rounds": 2,
    "survival.local-steps": 1,
    "survival.dp-noise-multiplier": 20.0,
}
ROC: dict[str, Value] = {"task": "roc-glm", "roc-glm.release": "noisy-histogram"}


def survival_rows(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {"x1": rng.normal(size=40), "x2": rng.normal(size=40)}
    return pd.DataFrame({**columns, "time": rng.uniform(1, 9, 40), "event": rng.integers(0, 2, 40)})


def roc_rows(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    label = np.arange(60) % 2
    return pd.DataFrame({"label": label, "score": rng.beta(2 + label, 3 - label)})


class Recorded(InProcessGrid):
    """A federation of which every message to the first site is kept, to be sent again."""

    def __init__(self, nodes: list[NodeConfig], values: dict[str, Value]) -> None:
        super().__init__(client_app.app, nodes, values)
        self.sent: list[Message] = []
        self.replies: list[Message] = []

    def _handle(self, message: Message) -> Message:
        kept = copy.deepcopy(message)
        reply = super()._handle(message)
        if message.metadata.dst_node_id == 1:
            self.sent.append(kept)
            self.replies.append(reply)
        return reply

    def again(self, kind: str, at: int = -1) -> tuple[Message, Context]:
        """Return a copy of a message that was sent, and of the first site's context."""
        found = [message for message in self.sent if message.metadata.message_type == kind]
        return copy.deepcopy(found[at]), copy.deepcopy(self.contexts[1])


@dataclass
class Federation:
    """What a run over two sites in this process left."""

    grid: Recorded
    status: dict[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        return str(self.status.get("reason", ""))


@contextmanager
def federation(
    tmp_path: Path, limits: NodeConfig, config: dict[str, Value]
) -> Iterator[Federation]:
    """Run over two sites, of which the first has limits."""
    make = survival_rows if config["task"] == "survival" else roc_rows
    keys = [register_frame(make(seed)) for seed in range(3)]
    nodes: list[NodeConfig] = [
        {"site-name": name, "data-path": MEMORY_PREFIX + key}
        for name, key in zip(("north", "south", "west"), keys, strict=True)
    ]
    nodes[0] |= limits
    values = {**run_config.defaults(), "run-dir": str(tmp_path / "runs"), "report": False, **config}
    grid = Recorded(nodes, values)
    try:
        folder = server_app.run_task(grid, values, started=time.time())
        record = RunFolder.open(folder).read()
        yield Federation(grid, record.status, record.summary)
    finally:
        for key in keys:
            forget_frame(key)
        prepared_sites.forget_sites()


def ask(kind: str, node: NodeConfig, values: dict[str, Value], *, run: int = 7) -> str:
    """Send one message without introduction to a node; return why it was refused."""
    ScriptedGrid({})  # lets messages be built
    content = RecordDict({"config": ConfigRecord({})})
    if kind == HELLO:
        content = HelloRequest(code_fingerprint()).to_record()
    message = Message(content, dst_node_id=1, message_type=kind)
    reply = client_app.app(message, context_of(node, values, run=run))
    if reply.has_error():
        return reply.error.reason or ""
    said = HelloReply.from_record(reply.content)
    return f"{said.fault_code}: {'; '.join(said.fault_reasons)}" if said.fault_code else ""


def context_of(node: NodeConfig, values: dict[str, Value], *, run: int = 7) -> Context:
    full = {**run_config.defaults(), **values}
    return Context(
        run_id=run, node_id=1, node_config=dict(node), state=RecordDict(), run_config=full
    )


def answer(message: Message, context: Context) -> str:
    """Return why a message was refused; empty if it was answered."""
    reply = client_app.app(copy.deepcopy(message), context)
    return (reply.error.reason or "") if reply.has_error() else ""


NORTH: NodeConfig = {"site-name": "north", "data-path": "/data/north.csv"}


# Keys of the node configuration -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("max-epsilom", 3.0, 'node config "max-epsilom": unknown key; did you mean "max-epsilon"?'),
        ("zzz", 1, 'node config "zzz": unknown key; known are site-name, data-path'),
        ("export-consent", "true", "'true': must be true or false, without quotes"),
        ("require-pinned", 1, "must be true or false, without quotes"),
        ("max-epsilon", True, "must be a number, without quotes"),
        ("max-epsilon", "3", "must be a number, without quotes"),
        ("max-epsilon", 0, "= 0: must be a finite number above 0"),
        ("max-epsilon", float("nan"), "must be a finite number above 0"),
        ("max-epsilon", float("inf"), "must be a finite number above 0"),
        ("max-epsilon", 3, 'needs "state-dir"'),
        ("max-delta", 1.0, "must be between 0 and 1, both excluded"),
        ("max-delta", 1e-6, '"max-delta": needs "max-epsilon"; alone it limits nothing'),
        ("epsilon-covers", "all", 'must be "everything" or "noised"'),
        ("min-privacy-level", 10.0, "must be a whole number, without quotes"),
        ("min-privacy-level", -1, "must be at least 0"),
        ("allowed-tasks", "", "names no task; must be some of survival, roc-glm, vertical-xgboost"),
        ("allowed-tasks", "roc-glm,cox", '"cox" is no task'),
        ("columns", "a=", 'node config "columns": part 1 must be'),
        ("state-dir", 3, "must be text in quotes"),
        ("state-dir", "state", "must be an absolute path"),
        ("state-dir", "~nobody-of-this-name/state", "no such user's home is known"),
    ],
)
def test_a_faulty_node_configuration_is_refused_at_every_message(
    key: str, value: Value, words: str
) -> None:
    node = {**NORTH, key: value}
    if key == "state-dir":
        node["max-epsilon"] = 3.0
    for kind in (HELLO, "train", "query.survival_statistics"):
        said = ask(kind, node, {"task": "survival"})
        assert said.startswith("bad-node-config: ")
        assert words in said


@pytest.mark.parametrize(
    ("data", "state", "allowed"),
    [
        ("/data/rows.csv", "/state", True),
        ("/data/rows.csv", "~/state", False),  # another user's home, another ledger
        ("/data/rows.csv", "~root/state", True),
        ("~/rows.csv", "state", False),
        ("~/rows.csv", "~/state", True),
        ("rows.csv", "~/state", False),
        ("rows.csv", "state", True),
        ("rows.csv", "/state", True),
    ],
)
def test_who_finds_the_data_finds_the_ledger(data: str, state: str, allowed: bool) -> None:
    node: NodeConfig = {"site-name": "a", "data-path": data, "state-dir": state, "max-epsilon": 1.0}
    if allowed:
        assert read_limits(node).state_dir == state
    else:
        with pytest.raises(SiteFault, match="another, empty ledger"):
            read_limits(node)


def test_all_faults_of_a_node_configuration_are_told_at_once() -> None:
    node: NodeConfig = {
        "site-name": "north",
        "max-epsilom": 3.0,
        "max-delta": 2,
        "allowed-tasks": "cox",
        "columns": "a=b; a=c; d=b",
        "export-consent": 1,
    }
    with pytest.raises(SiteFault) as caught:
        read_limits(node)
    told = caught.value.reasons
    for words in (
        "max-epsilom",
        '"max-delta" = 2',
        '"cox"',
        '"a" is there 2 times',
        '"a" and "d" are one column of the file',
        'needs "data-path"',
        "export-consent",
    ):
        assert sum(words in line for line in told) == 1, (words, told)
    assert len(told) == 8  # and that max-delta needs max-epsilon


def test_what_flower_and_simulations_give_is_known() -> None:
    assert not read_limits({"partition-id": 0, "num-partitions": 5}).any
    limits = read_limits({**NORTH, "state-dir": "/s", "max-epsilon": 3, "min-privacy-level": 4})
    assert (limits.max_epsilon, limits.max_delta, limits.min_privacy_level) == (3.0, 1e-5, 4)


@pytest.mark.parametrize("key", [key for key in NODE_KEYS if "partition" not in key])
def test_every_key_is_in_the_table_of_the_guide(key: str) -> None:
    assert f"| `{key}` |" in (DOCS / "deployment.md").read_text()


def test_limits_import_nothing_heavy_where_no_key_asks_for_it() -> None:
    """Every message of a deployed run starts a process that imports the ClientApp."""
    code = (
        "import sys, fedapp.client_app\n"
        "from fedapp.site_limits import read_limits\n"
        "read_limits({'site-name': 'a', 'allowed-tasks': 'survival', 'min-privacy-level': 3})\n"
        "names = ('fedapp.site_data', 'tasks.privacy.site_budget', 'torch')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=DOCS.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# Tasks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", MESSAGES)
def test_a_task_that_is_not_allowed_is_refused_by_every_handler(task: str) -> None:
    others = ",".join(other for other in MESSAGES if other != task)
    for kind in (HELLO, *MESSAGES[task]):
        said = ask(kind, {**NORTH, "allowed-tasks": others}, {"task": task})
        assert said.startswith("site-limit: ")
        assert (
            f'task = "{task}": node config "allowed-tasks" = "{others.replace(",", ", ")}"' in said
        )


@pytest.mark.parametrize("task", MESSAGES)
def test_a_run_of_an_allowed_task_gets_no_message_of_another_one_answered(task: str) -> None:
    for other in MESSAGES:
        for kind in MESSAGES[other] if other != task else ():
            for limits in ({}, {"allowed-tasks": task}):
                said = ask(kind, {**NORTH, **limits}, {"task": task})
                assert said == f'other-task: {kind}: no message of a run of task = "{task}"'


def test_every_handler_belongs_to_a_task() -> None:
    """One that is added must be known to the mod, or it would pass the limits."""
    source = (Path(client_app.__file__)).read_text()
    names = [line.split('"')[1] for line in source.splitlines() if line.startswith("@app.query(")]
    assert set(names) > {"hello"}
    for name in set(names) - {"hello"}:
        assert name.startswith(("survival_", "roc_glm_", "vertical_")), name


def test_a_deployed_node_is_one_site_whatever_a_server_asks() -> None:
    """Each hosted site has its own memory: a node asked as many would answer a step as often."""
    ScriptedGrid({})
    content = RecordDict({"hosted-sites": ConfigRecord({"sites": [0, 1], "num-sites": 2})})
    message = Message(content, dst_node_id=1, message_type=HELLO)
    for node in ({"site-name": "north"}, {"data-path": "/data/north.csv"}):
        assert "is one site" in answer(message, context_of(node, {"task": "survival"}))


def test_a_node_without_a_configuration_opens_no_file_that_a_server_names(tmp_path: Path) -> None:
    """As a hosted site it would have a partition-id, and simulated sites open what a run names."""
    ScriptedGrid({})
    survival_rows(0).to_csv(tmp_path / "rows.csv", index=False)
    values: dict[str, Value] = {**SURVIVAL, "survival.data": str(tmp_path / "rows.csv")}
    assert ask(HELLO, {}, values)
    content = RecordDict({"hosted-sites": ConfigRecord({"sites": [0], "num-sites": 1})})
    for key, record in HelloRequest(code_fingerprint()).to_record().items():
        content[f"0/{key}"] = record
    message = Message(content, dst_node_id=1, message_type=HELLO)
    node: NodeConfig = {"allowed-tasks": "survival"}
    assert "only a simulated node" in answer(message, context_of(node, values))
    simulated: NodeConfig = {"partition-id": 0, "num-partitions": 1}
    assert not answer(message, context_of(simulated, values))


# Privacy level -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ("survival", "survival.privacy-level"),
        ("roc-glm", "roc-glm.privacy-level"),
        ("vertical-xgboost", "vertical-xgboost.min-instances"),
    ],
)
def test_a_lower_privacy_level_is_refused_with_both_keys(task: str, key: str) -> None:
    node: NodeConfig = {**NORTH, "min-privacy-level": 10}
    for kind in (HELLO, *MESSAGES[task]):
        said = ask(kind, node, {"task": task, key: 9})
        assert f'{key} = 9: node config "min-privacy-level" = 10' in said
        said = ask(kind, node, {"task": task, key: 10})
        assert "min-privacy-level" not in said


def test_exact_scores_have_no_privacy_level() -> None:
    values: dict[str, Value] = {
        "task": "roc-glm",
        "roc-glm.release": "exact",
        "roc-glm.allow-score-disclosure": True,
        "roc-glm.privacy-level": 50,
    }
    said = ask(HELLO, {**NORTH, "min-privacy-level": 10}, values)
    assert "roc-glm.release = 'exact': tells every score by itself" in said


@pytest.mark.parametrize(("level_of", "refused"), [("class", True), ("cell", False)])
def test_clear_cells_hold_the_privacy_level_each(level_of: str, refused: bool) -> None:
    """A hundred thousand cells of single rows are the scores to five digits."""
    values: dict[str, Value] = {
        "task": "roc-glm",
        "roc-glm.release": "binned",
        "roc-glm.cells": 100_000,
        "roc-glm.privacy-level": 10,
        "roc-glm.privacy-level-of": level_of,
    }
    for kind in (HELLO, *MESSAGES["roc-glm"]):
        said = ask(kind, {**NORTH, "min-privacy-level": 10}, values)
        assert ("roc-glm.privacy-level-of = 'class' with release = 'binned'" in said) == refused
    assert "privacy-level-of" not in ask(HELLO, NORTH, values)


@pytest.mark.parametrize(
    ("drop_outs", "level_of", "refused"),
    [
        ("semi-honest-server", "class", True),
        ("semi-honest-server", "cell", False),
        ("error", "class", False),
    ],
)
def test_no_sum_is_repeated_without_the_site(drop_outs: str, level_of: str, refused: bool) -> None:
    """The difference of two masked sums is the site's own cells, which may be of single rows."""
    values: dict[str, Value] = {
        "task": "roc-glm",
        "roc-glm.release": "secure-counts",
        "roc-glm.drop-outs": drop_outs,
        "roc-glm.privacy-level": 10,
        "roc-glm.privacy-level-of": level_of,
    }
    for kind in (HELLO, *MESSAGES["roc-glm"]):
        said = ask(kind, {**NORTH, "min-privacy-level": 10}, values)
        assert ("roc-glm.drop-outs = 'semi-honest-server'" in said) == refused
    assert "drop-outs" not in ask(HELLO, NORTH, values)


def test_another_configuration_in_the_middle_of_a_run_is_refused(tmp_path: Path) -> None:
    with federation(tmp_path, {"min-privacy-level": 5}, SURVIVAL) as run:
        assert run.status["status"] == "ok"
        message, context = run.grid.again("evaluate")
        context.run_config["survival.privacy-level"] = 1
        assert "survival.privacy-level = 1: node config" in answer(message, context)
        context.run_config["survival.privacy-level"] = 6
        assert "another run configuration than the first message" in answer(message, context)
        context.run_config["survival.privacy-level"] = 5
        assert not answer(message, context)


# Columns -----------------------------------------------------------------------------------------


def test_a_run_sees_the_columns_that_the_site_names_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    rows = survival_rows(0).rename(columns={"time": "Dauer", "event": "Tod", "x1": "Alter"})
    rows.to_csv(path, index=False)
    node: NodeConfig = {"site-name": "north", "data-path": str(path)}
    node["columns"] = "time=Dauer; event = Tod ;age=Alter"
    config = run_config.read({**run_config.defaults(), **SURVIVAL})
    site = prepared_sites.prepare_survival_site(node, config)
    assert list(site.training.feature_names) == ["age"]  # x2 was not named
    assert ask(HELLO, node, SURVIVAL) == ""
    # What the run calls so itself is not there; that the file has it is not told.
    said = ask(HELLO, node, {**SURVIVAL, "survival.features": "Alter"})
    assert said == ask(HELLO, node, {**SURVIVAL, "survival.features": "zzz"}).replace(
        "zzz", "Alter"
    )


def test_ids_under_the_name_of_the_run_stay_text(tmp_path: Path) -> None:
    from fedapp.vertical_party import prepare_vertical_site

    path = tmp_path / "a.csv"
    path.write_text("Nr,y,a\n007,1,1.0\n08,0,2.0\n7,1,3.0\n")
    node: NodeConfig = {"site-name": "a", "data-path": str(path), "columns": "id=Nr; label=y; a"}
    values = {"task": "vertical-xgboost", "vertical-xgboost.test-fraction": 0.0}
    config = run_config.read({**run_config.defaults(), **values})
    assert prepare_vertical_site(node, config).table.ids == ("007", "08", "7")


def test_a_column_that_is_missing_is_named_as_the_run_does(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    survival_rows(0).to_csv(path, index=False)
    node: NodeConfig = {"site-name": "north", "data-path": str(path)}
    node["columns"] = "time=Geheim1; event=Geheim2; x1"
    said = ask(HELLO, node, SURVIVAL)
    assert said == (
        'bad-columns: node config "columns": the file has no column for "time"; '
        'node config "columns": the file has no column for "event"'
    )


def test_names_of_the_file_do_not_leave_in_a_whole_run(tmp_path: Path) -> None:
    keys = {"columns": "time; event; x1=SECRET_A; x2=SECRET_B"}
    real = survival_rows

    def hidden(seed: int) -> pd.DataFrame:
        names = {"x1": "SECRET_A", "x2": "SECRET_B"}
        return real(seed).rename(columns=names) if seed == 0 else real(seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "survival_rows", hidden)
        with federation(tmp_path, dict(keys), SURVIVAL) as run:
            assert run.status["status"] == "ok"
            assert run.grid.replies
            for reply in run.grid.replies:
                assert "SECRET" not in repr(reply.content)
    for path in (tmp_path / "runs").rglob("*.json*"):
        assert "SECRET" not in path.read_text()


# Consent -----------------------------------------------------------------------------------------


def test_consent_to_an_export_is_the_nodes_alone(tmp_path: Path) -> None:
    from fedapp.vertical_party import prepare_vertical_site

    path = tmp_path / "a.csv"
    path.write_text("id,label,a\n1,1,1.0\n2,0,2.0\n3,1,3.0\n")
    values = {"task": "vertical-xgboost", "vertical-xgboost.export-consent": True}
    config = run_config.read({**run_config.defaults(), **values})
    node: NodeConfig = {"site-name": "a", "data-path": str(path)}
    for given, consents in (({}, False), ({"export-consent": False}, False)):
        assert prepare_vertical_site({**node, **given}, config).consents is consents
    # Nor does a part of a simulation in its node configuration make it one.
    parts: NodeConfig = {"partition-id": 0, "num-partitions": 2}
    assert not prepare_vertical_site({**node, **parts}, config).consents
    config = run_config.read({**run_config.defaults(), "task": "vertical-xgboost"})
    assert prepare_vertical_site({**node, "export-consent": True}, config).consents


# Epsilon -----------------------------------------------------------------------------------------


def limited(tmp_path: Path, most: float = 3.0, covers: str = "noised") -> NodeConfig:
    state = str(tmp_path / "state")
    return {"state-dir": state, "max-epsilon": most, "max-delta": 1e-5, "epsilon-covers": covers}


UNSTATED: list[tuple[dict[str, Value], str]] = [
    ({**SURVIVAL, "survival.dp-mechanism": "none"}, 'survival.dp-mechanism = "none"'),
    ({**SURVIVAL, "survival.dp-mechanism": "laplace"}, 'survival.dp-mechanism = "laplace"'),
    ({**SURVIVAL, "survival.dp-noise-multiplier": 0.0}, "survival.dp-noise-multiplier = 0.0"),
    ({**SURVIVAL, "seeded-noise": True}, "seeded-noise = true"),
    ({**ROC, "roc-glm.release": "secure-counts"}, "roc-glm.release = 'secure-counts'"),
    ({**ROC, "roc-glm.release": "binned"}, "roc-glm.release = 'binned'"),
    (
        {**ROC, "roc-glm.release": "exact", "roc-glm.allow-score-disclosure": True},
        "roc-glm.release = 'exact'",
    ),
    (
        {**ROC, "roc-glm.release": "noisy-scores", "roc-glm.debias": False},
        "roc-glm.debias = false",
    ),
    (
        {**ROC, "roc-glm.release": "noisy-counts", "roc-glm.estimate-sensitivity": True},
        "roc-glm.estimate-sensitivity = true",
    ),
    ({**ROC, "seeded-noise": True, "roc-glm.allow-seeded-noise": True}, "seeded-noise = true"),
    ({"task": "vertical-xgboost"}, 'task = "vertical-xgboost"'),
    (
        {"task": "vertical-xgboost", "vertical-xgboost.dp-epsilon": 1.0},
        "vertical-xgboost.dp-epsilon",
    ),
]


@pytest.mark.parametrize(("values", "words"), UNSTATED)
def test_a_run_that_cannot_state_its_epsilon_is_refused(
    tmp_path: Path, values: dict[str, Value], words: str
) -> None:
    for kind in (HELLO, *MESSAGES[str(values["task"])]):
        said = ask(kind, {**NORTH, **limited(tmp_path)}, values)
        assert said.startswith("site-limit: ")
        assert words in said
        assert 'node config "max-epsilon" = 3 takes runs only that can state their epsilon' in said


@pytest.mark.parametrize("values", [SURVIVAL, {**ROC, "roc-glm.release": "noisy-scores"}])
def test_exact_sums_beside_noise_are_not_covered_unless_the_site_says_so(
    tmp_path: Path, values: dict[str, Value]
) -> None:
    node = {**NORTH, **limited(tmp_path, covers="everything")}
    said = ask(HELLO, node, values)
    assert 'allowed by node config "epsilon-covers" = "noised"' in said
    assert "epsilon-covers" not in ask(HELLO, {**node, "epsilon-covers": "noised"}, values)


def test_a_state_dir_that_cannot_be_written_is_refused_at_the_introduction(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    for values in (SURVIVAL, ROC):
        with federation(tmp_path, limited(tmp_path), values) as run:
            assert run.status["status"] == "refused"
            assert 'node config "state-dir"' in run.reason
            assert len(run.grid.sent) == 1


def test_a_node_says_that_nothing_counts_as_spent_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A state-dir on a disk that is not mounted is an empty one."""
    words = f"no ledger in state-dir {tmp_path / 'state'} yet: nothing counts as spent"
    for times in (1, 1):  # by the second run there is one
        with federation(tmp_path, limited(tmp_path), ROC) as run:
            assert run.status["status"] == "ok", run.reason
        assert [record.getMessage() for record in caplog.records].count(words) == times


def test_a_survival_run_spends_what_it_reserved_and_a_second_one_too(tmp_path: Path) -> None:
    node = limited(tmp_path)
    for runs in (1, 2):
        with federation(tmp_path, node, SURVIVAL) as run:
            assert run.status["status"] == "ok", run.reason
        found = read_ledger(tmp_path / "state")
        assert [own.steps for own in found] == [("round-1", "round-2")] * runs
        # 2 C / (z C / sqrt(3 clients)), by hand.
        assert all(own.cost.ratio == pytest.approx(2 * 3**0.5 / 20) for own in found)
    total = spent(found, delta=1e-5).epsilon
    with federation(tmp_path, {**node, "max-epsilon": total}, SURVIVAL) as run:
        assert run.status["status"] == "refused"
        assert 'north: node config "max-epsilon"' in run.reason
        assert {message.metadata.message_type for message in run.grid.sent} == {HELLO}
    assert len(read_ledger(tmp_path / "state")) == 2


def test_more_clients_than_fit_are_refused_before_the_first_update_leaves(tmp_path: Path) -> None:
    """At the introduction the site does not know by how many clients the noise is divided."""
    alone = spent_by(ratio=2 / 20, rounds=2)
    with federation(tmp_path, limited(tmp_path, most=alone * 1.01), SURVIVAL) as run:
        trained = [
            reply
            for sent, reply in zip(run.grid.sent, run.grid.replies, strict=True)
            if sent.metadata.message_type == "train"
        ]
        assert trained
        assert all('"max-epsilon"' in (reply.error.reason or "") for reply in trained)
    assert read_ledger(tmp_path / "state") == []


def spent_by(*, ratio: float, rounds: int) -> float:
    from tasks.privacy import gaussian

    return gaussian.composed_epsilon(delta=1e-5, ratios=[ratio] * rounds)


def test_a_hostile_server_gets_no_update_more_than_was_reserved(tmp_path: Path) -> None:
    with federation(tmp_path, limited(tmp_path), SURVIVAL) as run:
        first, context = run.grid.again("train", 0)
        last, _ = run.grid.again("train", 1)
        config = last.content.config_records["config"]

        # The last message again: the same answer, and nothing spent.
        reply = client_app.app(copy.deepcopy(last), context)
        sent = [m.metadata.message_type for m in run.grid.sent]
        before = run.grid.replies[max(n for n, kind in enumerate(sent) if kind == "train")]
        for name, array in before.content.array_records["arrays"].items():
            assert array.data == reply.content.array_records["arrays"][name].data

        assert answer(first, context).startswith("second-request: ")
        for other in (2.0, "2", True):  # no seed of batches
            config["server-round"] = other
            assert answer(last, context).startswith("bad-request: ")
        for number in (3, 4):
            config["server-round"] = number
            assert f"round {number!r}: survival.rounds = 2" in answer(last, context)
        for number in (0, 1):
            config["server-round"] = number
            assert answer(last, context).startswith("second-request: ")
        config["server-round"], config["num-clients"] = 2, 1000
        assert answer(last, context).startswith("second-request: ")

        # A node that has lost its state, and more rounds by another configuration.
        for number in (1, 2):
            context.state = RecordDict()
            config["server-round"], config["num-clients"] = number, 1000
            assert f"round-{number}: released in this run before" in answer(last, context)
        context.state, context.run_config["survival.rounds"] = RecordDict(), 9
        config["server-round"] = 3
        assert "another configuration than the one that this run has reserved" in answer(
            last, context
        )
    (found,) = read_ledger(tmp_path / "state")
    assert found.steps == ("round-1", "round-2")


def test_another_run_reserves_anew_and_later_rounds_only(tmp_path: Path) -> None:
    with federation(tmp_path, limited(tmp_path, most=5.0), SURVIVAL) as run:
        message, old = run.grid.again("train", 1)
        node: Any = old.node_config
        other = context_of(node, run.grid.contexts[1].run_config, run=99)  # type: ignore[arg-type]
        assert not answer(message, other)
        other = context_of(node, run.grid.contexts[1].run_config, run=100)  # type: ignore[arg-type]
        message.content.config_records["config"]["num-clients"] = 1000
        assert 'node config "max-epsilon" = 5' in answer(message, other)
    found = read_ledger(tmp_path / "state")
    assert [(own.run == "run-99", own.releases) for own in found] == [(False, 2), (True, 1)]


@pytest.mark.parametrize(
    ("config", "ratio"),
    [
        ({"roc-glm.release": "noisy-histogram"}, None),
        ({"roc-glm.release": "noisy-counts"}, None),
        # A score that moves by a tenth passes fewer cuts; a patient who is replaced, all 19.
        ({"roc-glm.release": "noisy-counts", "roc-glm.sensitivity": 0.1}, "more"),
        ({"roc-glm.release": "noisy-counts", "roc-glm.statistics-epsilon": 0.5}, "more"),
        ({"roc-glm.release": "noisy-histogram", "roc-glm.secure": True}, "more"),
        ({"roc-glm.release": "noisy-scores"}, None),
    ],
)
def test_a_noisy_release_spends_what_its_noise_is_worth(
    tmp_path: Path, config: dict[str, Value], ratio: str | None
) -> None:
    with federation(tmp_path, limited(tmp_path, most=10.0), {**ROC, **config}) as run:
        assert run.status["status"] == "ok", run.reason
        message, context = run.grid.again("query.roc_glm_release")
        assert not answer(message, context)  # the same release again
        assert "lost-state" in answer(message, without_state(context))
    (found,) = read_ledger(tmp_path / "state")
    assert found.steps == ("roc-glm-release",) or len(found.steps) == 1
    epsilon = spent([found], delta=1e-5).epsilon
    if ratio is None:  # the default budget, to which the noise was calibrated
        assert epsilon == pytest.approx(1.0, rel=1e-6)
    else:
        assert epsilon > 1.05


def without_state(context: Context) -> Context:
    context = copy.deepcopy(context)
    context.state = RecordDict()
    return context


def test_a_roc_run_beyond_the_maximum_is_refused_at_the_introduction(tmp_path: Path) -> None:
    with federation(tmp_path, limited(tmp_path, most=0.9), ROC) as run:
        assert run.status["status"] == "refused"
        assert 'north: node config "max-epsilon" = 0.9' in run.reason
        # A server that goes on all the same, and one that never introduced itself.
        content = RecordDict({"x": ConfigRecord({})})
        message = Message(content, dst_node_id=1, message_type="query.roc_glm_release")
        assert answer(message, copy.deepcopy(run.grid.contexts[1]))
    assert read_ledger(tmp_path / "state") == []


def test_a_model_of_the_server_s_asks_no_site_about_its_largest_values(tmp_path: Path) -> None:
    """Whether all scores lie in [0, 1] is told without noise, and a run for each bit is free."""
    key = register_frame(roc_rows(0).rename(columns={"score": "age"}))
    node: NodeConfig = {"site-name": "north", "data-path": MEMORY_PREFIX + key}

    def said(kind: str, node: NodeConfig) -> HelloReply:
        model = {"format": "fedapp-score-model", "kind": kind, "features": ["age"]}
        text = json.dumps({**model, "coefficients": [1.0], "intercept": 0.0})
        request = HelloRequest(code_fingerprint(), task={"model": text})
        ScriptedGrid({})  # lets messages be built
        message = Message(request.to_record(), dst_node_id=1, message_type=HELLO)
        reply = client_app.app(message, context_of(node, {**ROC, "roc-glm.model": "m.json"}))
        return HelloReply.from_record(reply.content)

    try:
        refused = said("linear", {**node, **limited(tmp_path)})
        assert refused.fault_code == "site-limit"
        assert 'node config "max-epsilon"' in refused.fault_reasons[0]
        assert not refused.task.facts
        assert not said("logistic", {**node, **limited(tmp_path)}).fault_code
        assert not said("linear", node).fault_code
    finally:
        forget_frame(key)
        prepared_sites.forget_sites()


# With other tasks and runs ------------------------------------------------------------------------


def test_a_vertical_run_within_limits_is_as_without(tmp_path: Path) -> None:
    values: dict[str, Value] = {
        "task": "vertical-xgboost",
        "vertical-xgboost.num-trees": 1,
        "vertical-xgboost.max-depth": 1,
        "vertical-xgboost.encryption": "none",
        "vertical-xgboost.min-instances": 5,
        "num-sites": 3,
        "report": False,
        "run-dir": str(tmp_path),
    }
    told = []
    for limits in ({}, {"allowed-tasks": "vertical-xgboost", "min-privacy-level": 5}):
        nodes: list[NodeConfig] = [{"partition-id": n, "num-partitions": 3} for n in range(3)]
        full = {**run_config.defaults(), **values}
        grid = Recorded([{**node, **limits} for node in nodes], full)
        folder = server_app.run_task(grid, full, started=time.time())
        record = RunFolder.open(folder).read()
        assert record.status["status"] == "ok", record.status
        told.append(record.summary["train-loss"])
    assert told[0] == told[1]


def test_hosted_sites_have_the_limits_of_their_node(tmp_path: Path) -> None:
    """Two SuperNodes that play five sites, as `flwr run` simulates."""
    values = {**run_config.defaults(), **SURVIVAL, "run-dir": str(tmp_path), "num-sites": 5}
    nodes: list[NodeConfig] = [{"partition-id": n, "num-partitions": 2} for n in range(2)]
    nodes[0]["allowed-tasks"] = "roc-glm"
    folder = server_app.run_task(Recorded(nodes, values), values, started=time.time())
    status = RunFolder.open(folder).read().status
    assert status["status"] == "refused"
    words = 'site-0, site-2, site-4: task = "survival": node config "allowed-tasks" = "roc-glm"'
    assert words in str(status["reason"])
