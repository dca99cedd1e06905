"""Survival runs with a site that is broken, hostile or slow: named, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict

from fedapp import client_app, prepared_sites, run_config, server_app, site_data
from fedapp.simulation import InProcessGrid, SimulationResult, read_result, simulate
from tasks.site.messages import HELLO
from tasks.survival.curves_messages import CURVES
from tasks.survival.messages import EVALUATE, TRAIN
from tasks.survival.set_up_messages import STATISTICS
from tests.patients import patients

BAD = "site-2"
Tamper = Callable[[RecordDict], RecordDict | Error | None]
Config = dict[str, run_config.Value]
SETTINGS: Config = {"report": False, "survival.rounds": 3, "survival.local-steps": 2}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    prepared_sites.forget_sites()


def run(
    tmp_path: Path, kind: str, tamper: Tamper, sites: int = 4, **config: Any
) -> SimulationResult:
    """Run with the replies of one site, of one type, tampered with; None: they never come."""
    given: Config = {key.replace("_", "-").replace("--", "."): v for key, v in config.items()}
    values = {**run_config.defaults(), **SETTINGS, "run-dir": str(tmp_path), **given}
    nodes = [
        {
            "site-name": f"site-{i}",
            "data-path": "memory:" + site_data.register_frame(patients(60, seed=i)),
        }
        for i in range(sites)
    ]

    def app(message: Message, context: Context) -> Message:
        reply = client_app.app(message, context)
        own = str(context.node_config["site-name"]) == BAD
        if not own or message.metadata.message_type != kind or reply.has_error():
            return reply
        changed = tamper(reply.content)
        answer = Message(RecordDict() if changed is None else changed, reply_to=message)
        if changed is None:  # a reply to nothing that was asked: nobody takes it
            answer.metadata.__dict__["_reply_to_message_id"] = "another"
        return answer

    grid = InProcessGrid(cast(Any, app), nodes, values)
    return read_result(server_app.run_task(grid, values, started=time.time()))


def with_value(record: str, key: str, value: object) -> Tamper:
    def tamper(content: RecordDict) -> RecordDict:
        content[record][key] = value  # type: ignore[assignment]
        return content

    return tamper


def with_array(record: str, change: Callable[[Any], Any], only: str | None = None) -> Tamper:
    def tamper(content: RecordDict) -> RecordDict:
        arrays = {key: array.numpy() for key, array in content.array_records[record].items()}
        new = {k: np.asarray(change(a)) if only in (None, k) else a for k, a in arrays.items()}
        content[record] = ArrayRecord({key: Array(array) for key, array in new.items()})
        return content

    return tamper


def faults_of(result: SimulationResult) -> list[str]:
    faults: list[str] = result.summary["faults"]
    assert all(fault.startswith(f"{BAD}: ") and fault.isprintable() for fault in faults), faults
    return faults


def receivers(result: SimulationResult, step: str) -> set[object]:
    return {row["receiver"] for row in result.ledger if row["step"] == step} - {"server"}


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (with_value("statistics", "count", 48.5), "count"),
        (with_value("statistics", "count", 10**17), "count"),
        (with_value("statistics", "n-events", True), "n-events"),
        (with_value("statistics", "n-events", 10**6), "n-events"),
        (with_value("statistics", "n-test", -1), "n-test"),
        (with_value("statistics", "data-set", 5), "data-set"),
        (with_value("statistics", "data-set", "d" * 100_000), "data-set"),
        (with_array("counts", lambda a: a + 1, only="at-risk-count"), "at-risk-count"),
        (with_array("counts", lambda a: a[:-4], only="events"), "events"),
        (with_array("counts", lambda a: a[::-1].copy(), only="at-risk-count"), "at-risk-count"),
        (with_array("counts", lambda a: a * 0 + 5, only="events"), "events"),
        (with_array("counts", lambda a: a * np.nan), "events"),
        (with_array("moments", lambda a: a.astype(np.complex128)), "mean"),
        (with_array("moments", lambda a: a.astype(str)), "mean"),
        (with_array("moments", lambda a: a[None]), "mean"),
        (with_array("moments", lambda a: a[:-1], only="mean"), "ValueError"),
        (with_array("moments", lambda a: np.ones((1, 258)), only="histograms"), "histograms"),
        (lambda content: Error(0, "late: \x1b[2Jlost"), "lost"),
    ],
)
def test_a_site_without_usable_statistics_does_not_train(
    tmp_path: Path, tamper: Tamper, named: str
) -> None:
    result = run(tmp_path, STATISTICS, tamper)
    assert result.summary["status"] == "ok"
    first, second = faults_of(result)
    assert named in first
    assert "left out" in second
    assert result.summary["excluded"] == [BAD]
    assert receivers(result, "train") == {"site-0", "site-1", "site-3"}
    assert result.summary["n-sites"] == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("horizon-bound", bound) for bound in ("x", 1e300, 17.25, True, float("nan"), [20.0])),
        ("columns", [1, 2, 3]),
        ("columns", ["x0", "x0", "x1"]),
        ("columns", ["x" * 100_000, "x1", "x2"]),
        ("column-contents", ["numbers", "text"]),
        ("column-contents", ["numbers", "numbers", "pictures"]),
        ("columns-missing", [True, False]),
        ("columns-missing", [0, 1, 0]),
        ("category-names", ["a"]),
        ("observed-columns", ["x0"]),
    ],
)
def test_a_site_without_a_usable_introduction_does_not_train(
    tmp_path: Path, key: str, value: object
) -> None:
    result = run(tmp_path, HELLO, with_value("facts", key, value))
    assert result.summary["status"] == "ok"
    (fault,) = faults_of(result)
    assert key.partition("-")[0] in fault
    assert "left out" in fault
    assert result.summary["excluded"] == [BAD]
    assert receivers(result, "statistics") == {"site-0", "site-1", "site-3"}


def test_a_run_ends_where_too_few_sites_have_usable_statistics(tmp_path: Path) -> None:
    tamper = with_value("statistics", "count", 48.5)
    result = run(tmp_path, STATISTICS, tamper, sites=3, min_sites=3)
    assert result.summary["status"] == "failed"
    assert "site-2: statistics: " in result.summary["reason"]
    assert receivers(result, "train") == set()


@pytest.mark.parametrize("horizon", [1e8, 1e-6])
def test_a_horizon_far_from_the_others_spoils_no_grid(tmp_path: Path, horizon: float) -> None:
    result = run(tmp_path, HELLO, with_value("facts", "horizon-bound", horizon))
    (fault,) = faults_of(result)
    assert "1000 times" in fault
    assert f"{horizon:g}" in fault
    assert receivers(result, "train") == {"site-0", "site-1", "site-3"}


@pytest.mark.parametrize(
    ("only", "change"),
    [
        ("mean", lambda a: a + 150.0),
        ("mean", lambda a: a - 1e99),
        ("m2", lambda a: a * 1e6),
        ("m2", lambda a: a * 0 + 1e307),
    ],
)
def test_moments_far_from_the_others_spoil_no_standardization(
    tmp_path: Path, only: str, change: Callable[[Any], Any]
) -> None:
    result = run(tmp_path, STATISTICS, with_array("moments", change, only=only))
    (fault,) = faults_of(result)
    assert "mean or spread of column 'x0'" in fault
    assert result.summary["excluded"] == [BAD]
    assert receivers(result, "train") == {"site-0", "site-1", "site-3"}
    with np.load(result.run_folder / "model.npz") as model:
        assert np.abs(model["standardizer/mean"]).max() < 1
        assert model["standardizer/scale"].max() < 2


def test_observed_values_far_from_the_others_spoil_no_median(tmp_path: Path) -> None:
    tamper = with_value("facts", "observed-means", [0.0, 1e9, 0.0])
    result = run(tmp_path, HELLO, tamper, survival__missing="median")
    (fault,) = faults_of(result)
    assert "mean or spread of column 'x1'" in fault
    assert receivers(result, "statistics") == {"site-0", "site-1", "site-3"}


def test_two_sites_are_not_judged_by_their_moments(tmp_path: Path) -> None:
    """Nobody knows which of them is right."""
    frames = [patients(60, seed=0), patients(60, seed=1).assign(x0=lambda f: f["x0"] + 1e6)]
    config: Config = {**SETTINGS, "run-dir": str(tmp_path)}
    assert not simulate("survival", sites=frames, config=config).summary["faults"]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "none"])
@pytest.mark.parametrize("far", [2e4, 1e6, 3e38])
def test_an_update_that_training_cannot_make_is_set_aside(
    tmp_path: Path, mechanism: str, far: float
) -> None:
    tamper = with_array("arrays", lambda a: (a.astype(np.float64) + far).astype(a.dtype))
    result = run(tmp_path, TRAIN, tamper, survival__dp_mechanism=mechanism)
    assert result.summary["status"] == "ok"
    assert len(faults_of(result)) == 3
    with np.load(result.run_folder / "model.npz") as model:
        largest = max(np.abs(model[k]).max() for k in model.files if model[k].dtype == np.float32)
    assert largest < 100


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num-examples", 10**12),
        ("num-examples", 1),
        ("num-examples", 47.5),
        ("evaluated-rows", 10**9),
        ("evaluated-rows", 1e300),
        ("identical-predictions", 7),
        ("concordance-b", 1e12),
        ("concordance-aa", 1e12),
        ("concordance-ab", 1e12),
        ("concordance-bb", 1e12),
        ("concordance-bb", 1e-3),
        ("loss", float("nan")),
        ("loss", float("inf")),
        ("loss", [1.0]),
        ("loss-steps", -9),
        ("loss-steps", 1.5),
    ],
)
def test_metrics_that_are_not_the_sites_are_malformed(
    tmp_path: Path, key: str, value: object
) -> None:
    result = run(tmp_path, TRAIN, with_value("metrics", key, value))
    assert result.summary["status"] == "ok"
    faults = faults_of(result)
    assert len(faults) == 3
    assert all(key.removesuffix("-ab").removesuffix("-bb")[:12] in fault for fault in faults)


@pytest.mark.parametrize(
    ("kind", "tamper"),
    [
        (EVALUATE, with_value("metrics", "num-examples", 10**12)),
        (EVALUATE, with_array("risk-sets", lambda a: a * 0 + 1e300, only="at_risk_weight")),
        (EVALUATE, with_array("risk-sets", lambda a: a[::-1].copy(), only="at_risk_weight")),
        (EVALUATE, with_array("risk-sets", lambda a: a + 1e6, only="events")),
        (EVALUATE, with_array("risk-sets", lambda a: a.astype(np.complex128))),
        (CURVES, with_array("curves", lambda a: a + 1e9, only="survival_sum")),
        (CURVES, with_array("curves", lambda a: a + 0.5, only="rows")),
        (CURVES, with_array("curves", lambda a: a + 1e9, only="events")),
        (EVALUATE, with_value("metrics", "concordance-aa", 1e12)),
        (EVALUATE, with_value("metrics", "concordance-bb", 1e12)),
        # More evaluation rows than stated first, and sums that so many rows may have.
        (CURVES, with_array("metric-sums", lambda a: a * np.r_[2, a[1:] * 0 + 1], only="brier")),
    ],
)
def test_sums_that_no_rows_have_are_malformed(tmp_path: Path, kind: str, tamper: Tamper) -> None:
    result = run(tmp_path, kind, tamper)
    assert result.summary["status"] == "ok"
    (fault,) = faults_of(result)
    assert "another form" in fault


@pytest.mark.parametrize("model", ["CoxPH", "LogisticHazard"])
def test_more_pairs_than_rows_have_are_refused_by_the_kind_of_pair(
    tmp_path: Path, model: str
) -> None:
    """Antolini's pairs may count twice, Harrell's may not."""

    def half_more(content: RecordDict) -> RecordDict:
        metrics = content.metric_records["metrics"]
        rows = cast(int, metrics["evaluated-rows"])
        pairs = 0.75 * rows * (rows - 1)
        each = 2 * pairs / rows
        for name in ("a", "b"):
            metrics[f"concordance-{name}"] = pairs
        for name in ("aa", "ab", "bb"):
            metrics[f"concordance-{name}"] = rows * each**2
        return content

    result = run(tmp_path, EVALUATE, half_more, survival__model=model)
    assert result.summary["status"] == "ok"
    assert len(faults_of(result)) == (1 if model == "CoxPH" else 0)


@pytest.mark.parametrize("key", ["site", "fault-code", "fault-reasons"])
def test_a_site_that_cannot_say_who_it_is_does_not_end_the_run(tmp_path: Path, key: str) -> None:
    result = run(tmp_path, HELLO, with_value("hello", key, 5))
    assert result.summary["status"] == "ok"
    (fault,) = result.summary["faults"]
    assert key in fault
    assert result.summary["n-sites"] == 3


def test_a_site_that_stays_late_is_left_out(tmp_path: Path) -> None:
    result = run(tmp_path, TRAIN, lambda content: None, timeout=0.5)
    assert result.summary["status"] == "ok"
    late, again, left_out = faults_of(result)
    assert "no reply" in late
    assert "no reply" in again
    assert "left out after 2 late replies" in left_out
    assert BAD in receivers(result, "train")
    assert BAD not in receivers(result, "evaluate")
    assert result.summary["excluded"] == [BAD]


# What a run says of its own settings -------------------------------------------------------------


def own(tmp_path: Path, **settings: run_config.Value) -> list[str]:
    config = {f"survival.{key.replace('_', '-')}": value for key, value in settings.items()}
    frames = [patients(60, seed=i) for i in range(3)]
    result = simulate(
        "survival", sites=frames, config={**SETTINGS, "run-dir": str(tmp_path), **config}
    )
    assert result.summary["status"] == "ok"
    diagnostics: list[str] = result.summary["diagnostics"]
    return [line.split(":")[0] for line in diagnostics]


def test_a_model_that_never_moved_is_told(tmp_path: Path) -> None:
    assert "model_unchanged" in own(tmp_path, dp_clip_norm=1e-300)
    assert "model_unchanged" not in own(tmp_path)


def test_a_horizon_before_every_event_is_told(tmp_path: Path) -> None:
    assert "no_events_before_horizon" in own(tmp_path, horizon=1e-9)
    assert "no_events_before_horizon" not in own(tmp_path)


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        ("CoxPH", {"test_fraction": 0.0}, "no-evaluation-rows"),
        ("LogisticHazard", {"test_fraction": 0.05}, "no-evaluation-rows"),
        ("CoxTime", {"test_fraction": 0.0}, "no-evaluation-rows"),
        ("CoxTime", {"test_fraction": 0.9}, "follow-up-too-short"),
    ],
)
def test_a_c_index_that_does_not_exist_has_a_reason(
    tmp_path: Path, model: str, settings: Config, reason: str
) -> None:
    config = {f"survival.{key.replace('_', '-')}": value for key, value in settings.items()}
    frames = [patients(60, seed=i) for i in range(3)]
    result = simulate(
        "survival",
        sites=frames,
        config={**SETTINGS, "run-dir": str(tmp_path), "survival.model": model, **config},
    )
    assert result.summary["status"] == "ok"
    assert "c-index" not in result.summary
    assert result.summary["c-index-reason"] == reason


def test_the_ledger_names_what_messages_hold(tmp_path: Path) -> None:
    result = run(tmp_path, "query.nothing", lambda content: content)
    said = {
        (row["step"], row["receiver"] == "server"): str(row["reveals"]) for row in result.ledger
    }
    assert "end of the time grid" in said["train", False]
    assert "end of the time grid" in said["statistics", False]
    assert "name of the bundled data set" in said["statistics", True]
    assert "rows at risk" in said["statistics", True]
    assert "a round number that fewer" in said["hello", True]
    for step in ("train", "evaluate"):
        assert "same prediction" in said[step, True]
