"""A server that asks a site again and again, with other requests, or with none that are any."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedapp import client_app
from tasks.survival.curves_messages import CURVES
from tasks.survival.messages import EVALUATE, TRAIN
from tasks.survival.set_up_messages import STATISTICS
from tests.test_site_limits import SURVIVAL, Federation, Value, answer, federation, limited

Change = Callable[[RecordDict], object]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    values: dict[str, Value] = {**SURVIVAL, "survival.dp-noise-multiplier": 1.0}
    with federation(tmp_path_factory.mktemp("run"), {}, values) as found:
        assert found.status["status"] == "ok", found.reason
        yield found


def put(record: str, key: str, value: Any) -> Change:
    return lambda content: content[record].__setitem__(key, value)


def put_array(record: str, key: str, change: Callable[[Any], Any]) -> Change:
    def tamper(content: RecordDict) -> None:
        arrays = content.array_records[record]
        arrays[key] = Array(np.asarray(change(arrays[key].numpy().copy())))

    return tamper


def other_model(content: RecordDict) -> None:
    arrays = content.array_records["arrays"]
    for name, array in list(arrays.items()):
        arrays[name] = Array(array.numpy() + np.float32(1))


ANOTHER: list[tuple[str, Change]] = [
    (STATISTICS, put("request", "grid-horizon", 9.5)),
    (STATISTICS, lambda content: content.update({"more": ConfigRecord({"a": 1})})),
    (TRAIN, other_model),
    (TRAIN, put("config", "server-round", 1)),
    (TRAIN, put("config", "grid-horizon", 3.0)),
    (EVALUATE, other_model),
    (EVALUATE, put("config", "server-round", 77)),
    (EVALUATE, put("config", "grid-horizon", 3.0)),
    (CURVES, other_model),
    (CURVES, put_array("setting", "cuts", lambda cuts: cuts + 0.1)),
]


@pytest.mark.parametrize(("kind", "change"), ANOTHER)
def test_a_step_is_answered_for_one_request_of_a_run(
    run: Federation, kind: str, change: Change
) -> None:
    """Sums under two models, or on two grids, are those of single rows by subtraction."""
    message, context = run.grid.again(kind)
    assert not answer(message, context)  # sent twice
    change(message.content)
    assert answer(message, context).startswith("second-request: ")


def finer_grid(content: RecordDict) -> None:
    """The same horizon, in one cell more."""
    setting = content.array_records["setting"]
    grid, hazard = (setting[name].numpy() for name in ("grid", "cumulative-hazard"))
    finer = np.linspace(0.0, grid[-1], grid.size + 1)
    setting["grid"] = Array(finer)
    setting["cumulative-hazard"] = Array(np.interp(finer, grid, hazard))
    content.pop("plan")


OTHER_TIMES: list[tuple[str, Change]] = [
    (STATISTICS, put("request", "grid-horizon", 3.0)),
    (TRAIN, put("config", "grid-horizon", 3.0)),
    (TRAIN, put("config", "label-cuts", [0.0, 0.5])),
    (EVALUATE, put("config", "label-cuts", [0.0, 0.5])),
    (CURVES, put_array("setting", "label-cuts", lambda cuts: np.append(cuts, 2 * cuts[-1]))),
    (CURVES, finer_grid),
]


@pytest.mark.parametrize(("kind", "change"), OTHER_TIMES)
def test_all_steps_of_a_run_are_on_one_grid_of_times(
    run: Federation, kind: str, change: Change
) -> None:
    """Also the first request of a step: two partitions of time part single rows from others."""
    message, context = run.grid.again(kind)
    for key in [key for key in context.state if key.startswith("answered-once")]:
        del context.state[key]
    first = copy.deepcopy(context)
    assert not answer(message, first)
    change(message.content)
    assert answer(message, context).startswith("second-request: another grid of times")


def test_noise_is_drawn_once_for_a_round(run: Federation) -> None:
    """Without a maximum of epsilon, too: a hundred draws would average out."""
    message, context = run.grid.again(TRAIN)
    replies = [client_app.app(copy.deepcopy(message), context) for _ in range(3)]
    sent = [
        {name: array.data for name, array in reply.content.array_records["arrays"].items()}
        for reply in replies
    ]
    assert sent[0] == sent[1] == sent[2]


def test_a_refusal_is_an_answer_too(run: Federation) -> None:
    """That a model diverges says that some row is beyond a value of the server's choice."""
    message, context = run.grid.again(TRAIN)
    message.content.config_records["config"]["server-round"] = 3
    again = copy.deepcopy(message)
    arrays = again.content.array_records["arrays"]
    for name, array in list(arrays.items()):
        arrays[name] = Array(np.full_like(array.numpy(), 3e38))
    assert answer(again, context).startswith("diverged: ")
    assert answer(again, context).startswith("diverged: ")
    assert answer(message, context).startswith("second-request: ")


def test_a_node_that_lost_its_memory_takes_part_again(run: Federation) -> None:
    message, context = run.grid.again(TRAIN)
    context.state = RecordDict()
    assert not answer(message, context)


MALFORMED: list[tuple[str, Change, str]] = [
    (kind, lambda content: content.clear(), f"{record}: must be ")
    for kind, record in (
        (STATISTICS, "request"),
        (TRAIN, "config"),
        (EVALUATE, "config"),
        (CURVES, "setting"),
    )
]
MALFORMED += [
    (kind, lambda content: content.update({"config": MetricRecord({"a": 1})}), "config: must be a")
    for kind in (TRAIN, EVALUATE)
]
MALFORMED += [
    (kind, lambda content: content.pop("arrays"), "arrays: must be an ArrayRecord")
    for kind in (TRAIN, EVALUATE, CURVES)
]
MALFORMED += [
    (TRAIN, put("config", key, value), f"{key}")
    for key, values in {
        "server-round": ("1", 2.0, True, -1, [3]),
        "num-clients": ("3", 2.5, True),
        "feature-mean": ("x", [float("nan"), 0.0], ["a", "b"], 3.0, [1.0]),
        "feature-scale": ([0.0, 1.0], [-1.0, 1.0], "x"),
        "grid-horizon": ("5", 0.0, -1.0, float("inf"), float("nan"), True),
        "label-cuts": ("a", [float("nan")], 1.0),
        "feature-encoding": (3, "{", "[]", '[{"name": "x1"}]', '{"a": 1}', "7", b"x"),
    }.items()
    for value in values
]
MALFORMED += [
    (STATISTICS, put("request", key, value), f"{key}")
    for key, values in {
        "grid-horizon": ("5", 0, float("inf")),
        "encoding": (3, "{", "null", "[1]", '[{"name": []}]'),
        "median-columns": ("x1", [1.0]),
        "median-low": ([1.0], ["a"], "x"),
    }.items()
    for value in values
]
MALFORMED += [
    (CURVES, put_array("setting", "grid", lambda grid: grid**2 / grid[-1]), "grid: must be of "),
    (CURVES, put_array("setting", "grid", lambda grid: grid[::-1]), "grid"),
    (CURVES, put_array("setting", "grid", lambda grid: grid.astype(np.float32)), "grid"),
    (CURVES, put_array("setting", "center", lambda _: np.array([1.0, 2.0])), "center"),
    (CURVES, put_array("setting", "cuts", lambda cuts: cuts * np.nan), "cuts: must be finite"),
    (CURVES, put_array("setting", "cumulative-hazard", lambda h: h[:-1]), "cumulative-hazard"),
    (CURVES, put_array("plan", "plan", lambda flags: flags[:2]), "plan: must be a plan"),
    (CURVES, put_array("plan", "grid", lambda grid: grid * 2), "plan"),
    (CURVES, lambda content: content.update({"plan": ConfigRecord({"a": 1})}), "plan: must be"),
    (CURVES, lambda content: content.update({"encoding": ArrayRecord()}), "encoding: must be"),
]


@pytest.mark.parametrize(("kind", "change", "words"), MALFORMED)
def test_a_request_that_is_none_is_named_by_its_field(
    run: Federation, kind: str, change: Change, words: str
) -> None:
    message, context = run.grid.again(kind)
    context.state = RecordDict()
    change(message.content)
    said = answer(message, context)
    assert said.startswith("bad-request: ")
    assert words in said


def test_arrays_that_numpy_cannot_read_are_named(run: Federation) -> None:
    message, context = run.grid.again(TRAIN)
    context.state = RecordDict()
    arrays = message.content.array_records["arrays"]
    name, array = next(iter(arrays.items()))
    for stype, data in ((array.stype, b"no array"), ("pickle", array.data)):
        arrays[name] = Array(dtype=array.dtype, shape=tuple(array.shape), stype=stype, data=data)
        assert "bad-request" in answer(message, context)
        assert "arrays: must be arrays of numbers" in answer(message, context)


def test_a_run_with_a_maximum_gives_no_second_answer_either(tmp_path: Path) -> None:
    with federation(tmp_path, limited(tmp_path), SURVIVAL) as run:
        message, context = run.grid.again(EVALUATE)
        assert not answer(message, context)
        other_model(message.content)
        assert answer(message, context).startswith("second-request: ")
