"""A site's handlers: a model that has diverged, and what reaches the curves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from tasks.site.faults import SiteFault
from tasks.survival import client
from tasks.survival.baseline import BaselineHazard
from tasks.survival.client import SurvivalSite
from tasks.survival.config import SurvivalConfig
from tasks.survival.curves import GroupCurves
from tasks.survival.curves_messages import CurvesReply, CurvesRequest
from tasks.survival.messages import (
    Arrays,
    TrainConfig,
    to_array_record,
)
from tasks.survival.models import arrays_of, build
from tasks.survival.risk_sets import time_grid
from tasks.survival.standardization import FeatureMoments
from tests.patients import patients

BASELINE = BaselineHazard(time_grid(20.0, 16), np.linspace(0, 2, 17), center=0.75)


@pytest.fixture(scope="module")
def site() -> SurvivalSite:
    config = SurvivalConfig.model_validate({"hidden-layers": "4", "test-fraction": 0.4})
    return SurvivalSite.prepare(
        patients(90),
        name="north",
        data_set="",
        time="time",
        event="event",
        config=config,
        seed=0,
    )


@pytest.fixture
def arrays(site: SurvivalSite) -> Arrays:
    network = build(
        site.config.model, n_features=3, hidden_layers=(4,), dropout=site.config.dropout, seed=0
    ).network
    return arrays_of(network)


def message_of(
    kind: str, site: SurvivalSite, arrays: Arrays, cuts: tuple[float, ...] = (-0.1, 0.1)
) -> Message:
    """Stand-in for a message: its content is all that a handler looks at before it replies."""
    standardizer = FeatureMoments.of(site.training.features).standardizer()
    record = to_array_record(arrays)
    if kind == "curves":
        label_cuts = np.array([0.0, 10.0, 20.0])
        request = CurvesRequest(record, standardizer, BASELINE, np.array(cuts), label_cuts)
        content = request.to_record()
    else:
        config = TrainConfig(standardizer=standardizer, grid_horizon=20.0).to_config()
        config["server-round"] = 1
        content = RecordDict({"arrays": record, "config": config})
    return cast(Message, SimpleNamespace(content=content))


@pytest.mark.parametrize("kind", ["train", "evaluate", "curves"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_model_that_has_diverged_is_named(
    site: SurvivalSite, arrays: Arrays, kind: str, value: float
) -> None:
    for name, array in arrays.items():
        arrays[name] = np.full_like(array, value)
    with pytest.raises(SiteFault) as caught:
        getattr(client, kind)(message_of(kind, site, arrays), site)
    assert caught.value.code == "diverged"
    assert "lower survival.learning-rate = " in str(caught.value)


def test_a_request_for_curves_is_read_as_it_was_sent(site: SurvivalSite, arrays: Arrays) -> None:
    read = CurvesRequest.from_record(message_of("curves", site, arrays).content)
    assert read.baseline.center == BASELINE.center
    np.testing.assert_array_equal(read.baseline.grid, BASELINE.grid)
    np.testing.assert_array_equal(read.baseline.cumulative, BASELINE.cumulative)
    np.testing.assert_array_equal(read.cuts, [-0.1, 0.1])
    np.testing.assert_array_equal(read.label_cuts, [0, 10, 20])


def test_curves_are_those_of_the_training_rows(
    site: SurvivalSite, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(content: RecordDict, *, reply_to: Any) -> GroupCurves:
        return CurvesReply.from_record(content).curves

    monkeypatch.setattr(client, "Message", reply)
    training = site.training
    standardizer = FeatureMoments.of(training.features).standardizer()
    message = message_of("curves", site, arrays)
    model, _ = site.model(message, standardizer, horizon=20.0, cuts=np.array([0.0, 10.0, 20.0]))
    risk = model.risk(standardizer.apply(training.features))
    low, high = np.quantile(risk, [1 / 3, 2 / 3])
    message = message_of("curves", site, arrays, cuts=(low, high))
    sent = cast(GroupCurves, client.curves(message, site))
    expected = GroupCurves.of(
        training.time,
        training.event,
        risk,
        cuts=[low, high],
        baseline=BASELINE,
        privacy_level=site.config.privacy_level,
    )
    assert not expected.silent
    assert sent.rows.sum() == len(training)
    for name in ("rows", "survival_sum", "at_risk_count", "events"):
        np.testing.assert_array_equal(getattr(sent, name), getattr(expected, name))


@pytest.mark.parametrize("clients", [0, -4, 1001, 10**9])
def test_no_noise_is_divided_by_a_number_of_clients_that_nobody_has(
    site: SurvivalSite, arrays: Arrays, clients: int
) -> None:
    message = message_of("train", site, arrays)
    message.content.config_records["config"]["num-clients"] = clients
    with pytest.raises(SiteFault, match="must be 1 to 1000") as caught:
        client.train(message, site)
    assert caught.value.code == "unbelievable-clients"
