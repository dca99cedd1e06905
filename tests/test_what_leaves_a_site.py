"""A whole run is recorded, and every message of it looked at: no row, and no sum of a few, leaves.

Each check is tried on a run that leaks, too: an alarm that never rings would be none.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedapp import simulation
from fedapp.fingerprint import code_fingerprint
from fedapp.simulation import InProcessGrid, SimulationResult, simulate
from strategies.exchange import content_bytes
from tasks.site.faults import SiteFault
from tasks.site.messages import HELLO, HelloReply, HelloRequest, TaskPart
from tasks.survival import client as site_half
from tasks.survival import curves as curves_module
from tasks.survival.client import SurvivalSite
from tasks.survival.config import SurvivalConfig
from tasks.survival.curves import GroupCurves
from tasks.survival.curves_messages import CURVES, CurvesReply, CurvesRequest
from tasks.survival.messages import (
    EVALUATE,
    TRAIN,
    EvaluateReply,
    EvaluationSums,
    TrainConfig,
    TrainReply,
    from_array_record,
)
from tasks.survival.models import arrays_of
from tasks.survival.predictor import SurvivalPredictor
from tasks.survival.risk_sets import RiskSetSums
from tasks.survival.set_up_messages import (
    STATISTICS,
    StatisticsReply,
    StatisticsRequest,
    SurvivalFacts,
)
from tasks.survival.site_columns import ColumnFacts
from tasks.survival.standardization import FeatureMoments
from tasks.survival.survival_metrics import SurvivalMetricsSums
from tests.patients import patients, with_cell

Floats = NDArray[np.float64]
Config = Mapping[str, bool | int | float | str]

LEVEL, BINS, CLIP = 5, 32, 0.02
SETTINGS: dict[str, bool | int | float | str] = {
    "survival.rounds": 2,
    "survival.local-steps": 3,
    "survival.hidden-layers": "4",
    "survival.time-bins": BINS,
    "survival.test-fraction": 0.4,
    "survival.privacy-level": LEVEL,
    # No noise: what is looked for would otherwise hide behind it.
    "survival.dp-clip-norm": CLIP,
    "survival.dp-noise-multiplier": 0.0,
}
NAMES = ("north", "south", "west")


# A recorded run ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """A run, the tables of its sites, and every message with its reply."""

    frames: list[pd.DataFrame]
    config: dict[str, bool | int | float | str]
    result: SimulationResult
    messages: list[tuple[Message, Message]]

    def replies(self, message_type: str) -> Iterator[tuple[int, Message, Message]]:
        """Number of the site, request and reply, of one message type."""
        for request, reply in self.messages:
            if request.metadata.message_type == message_type and not reply.has_error():
                yield request.metadata.dst_node_id - 1, request, reply

    def site(self, number: int) -> SurvivalSite:
        """The site's rows as it splits them."""
        task = {
            key.removeprefix("survival."): value
            for key, value in self.config.items()
            if key.startswith("survival.")
        }
        return SurvivalSite.prepare(
            self.frames[number],
            name=NAMES[number],
            data_set="",
            time="time",
            event="event",
            config=SurvivalConfig.model_validate(task),
            seed=0,
        )


def cohort(rows: int = 60) -> list[pd.DataFrame]:
    """Sites whose values are found again wherever they turn up: all differ, none is small."""
    frames = []
    for seed in range(len(NAMES)):
        frame = patients(rows, seed=seed)
        frame["time"] = frame["time"] * math.pi * 100 + 1000
        for column, center in (("x0", 50_000.0), ("x1", -3e6), ("x2", 7e8)):
            frame[column] = center * (1 + frame[column] * math.e / 50)
        frames.append(frame)
    cells = np.concatenate([f.drop(columns="event").to_numpy().ravel() for f in frames])
    assert len(np.unique(cells)) == cells.size
    assert (np.abs(cells) > 900).all()
    return frames


def record(
    frames: list[pd.DataFrame],
    config: Config | None = None,
    *,
    run_dir: Path,
) -> Recorded:
    messages: list[tuple[Message, Message]] = []

    class RecordingGrid(InProcessGrid):
        def _handle(self, message: Message) -> Message:
            reply = super()._handle(message)
            messages.append((message, reply))
            return reply

    full = {**SETTINGS, **(config or {}), "run-dir": str(run_dir)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "InProcessGrid", RecordingGrid)
        result = simulate("survival", sites=frames, config=full, site_names=NAMES)
    assert messages
    return Recorded(frames, full, result, messages)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A run as it should be."""
    run = record(cohort(), run_dir=tmp_path_factory.mktemp("plain"))
    assert run.result.summary["status"] == "ok"
    assert {request.metadata.message_type for request, _ in run.messages} == {
        *(HELLO, STATISTICS, TRAIN, EVALUATE, CURVES)
    }
    return run


Leaf = str | int | float | bool | bytes | NDArray[Any] | list[Any]


def leaves(content: RecordDict) -> Iterator[tuple[str, Leaf]]:
    """Everything in a message's content, as ``record/key`` and value."""
    for name, record_ in content.items():
        for key, value in record_.items():
            yield f"{name}/{key}", value.numpy() if isinstance(record_, ArrayRecord) else value


def numbers(content: RecordDict) -> Floats:
    """Every number in a message's content."""
    found = [np.zeros(0)]
    for _, value in leaves(content):
        values = np.asarray(value).ravel()
        if values.dtype.kind in "iufb":
            found.append(values.astype(np.float64))
        assert values.dtype.kind in "iufbUS", values.dtype
    return np.concatenate(found)


def texts(message: Message) -> list[str]:
    """Every text in a message, bytes as Latin-1."""
    if message.has_error():
        return [message.error.reason or ""]
    found = [message.metadata.message_type, message.metadata.group_id]
    for key, value in leaves(message.content):
        parts = value if isinstance(value, list) else [value]
        found += [key, *(part for part in parts if isinstance(part, str))]
        found += [part.decode("latin-1") for part in parts if isinstance(part, bytes)]
    return found


def raw_bytes(message: Message) -> bytes:
    """All bytes of a message's content."""
    if message.has_error():
        return (message.error.reason or "").encode()
    return b"".join(
        b"".join(array.data for array in record_.values())
        if isinstance(record_, ArrayRecord)
        else record_.deflate()
        for record_ in message.content.values()
    )


# (a) No value of a row ---------------------------------------------------------------------------


def check_no_value_of_a_row(run: Recorded) -> None:
    """No cell of a table occurs in a message: as a number, in the bytes, or as text."""
    for request, reply in run.messages:
        for message in (request, reply):
            own = [run.frames[request.metadata.dst_node_id - 1]]
            _check_cells(message, own if message is reply else run.frames)


def _check_cells(message: Message, frames: Sequence[pd.DataFrame]) -> None:
    cells = np.concatenate([f.drop(columns="event").to_numpy().ravel() for f in frames])
    what = f"a value of a row in {message.metadata.message_type}"
    if message.has_content():
        sent = numbers(message.content)
        assert not np.isin(sent, cells).any(), what
        assert not np.isin(sent.astype(np.float32), cells.astype(np.float32)).any(), what
    data = raw_bytes(message)
    assert not any(cell.tobytes() in data for cell in cells), f"{what}, in its bytes"
    text = "\n".join(texts(message))
    if any(character.isdigit() for character in text):
        forms = {form for cell in cells for form in _written(float(cell))}
        assert not any(form in text for form in forms), f"{what}, as text"


def _written(value: float) -> list[str]:
    single = float(np.float32(value))
    return [
        repr(value),
        str(np.float32(value)),
        *(f"{v:.{d}g}" for v in (value, single) for d in (5, 6, 8)),
    ]


def check_no_derived_value_of_a_row(run: Recorded) -> None:
    """Nor does what the model makes of a row: standardized features, linear predictor, hazard."""
    predictor = SurvivalPredictor.load(run.result.run_folder / "model.npz")
    for number, frame in enumerate(run.frames):
        risk = predictor.risk(frame)
        features = frame[list(predictor.feature_names)].to_numpy()
        scaled = predictor.standardizer.apply(features).ravel()
        derived = np.concatenate([risk, np.exp(risk), scaled]).astype(np.float32)
        for message_type in (STATISTICS, TRAIN, EVALUATE, CURVES):
            for site, _, reply in run.replies(message_type):
                if site != number:
                    continue
                sent = numbers(reply.content).astype(np.float32)
                # One number of thousands may be equal by chance, two are none.
                hits = np.isin(sent, derived) & ~np.isin(sent, np.float32([0, 1]))
                assert hits.sum() < 2, f"values of single rows in {message_type}"


def test_no_value_of_a_row_leaves(plain: Recorded) -> None:
    check_no_value_of_a_row(plain)
    check_no_derived_value_of_a_row(plain)


@pytest.mark.parametrize(
    "config",
    [
        {"survival.dp-mechanism": "none"},
        {"survival.dp-noise-multiplier": 0.05, "seeded-noise": True},
        {"survival.horizon": 1500.0, "survival.time-bins": 4},
        {"survival.test-fraction": 0.05},
    ],
    ids=["no privatization", "noise", "short horizon", "few evaluation rows"],
)
def test_no_value_of_a_row_leaves_under_other_settings(tmp_path: Path, config: Config) -> None:
    run = record(cohort(), config, run_dir=tmp_path)
    assert run.result.summary["status"] == "ok"
    check_no_value_of_a_row(run)
    check_no_derived_value_of_a_row(run)
    check_rows_behind_every_sum(run)
    check_only_what_is_declared(run, bins=int(run.config["survival.time-bins"]))
    check_ledger(run)


# (b) Only what is declared -----------------------------------------------------------------------

TEXT = "text"
NUMBER = ()
SUMS = {f"metrics/concordance-{name}": NUMBER for name in ("a", "b", "aa", "ab", "bb")}
EVALUATION = {
    **SUMS,
    "metrics/num-examples": NUMBER,
    "metrics/evaluated-rows": NUMBER,
    "metrics/identical-predictions": NUMBER,
}


def declared(
    message_type: str, *, features: int, bins: int, sent: RecordDict
) -> dict[str, str | tuple[int, ...]]:
    """Keys of a reply and the shapes of their values; none depends on the number of rows."""
    if message_type == HELLO:
        hello = ("site", "fingerprint", "fault-code", "fault-reasons")
        return {
            **{f"hello/{key}": TEXT for key in hello},
            "facts/horizon-bound": NUMBER,
            "facts/columns": TEXT,
            "facts/column-contents": TEXT,
            "facts/columns-missing": (features,),
        }
    if message_type == STATISTICS:
        counts = ("count", "n-events", "n-test")
        return {
            "statistics/data-set": TEXT,
            **{f"statistics/{key}": NUMBER for key in counts},
            "moments/mean": (features,),
            "moments/m2": (features,),
            "moments/histograms": (0, 258),
            "counts/events": (bins,),
            "counts/at-risk-count": (bins + 1,),
        }
    if message_type == TRAIN:
        model = from_array_record(sent.array_records["arrays"])
        return {
            **{f"arrays/{name}": array.shape for name, array in model.items()},
            **EVALUATION,
            "metrics/loss": NUMBER,
            "metrics/loss-steps": NUMBER,
        }
    if message_type == EVALUATE:
        return {
            **EVALUATION,
            "risk-sets/at_risk_weight": (bins + 1,),
            "risk-sets/at_risk_count": (bins + 1,),
            "risk-sets/events": (bins,),
            "risk-sets/risk-mean": (1,),
            "risk-sets/risk-m2": (1,),
        }
    assert message_type == CURVES
    return {
        "curves/rows": (3,),
        "curves/survival_sum": (3, bins + 1),
        "curves/at_risk_count": (3, bins + 1),
        "curves/events": (3, bins),
        **metric_sums(sent),
    }


def metric_sums(request: RecordDict) -> dict[str, str | tuple[int, ...]]:
    plan = CurvesRequest.from_record(request).plan
    assert plan is not None
    times, bins = plan.at.size, plan.cuts.size + 1
    shapes: dict[str, str | tuple[int, ...]] = {
        "metric-sums/uno": (5,),
        "metric-sums/antolini": (5,),
        "metric-sums/auc": (2 * times + 3 * times**2,),
        "metric-sums/brier": (1 + 5 * (times + 1),),
        "metric-sums/calibration": ((bins + 1) * (2 * plan.calibration_at + 2),),
    }
    return shapes


def read_curves(request: RecordDict, reply: RecordDict) -> CurvesReply:
    return CurvesReply.from_record(reply, CurvesRequest.from_record(request).plan)


def parsed_again(message_type: str, content: RecordDict, sent: RecordDict) -> RecordDict:
    """What is left of a reply once it was read into its dataclass."""
    if message_type == CURVES:
        return read_curves(sent, content).to_record()
    if message_type == TRAIN:
        metrics = content.metric_records["metrics"]
        return TrainReply(
            arrays=from_array_record(content.array_records["arrays"]),
            num_examples=metrics["num-examples"],  # type: ignore[arg-type]
            loss=metrics["loss"],  # type: ignore[arg-type]
            loss_steps=metrics["loss-steps"],  # type: ignore[arg-type]
            evaluation=EvaluationSums.from_metrics(metrics),
        ).to_record()
    kinds: dict[str, Any] = {
        HELLO: HelloReply,
        STATISTICS: StatisticsReply,
        EVALUATE: EvaluateReply,
    }
    record_: RecordDict = kinds[message_type].from_record(content).to_record()
    return record_


def check_only_what_is_declared(run: Recorded, *, bins: int = BINS) -> None:
    """A reply has the declared keys and shapes, and nothing that its dataclass does not know."""
    for request, reply in run.messages:
        if reply.has_error():
            continue
        kind = request.metadata.message_type
        found = {key: _shape(value) for key, value in leaves(reply.content)}
        expected = declared(kind, features=3, bins=bins, sent=request.content)
        assert found == expected, f"{kind} tells something else than declared"
        again = parsed_again(kind, reply.content, request.content)
        sent, kept = (
            {key: np.asarray(value).tobytes() for key, value in leaves(content)}
            for content in (reply.content, again)
        )
        assert sent == kept, f"{kind} tells something that its dataclass does not know"


def _shape(value: Leaf) -> str | tuple[int, ...]:
    parts = value if isinstance(value, list) else [value]
    if all(isinstance(part, str) for part in parts):
        return TEXT
    return np.shape(value)


def test_only_what_is_declared_leaves(plain: Recorded) -> None:
    check_only_what_is_declared(plain)


@pytest.mark.parametrize(
    ("message", "known"),
    [
        (HelloReply, {"site", "fingerprint", "fault_code", "fault_reasons", "task"}),
        (TaskPart, {"key_bundle", "facts"}),
        (SurvivalFacts, {"horizon_bound", "columns"}),
        (ColumnFacts, {"name", "content", "has_missing", "categories", "moments"}),
        (
            StatisticsReply,
            {"histograms", "moments", "n_events", "n_test", "counts", "data_set"},
        ),
        (EvaluationSums, {"concordance", "rows", "identical"}),
        (TrainReply, {"arrays", "num_examples", "loss", "loss_steps", "evaluation"}),
        (EvaluateReply, {"num_examples", "evaluation", "risk_sets", "risk_moments"}),
        (CurvesReply, {"curves", "metrics"}),
        (SurvivalMetricsSums, {"uno", "antolini", "auc", "brier", "calibration"}),
        (FeatureMoments, {"count", "mean", "m2"}),
        (RiskSetSums, {"at_risk_weight", "events", "at_risk_count"}),
        (GroupCurves, {"rows", "survival_sum", "at_risk_count", "events"}),
    ],
)
def test_a_new_field_is_noticed(message: Any, known: set[str]) -> None:
    """Who adds a field adds it to ``reveals``, to what the strategy says, and here."""
    assert {field.name for field in dataclasses.fields(message)} == known


def test_the_introduction_tells_the_declared_facts_and_no_more(plain: Recorded) -> None:
    for _, _, reply in plain.replies(HELLO):
        part = HelloReply.from_record(reply.content).task
        again = SurvivalFacts.from_facts(part.facts)
        assert part == TaskPart(facts=again.to_facts())
        contents = {(column.content, column.has_missing) for column in again.columns}
        assert contents == {("numbers", False)}
        assert not any(column.categories or column.moments for column in again.columns)


# (c) Enough rows behind every sum ----------------------------------------------------------------


def check_rows_behind_every_sum(run: Recorded) -> None:
    """At least privacy-level rows stand behind each sum, and behind each difference of two."""
    level = int(run.config["survival.privacy-level"])
    for _, _, reply in run.replies(STATISTICS):
        count = reply.content.config_records["statistics"]["count"]
        assert count >= level, "moments of too few rows"  # type: ignore[operator]
    for message_type in (TRAIN, EVALUATE):
        for _, _, reply in run.replies(message_type):
            metrics = reply.content.metric_records["metrics"]
            assert metrics["num-examples"] >= level, "too few rows"  # type: ignore[operator]
            evaluation = EvaluationSums.from_metrics(metrics)
            silent = evaluation.rows == 0 and not any(dataclasses.astuple(evaluation.concordance))
            assert silent or evaluation.rows >= level, "pair counts of too few rows"
    overall = {
        number: EvaluateReply.from_record(reply.content).risk_sets
        for number, _, reply in run.replies(EVALUATE)
    }
    if level == 1:
        return  # asks for nothing: cells may be empty
    for sums in overall.values():
        _check_risk_sets(sums, level)
    for number, _, reply in run.replies(STATISTICS):
        counts = StatisticsReply.from_record(reply.content).counts
        # Two groups may have one slope of counts: they are told apart by their events.
        leaving = _leaving(counts.at_risk_count)
        for cell in _cells([leaving, np.append(counts.events, counts.events[-1])]):
            assert leaving[cell].sum() > level - 1e-6, "cell of too few rows"
        if number in overall:  # the same rows on the same grid: nothing to subtract
            assert (counts.at_risk_count == overall[number].at_risk_count).all()
            assert (counts.events == overall[number].events).all()
    for number, request, reply in run.replies(CURVES):
        asked = CurvesRequest.from_record(request.content)
        told = read_curves(request.content, reply.content)
        assert told.metrics is not None
        _check_metrics(told.metrics, level)
        curves = told.curves
        if curves.rows.any():
            _check_curves(curves, asked.baseline.cumulative, overall[number], level)
        else:
            sums = (curves.at_risk_count, curves.events, curves.survival_sum)
            assert not any(values.any() for values in sums)


def _check_metrics(sums: SurvivalMetricsSums, level: int) -> None:
    """Enough rows, or zeros; and in each bin of the calibration, too."""
    if sums.rows < level:
        assert not any(values.any() for values in sums.to_arrays().values()), "metrics of few rows"
    in_bins = sums.calibration.at_risk_count[:, 0]
    assert ((in_bins == 0) | (in_bins >= level)).all(), "calibration of too few rows"


def _check_risk_sets(sums: RiskSetSums, level: int) -> None:
    """The slots in which counts and weights have one slope are a cell; enough rows leave in it."""
    weight = -np.diff(np.append(sums.at_risk_weight / sums.at_risk_weight[0], 0.0))
    for cell in _cells([_leaving(sums.at_risk_count), weight]):
        assert _leaving(sums.at_risk_count)[cell].sum() > level - 1e-6, "cell of too few rows"
        events = sums.events[cell[cell < sums.events.size]]
        assert events.size == 0 or np.ptp(events) < 1e-7, "events of too few rows"


def _check_curves(curves: GroupCurves, hazard: Floats, overall: RiskSetSums, level: int) -> None:
    """The slots in which all groups have constant shares of the rows leaving are a cell.

    Every group has enough rows in it, and its predicted survival is told at both ends only.
    """
    assert (curves.rows >= level).all(), "a risk group of too few rows"
    assert (curves.at_risk_count[:, 0] == curves.rows).all()
    shares = [_leaving(count) / _leaving(overall.at_risk_count) for count in curves.at_risk_count]
    log_mean = np.log(curves.survival_sum / curves.rows[:, None])
    for cell in _cells(shares):
        for count in curves.at_risk_count:
            assert _leaving(count)[cell].sum() > level - 1e-6, "a group's cell of too few rows"
        first, last = cell[0], min(cell[-1] + 1, hazard.size - 1)
        inner = slice(first, last + 1)
        for values in log_mean:
            line = np.interp(hazard[inner], hazard[[first, last]], values[[first, last]])
            told_finely = "predicted survival of too few rows"
            assert np.allclose(values[inner], line, atol=1e-7), told_finely


def _leaving(at_risk_count: Floats) -> Floats:
    return -np.diff(np.append(at_risk_count, 0.0))


def _cells(slopes: list[Floats]) -> list[NDArray[np.int64]]:
    """Slots in which no slope changes."""
    changes = np.any([np.abs(np.diff(slope)) > 1e-7 for slope in slopes], axis=0)
    return np.split(np.arange(slopes[0].size), np.flatnonzero(changes) + 1)


def test_enough_rows_stand_behind_every_sum(plain: Recorded) -> None:
    check_rows_behind_every_sum(plain)
    told = [read_curves(sent.content, r.content) for _, sent, r in plain.replies(CURVES)]
    assert any(reply.curves.rows.any() for reply in told)  # else nothing was looked at
    assert all(reply.metrics is not None and reply.metrics.rows for reply in told)


@pytest.mark.parametrize("level", [1, 3, 12])
def test_the_privacy_level_is_a_setting(tmp_path: Path, level: int) -> None:
    run = record(cohort(), {"survival.privacy-level": level}, run_dir=tmp_path)
    check_rows_behind_every_sum(run)


def check_sums_are_those_of_the_training_rows(run: Recorded) -> None:
    """What is called a mean over the site's training rows is that, and so on."""
    predictor = SurvivalPredictor.load(run.result.run_folder / "model.npz")
    for number, _, reply in run.replies(STATISTICS):
        rows, told = run.site(number).training, StatisticsReply.from_record(reply.content)
        counts = (told.moments.count, told.n_events)
        assert counts == (len(rows), rows.event.sum()), "sums of other rows"
        means = rows.features.mean(axis=0)
        np.testing.assert_allclose(told.moments.mean, means, rtol=1e-12, err_msg="of other rows")
        squares = rows.features.var(axis=0) * len(rows)
        np.testing.assert_allclose(told.moments.m2, squares, rtol=1e-9)
        assert told.n_test == len(run.site(number).evaluation)
        assert told.counts.at_risk_count[0] == len(rows)
        assert told.counts.events.sum() <= rows.event.sum() + 1e-9
    for number, _, reply in run.replies(HELLO):
        # One of few round numbers, so that it is nobody's time, and few times are longer.
        bound = SurvivalFacts.from_facts(HelloReply.from_record(reply.content).task.facts)
        horizon = bound.horizon_bound
        assert float(f"{horizon:.0e}") == horizon or f"{horizon:.1e}"[:3] == "1.5"
        assert (run.site(number).training.time > horizon).sum() < LEVEL
    for number, _, reply in run.replies(EVALUATE):
        rows, said = run.site(number).training, EvaluateReply.from_record(reply.content)
        table = pd.DataFrame(rows.features, columns=list(rows.feature_names))
        risk = predictor.risk(table)
        assert said.num_examples == len(rows)
        np.testing.assert_allclose(said.risk_moments.mean, [risk.mean()], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(said.risk_sets.at_risk_weight[0], np.exp(risk).sum(), rtol=1e-5)
        assert said.risk_sets.at_risk_count[0] == len(rows)
        assert said.risk_sets.events.sum() <= rows.event.sum() + 1e-9


def test_sums_are_what_they_are_called(plain: Recorded) -> None:
    check_sums_are_those_of_the_training_rows(plain)


def everything_sent(run: Recorded, *, message_types: Sequence[str] | None = None) -> list[bytes]:
    return [
        raw_bytes(reply)
        for request, reply in run.messages
        if message_types is None or request.metadata.message_type in message_types
    ]


def nudged(frame: pd.DataFrame) -> pd.DataFrame:
    """Every time a little longer: the order of rows and their cells stay."""
    return frame.assign(time=frame["time"] * (1 + 1e-9))


def test_exact_times_are_of_no_account(plain: Recorded, tmp_path: Path) -> None:
    """Only the order of rows and the cell of the grid are: no sum of times leaves in disguise."""
    other = record([nudged(frame) for frame in plain.frames], run_dir=tmp_path)
    for (_, before), (_, after) in zip(plain.messages, other.messages, strict=True):
        assert raw_bytes(before) == raw_bytes(after)


def test_the_longest_follow_up_is_not_told(plain: Recorded, tmp_path: Path) -> None:
    """One row may stay twice as long: it is beyond the horizon, and so are too few."""
    settings = {"survival.horizon": 1500.0}
    frames = [frame.copy() for frame in plain.frames]
    longest = frames[0]["time"].idxmax()
    assert frames[0].loc[longest, "time"] > 1500.0
    before = record([frame.copy() for frame in frames], settings, run_dir=tmp_path)
    frames[0].loc[longest, "time"] *= 2
    after = record(frames, settings, run_dir=tmp_path)
    assert everything_sent(after) == everything_sent(before)


def test_too_few_evaluation_rows_tell_nothing(tmp_path: Path) -> None:
    """Fewer evaluation rows than the privacy level may be anything, only their number leaves."""
    settings = {"survival.test-fraction": 0.05}
    before = record(cohort(), settings, run_dir=tmp_path)
    few = before.site(0).evaluation
    assert 0 < len(few) < LEVEL
    frames = cohort()
    rows = frames[0]["time"].isin(few.time)
    assert rows.sum() == len(few)
    frames[0].loc[rows, ["x0", "x1", "x2"]] *= 1.5
    frames[0].loc[rows, "time"] *= 1.25
    after = record(frames, settings, run_dir=tmp_path)
    assert everything_sent(after) == everything_sent(before)


def test_evaluation_rows_are_in_no_sum_of_training_rows(plain: Recorded, tmp_path: Path) -> None:
    """The two parts of a site's rows are told of apart, and enough stand behind each."""
    frames = cohort()
    rows = frames[0]["time"].isin(plain.site(0).evaluation.time)
    frames[0].loc[rows, "x0"] *= 1.5
    after = record(frames, run_dir=tmp_path)
    only = [STATISTICS]
    assert everything_sent(after, message_types=only) == everything_sent(plain, message_types=only)
    for (_, _, old), (_, _, new) in zip(plain.replies(CURVES), after.replies(CURVES), strict=True):
        for key, array in old.content.array_records["curves"].items():
            assert array.data == new.content.array_records["curves"][key].data, key
    for (_, _, old), (_, _, new) in zip(
        plain.replies(EVALUATE), after.replies(EVALUATE), strict=True
    ):
        for key in ("at_risk_weight", "at_risk_count", "events", "risk-mean", "risk-m2"):
            one, two = (m.content.array_records["risk-sets"][key].data for m in (old, new))
            assert one == two, key


# (d) Updates are bounded -------------------------------------------------------------------------


def check_updates_are_clipped(run: Recorded) -> None:
    """No update is longer than the bound (there is no noise in these runs)."""
    for _, request, reply in run.replies(TRAIN):
        assert length_of_update(request, reply) <= CLIP * (1 + 1e-12), "an update beyond the bound"


def length_of_update(request: Message, reply: Message) -> float:
    before = from_array_record(request.content.array_records["arrays"])
    after = from_array_record(reply.content.array_records["arrays"])
    assert before.keys() == after.keys()
    return math.sqrt(
        math.fsum(
            float(square)
            for name, array in before.items()
            for square in (after[name].astype(np.float64) - array.astype(np.float64)).ravel() ** 2
        )
    )


def test_an_update_is_within_the_bound_whatever_the_rows(plain: Recorded, tmp_path: Path) -> None:
    """Two runs that differ in one extreme row, and one without clipping for comparison."""
    frames = cohort()
    frames[0] = with_cell(frames[0], "x0", 3e5, row=int(frames[0]["time"].idxmin()))
    other = record(frames, run_dir=tmp_path)
    for run in (plain, other):
        check_updates_are_clipped(run)
    lengths = [length_of_update(request, reply) for _, request, reply in plain.replies(TRAIN)]
    assert min(lengths) > 0.99 * CLIP  # the bound is reached
    free = record(cohort(), {"survival.dp-mechanism": "none"}, run_dir=tmp_path)
    assert max(length_of_update(request, reply) for _, request, reply in free.replies(TRAIN)) > CLIP


def test_noise_is_added_where_it_is_switched_on(plain: Recorded, tmp_path: Path) -> None:
    noisy = record(cohort(), {"survival.dp-noise-multiplier": 0.05}, run_dir=tmp_path)
    first = zip(plain.replies(TRAIN), noisy.replies(TRAIN), strict=True)
    for number, ((_, _, exact), (_, _, changed)) in enumerate(first):
        if number == len(NAMES):
            break  # of the second round, whose models differ anyway
        one, two = (from_array_record(m.content.array_records["arrays"]) for m in (exact, changed))
        differences = np.concatenate([(two[name] - one[name]).ravel() for name in one])
        assert (differences != 0).mean() > 0.99
        sigma = 0.05 * CLIP / math.sqrt(len(NAMES))
        assert sigma / 2 < differences.std() < sigma * 2


# (e) Every message is in the ledger --------------------------------------------------------------

SENTENCES = {
    HELLO: ("hello", HelloRequest.reveals, f"{HelloReply.reveals}; {SurvivalFacts.reveals}"),
    STATISTICS: ("statistics", StatisticsRequest.reveals, StatisticsReply.reveals),
    TRAIN: ("train", TrainConfig.reveals, TrainReply.reveals),
    EVALUATE: ("evaluate", TrainConfig.reveals, EvaluateReply.reveals),
    CURVES: ("curves", CurvesRequest.reveals, CurvesReply.reveals),
}


def check_ledger(run: Recorded) -> None:
    """The ledger has every message, no other, and says what it reveals."""
    expected: Counter[tuple[object, ...]] = Counter()
    for request, reply in run.messages:
        site = NAMES[request.metadata.dst_node_id - 1]
        step, asked, told = SENTENCES[request.metadata.message_type]
        expected[(step, "server", site, content_bytes(request.content), asked)] += 1
        if reply.has_error():
            size = len((reply.error.reason or "").encode())
            expected[(step, site, "server", size, "a fault")] += 1
        else:
            expected[(step, site, "server", content_bytes(reply.content), told)] += 1
    rows = run.result.ledger
    known = {sentence for words in SENTENCES.values() for sentence in words[1:]}
    found = Counter(
        (
            row["step"],
            row["sender"],
            row["receiver"],
            row["bytes"],
            row["reveals"] if row["reveals"] in known else "a fault",
        )
        for row in rows
    )
    assert found == expected, "the ledger is not what was sent"
    for row in rows:
        assert row["reveals"].strip(), "a message without words in the ledger"
        assert "not declared" not in row["reveals"]
        assert row["sealed"] is False
    assert [row["exchange"] for row in rows] == sorted(row["exchange"] for row in rows)


def test_every_message_is_in_the_ledger(plain: Recorded) -> None:
    check_ledger(plain)
    assert len(plain.result.ledger) == 2 * len(NAMES) * (2 + 4)


# (f) Faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", ["statistics", "train", "evaluate", "curves"])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret 123.456"),
        KeyError(123.456),
        RuntimeError("first line\nsecret 123.456"),
        pd.errors.ParserError("secret 123.456"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_of_an_exception_only_its_type_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, handler: str, error: Exception
) -> None:
    def fail(message: Message, site: SurvivalSite) -> Message:
        raise error

    monkeypatch.setattr(site_half, handler, fail)
    run = record(cohort(), {"survival.rounds": 1}, run_dir=tmp_path)
    assert run.result.summary["status"] == "failed"
    failed = [reply for _, reply in run.messages if reply.has_error()]
    assert len(failed) == len(NAMES)
    for reply in failed:
        reason = f"internal: {type(error).__name__} at the site; its log says more"
        assert reply.error.reason == reason
    assert f"{handler}: {type(error).__name__} at the site" in run.result.summary["reason"]
    for path in run.result.run_folder.rglob("*.json*"):
        assert "123.456" not in path.read_text(), path.name
    check_ledger(run)


def test_of_an_exception_while_reading_the_data_only_its_type_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        raise ValueError("could not convert string to float: 'secret 123.456'")

    monkeypatch.setattr(site_half, "read_survival_data", fail)
    run = record(cohort(), run_dir=tmp_path)
    assert run.result.summary["status"] == "refused"
    assert "ValueError while reading the data" in run.result.summary["reason"]
    assert not any("123.456" in text for _, reply in run.messages for text in texts(reply))
    check_ledger(run)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("time", -4321.987),
        ("time", "Anna Muster"),
        ("time", np.inf),
        ("time", pd.Timestamp("1971-02-03")),
        ("event", 4321.987),
        ("event", "Anna Muster"),
        ("x1", "Anna Muster"),
        ("x1", 4.321987e199),
        ("x1", np.nan),
        ("x1", None),
        ("x1", complex(1, 4321.987)),
    ],
)
def test_faults_in_the_data_are_told_without_values(
    tmp_path: Path, column: str, value: object
) -> None:
    frames = cohort()
    frames[1][column] = frames[1][column].astype(object)
    frames[1].loc[3, column] = value
    run = record(frames, run_dir=tmp_path)
    assert run.result.summary["status"] == "refused"
    assert run.result.summary["reason"].startswith("south: ")
    cells = [str(cell) for cell in frames[1].drop(columns="event").to_numpy().ravel()]
    cells += ["Anna", "4321", "1971", "4.32"]
    cells = [cell for cell in cells if len(cell) > 3]
    for _, reply in run.messages:
        said = "\n".join(texts(reply))
        assert not any(cell in said for cell in cells), said
    check_ledger(run)


# The alarms ring ---------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[Recorded], None]


def told_also(message: type, record_: str, key: str, value: Callable[[Any], Any]) -> Patch:
    """A reply with one more entry in one of its records."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        to_record = message.to_record  # type: ignore[attr-defined]

        def more(self: Any) -> RecordDict:
            content: RecordDict = to_record(self)
            entries = content[record_]
            if isinstance(entries, ArrayRecord):
                entries[key] = ArrayRecord([np.asarray(value(self))])["0"]
            else:
                assert isinstance(entries, MetricRecord | ConfigRecord)
                entries[key] = value(self)
            return content

        monkeypatch.setattr(message, "to_record", more)

    return patch


def replaced(module: object, name: str, function: Callable[..., Any]) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(module, name, function)


def moments_of_few_rows(features: Floats) -> FeatureMoments:
    return REAL_MOMENTS(features[:2])


def moments_with_a_row(features: Floats) -> FeatureMoments:
    real = REAL_MOMENTS(features)
    return FeatureMoments(real.count, features[0], real.m2)


def groups_of_any_size(*arguments: Any, privacy_level: int, **keywords: Any) -> GroupCurves:
    return REAL_GROUPS(*arguments, privacy_level=1, **keywords)


def survival_at_all_times(
    time: Floats, event: Any, risk: Floats, *, baseline: Any, cuts: Floats, **keywords: Any
) -> GroupCurves:
    told = REAL_GROUPS(time, event, risk, baseline=baseline, cuts=cuts, **keywords)
    if told.silent:
        return told
    survival, group = baseline.survival(baseline.grid, risk), np.searchsorted(cuts, risk, "right")
    exact = [survival[group == number].sum(axis=0) for number in range(len(cuts) + 1)]
    return dataclasses.replace(told, survival_sum=np.stack(exact))


def evaluation_of_any_size(
    model: Any, site: SurvivalSite, standardizer: Any, **keywords: Any
) -> EvaluationSums:
    config = site.config.model_copy(update={"privacy_level": 1})
    return REAL_EVALUATE(model, dataclasses.replace(site, config=config), standardizer, **keywords)


def a_row_in_the_model(site: SurvivalSite, *others: Any) -> dict[str, NDArray[Any]]:
    arrays = REAL_PRIVATIZED(site, *others)
    name = next(iter(arrays))
    changed = arrays[name].copy()
    changed.ravel()[:3] = site.training.features[0]
    return {**arrays, name: changed}


def a_standardized_row_in_the_model(
    site: SurvivalSite, received: Any, model: Any, request: TrainConfig
) -> dict[str, NDArray[Any]]:
    arrays = REAL_PRIVATIZED(site, received, model, request)
    name = next(iter(arrays))
    changed = arrays[name].copy()
    changed.ravel()[:3] = request.standardizer.apply(site.training.features[:1])[0]
    return {**arrays, name: changed}


def a_loud_reader(frame: pd.DataFrame, **keywords: Any) -> Any:
    raise SiteFault("bad-data", f"time {frame['time'].iloc[0]} is too long")


def fine_statistics(message: Message, site: SurvivalSite) -> Message:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_half, "coarsen", lambda sums, **_: sums)
        return REAL_STATISTICS(message, site)


REAL_STATISTICS = site_half.statistics
REAL_MOMENTS = FeatureMoments.of
REAL_GROUPS = GroupCurves.of
REAL_EVALUATE = site_half._evaluate
REAL_PRIVATIZED = site_half.private_update

FEW_TO_EVALUATE = {"survival.test-fraction": 0.05}

ALARMS: dict[Check, str] = {
    check_no_value_of_a_row: "a value of a row in",
    check_no_derived_value_of_a_row: "values of single rows in",
    check_only_what_is_declared: "tells something",
    check_rows_behind_every_sum: "too few rows",
    check_sums_are_those_of_the_training_rows: "of other rows",
    check_updates_are_clipped: "beyond the bound",
}


def moments_of_some_rows(features: NDArray[np.float64]) -> FeatureMoments:
    """Under the number of all: another number of rows than is trained on, the server refuses."""
    return dataclasses.replace(REAL_MOMENTS(features[:20]), count=len(features))


@pytest.mark.parametrize(
    ("leak", "check", "config"),
    [
        (
            replaced(site_half, "horizon_bound", lambda times, **_: float(times.max())),
            check_no_value_of_a_row,
            {},
        ),
        (
            replaced(FeatureMoments, "of", staticmethod(moments_with_a_row)),
            check_no_value_of_a_row,
            {},
        ),
        (
            replaced(site_half, "private_update", a_row_in_the_model),
            check_no_value_of_a_row,
            {},
        ),
        (
            replaced(site_half, "private_update", a_standardized_row_in_the_model),
            check_no_derived_value_of_a_row,
            {"survival.dp-clip-norm": 100.0},  # by less the server sets the update aside
        ),
        (replaced(site_half, "read_survival_data", a_loud_reader), check_no_value_of_a_row, {}),
        (
            told_also(EvaluateReply, "risk-sets", "risks", lambda reply: reply.risk_moments.mean),
            check_only_what_is_declared,
            {},
        ),
        (
            told_also(StatisticsReply, "statistics", "n-rows", lambda reply: 60),
            check_only_what_is_declared,
            {},
        ),
        (
            told_also(StatisticsReply, "statistics", "count", lambda reply: [60, 60]),
            check_only_what_is_declared,
            {},
        ),
        (
            told_also(TrainReply, "metrics", "largest-loss", lambda reply: 1.5),
            check_only_what_is_declared,
            {},
        ),
        (
            told_also(TrainReply, "arrays", "gradient", lambda reply: np.ones(3)),
            check_only_what_is_declared,
            {},
        ),
        (
            replaced(site_half, "coarsen", lambda sums, **_: sums),
            check_rows_behind_every_sum,
            {},
        ),
        (
            replaced(site_half, "statistics", fine_statistics),
            check_rows_behind_every_sum,
            {},
        ),
        (
            replaced(curves_module, "coarsen", lambda sums, **_: sums),
            check_rows_behind_every_sum,
            {},
        ),
        (
            replaced(curves_module, "common_borders", lambda leaving, fine, **_: fine),
            check_rows_behind_every_sum,
            {},
        ),
        (
            replaced(GroupCurves, "of", staticmethod(survival_at_all_times)),
            check_rows_behind_every_sum,
            {},
        ),
        (
            replaced(GroupCurves, "of", staticmethod(groups_of_any_size)),
            check_rows_behind_every_sum,
            {},
        ),
        (
            replaced(site_half, "_evaluate", evaluation_of_any_size),
            check_rows_behind_every_sum,
            FEW_TO_EVALUATE,
        ),
        (
            replaced(FeatureMoments, "of", staticmethod(moments_of_few_rows)),
            check_rows_behind_every_sum,
            {},
        ),
        (
            replaced(FeatureMoments, "of", staticmethod(moments_of_some_rows)),
            check_sums_are_those_of_the_training_rows,
            {},
        ),
        (
            replaced(site_half, "private_update", lambda *a: arrays_of(a[2].network)),
            check_updates_are_clipped,
            {},
        ),
    ],
    ids=[
        "longest time",
        "row as mean",
        "row in the model",
        "standardized row in the model",
        "value in a fault",
        "further sum",
        "further count",
        "list for a number",
        "further metric",
        "further array",
        "fine risk sets",
        "fine counts by time",
        "fine curves",
        "cells of all rows",
        "survival at all times",
        "small risk groups",
        "small evaluation",
        "sums over two rows",
        "sums over some rows",
        "update as it is",
    ],
)
def test_a_leak_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    leak: Patch,
    check: Check,
    config: Config,
) -> None:
    check(record(cohort(), config, run_dir=tmp_path))
    leak(monkeypatch)
    run = record(cohort(), config, run_dir=tmp_path)
    with pytest.raises(AssertionError, match=ALARMS[check]):
        check(run)


def test_times_in_disguise_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plain: Recorded
) -> None:
    train = site_half.train

    def chatty(message: Message, site: SurvivalSite) -> Message:
        reply = train(message, site)
        loss = reply.content.metric_records["metrics"]["loss"]
        reply.content.metric_records["metrics"]["loss"] = loss + site.training.time.mean()  # type: ignore[operator]
        return reply

    monkeypatch.setattr(site_half, "train", chatty)
    with pytest.raises(AssertionError):
        test_exact_times_are_of_no_account(record(cohort(), run_dir=tmp_path), tmp_path)


def test_a_message_that_is_not_written_down_is_noticed(plain: Recorded) -> None:
    rows = [row for row in plain.result.ledger if row["step"] != "curves"]
    silent = dataclasses.replace(plain, result=dataclasses.replace(plain.result, ledger=rows))
    with pytest.raises(AssertionError, match="not what was sent"):
        check_ledger(silent)


def test_the_server_tells_a_site_nothing_of_one_other(plain: Recorded) -> None:
    """What goes to sites is pooled: the same for all of them, and of all of them."""
    by_exchange: dict[tuple[str, int], set[bytes]] = {}
    for request, _ in plain.messages:
        key = (request.metadata.message_type, 0)
        if request.metadata.message_type == TRAIN:
            settings = request.content.config_records["config"]
            key = (TRAIN, int(settings["server-round"]))  # type: ignore[arg-type]
        by_exchange.setdefault(key, set()).add(raw_bytes(request))
    assert len(by_exchange) == 4 + 2
    assert all(len(contents) == 1 for contents in by_exchange.values())
    (hello,) = by_exchange[(HELLO, 0)]
    assert code_fingerprint().encode() in hello
