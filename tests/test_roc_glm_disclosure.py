"""Recorded runs of the ROC-GLM task: what leaves a site is what the release says, and no more.

Each alarm is tried on a release that discloses more, too: one that never rings would be none.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from fedapp import simulation
from fedapp.simulation import InProcessGrid, SimulationResult, simulate
from fedapp.site_data import register_frame
from tasks.roc_glm import client as site_half
from tasks.roc_glm.counts import count_in_cells, equal_cuts
from tasks.roc_glm.counts_messages import COUNTS, ROC_GLM_FISHER, CountsReply
from tasks.roc_glm.messages import RELEASE, MaskedReply, ReleaseReply, ReleaseRequest
from tasks.roc_glm.rows import RocRows
from tasks.secure.identity import create_identity
from tasks.secure.keys import SiteKeys
from tasks.secure.roster import Roster
from tasks.site.faults import SiteFault
from tasks.site.messages import HELLO
from tests.roc_glm_reference import rows_of

Value = bool | int | float | str
NAMES = ("east", "north", "south", "west")
COUNTS_KEYS = ("threshold-counts", "number", "moments", "counts", "sums")
LARGE = 2**32
"""Above any count or whole part; a uniform word is smaller once in 2**31 times."""


@dataclass(frozen=True)
class Recorded:
    """A run, the rows of its sites, every message with its reply, and the nodes' last state."""

    rows: dict[str, RocRows]
    result: SimulationResult
    messages: list[tuple[Message, Message]]
    grid: InProcessGrid

    def replies(self, message_type: str) -> Iterator[tuple[str, Message]]:
        """Site and reply, of one message type."""
        for request, reply in self.messages:
            if request.metadata.message_type == message_type:
                yield NAMES[request.metadata.dst_node_id - 1], reply


def cohort(rows: int = 240) -> list[pd.DataFrame]:
    generator = np.random.default_rng(8)
    score = generator.random(rows)
    label = (generator.random(rows) < 0.1 + 0.8 * score).astype(int)
    table = pd.DataFrame({"score": score, "label": label})
    cut = [0, 45, 98, 161, rows]
    return [table.iloc[low:high] for low, high in itertools.pairwise(cut)]


def record(directory: Path, config: Mapping[str, Value]) -> Recorded:
    messages: list[tuple[Message, Message]] = []
    grids: list[InProcessGrid] = []

    class RecordingGrid(InProcessGrid):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            grids.append(self)

        def _handle(self, message: Message) -> Message:
            reply = super()._handle(message)
            messages.append((message, copy.deepcopy(reply)))
            return reply

    frames = cohort()
    full = {
        "roc-glm.allow-score-disclosure": True,
        "run-dir": str(directory),
        **config,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "InProcessGrid", RecordingGrid)
        result = simulate("roc-glm", sites=frames, config=full, site_names=NAMES)
    rows = {n: rows_of(f["score"], f["label"]) for n, f in zip(NAMES, frames, strict=True)}
    return Recorded(rows, result, messages, grids[0])


def numbers(message: Message) -> dict[str, NDArray[np.float64]]:
    """Every number of a message, by record and key; flags, words and bytes left out."""
    found: dict[str, NDArray[np.float64]] = {}
    for name, record_ in message.content.config_records.items():
        for key, value in record_.items():
            values = value if isinstance(value, list) else [value]
            kept = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
            if kept:
                found[f"{name}/{key}"] = np.array(kept, dtype=np.float64)
    for name, arrays in message.content.array_records.items():
        for key, array in arrays.items():
            if array.numpy().size and array.numpy().dtype != np.uint64:
                found[f"{name}/{key}"] = array.numpy().astype(np.float64).ravel()
    assert not message.content.metric_records
    return found


def disclosed_by(run: Recorded) -> dict[str, set[str]]:
    """By message type: where replies have numbers."""
    found: dict[str, set[str]] = {}
    for request, reply in run.messages:
        kind = request.metadata.message_type
        found.setdefault(kind, set()).update(numbers(reply))
    return found


def words_of(run: Recorded, message_type: str) -> dict[str, NDArray[np.int64]]:
    return {
        site: MaskedReply.from_record(reply.content).masked.words.view(np.int64)
        for site, reply in run.replies(message_type)
    }


# Under masks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["one-shot", "fisher"])
def test_under_masks_nothing_of_a_site_is_in_clear(mode: str, tmp_path: Path) -> None:
    run = record(tmp_path, {"roc-glm.release": "secure-counts", "roc-glm.mode": mode})
    assert run.result.summary["status"] == "ok"
    disclosed = disclosed_by(run)
    assert disclosed.pop(HELLO) == {"facts/dropped"}
    assert all(where == set() for where in disclosed.values())
    assert set(disclosed) == {RELEASE} | ({ROC_GLM_FISHER} if mode == "fisher" else set())
    for kind in disclosed:
        vectors = [
            MaskedReply.from_record(reply.content).masked.words.view(np.int64)
            for _, reply in run.replies(kind)
        ]
        assert all((np.abs(vector.astype(np.float64)) > LARGE).all() for vector in vectors)
    assert all(name not in str(run.result.summary["sites"]) for name in ("n-positive", "auc"))


def test_the_alarm_rings_for_counts_in_clear(tmp_path: Path) -> None:
    run = record(tmp_path, {"roc-glm.release": "binned"})
    disclosed = disclosed_by(run)
    assert {"facts/n-positive", "facts/n-negative"} < disclosed[HELLO]
    assert {"arrays/negative", "arrays/positive", "arrays/counts"} < disclosed[RELEASE]


def test_masks_cancel_in_the_sum_of_all_sites_and_of_no_fewer(tmp_path: Path) -> None:
    run = record(tmp_path, {"roc-glm.release": "secure-counts"})
    words = words_of(run, RELEASE)
    pooled = np.sum([count_in_cells(r, equal_cuts(50)).negative for r in run.rows.values()], axis=0)
    total = np.sum(list(words.values()), axis=0)
    assert total[:50].tolist() == pooled.tolist()
    assert total[-1] == 0
    for left_out in NAMES:
        part = np.sum([w for name, w in words.items() if name != left_out], axis=0)
        assert (np.abs(part.astype(np.float64)) > LARGE).all()


def test_masks_are_new_in_every_run(tmp_path: Path) -> None:
    first, second = (
        words_of(record(tmp_path, {"roc-glm.release": "secure-counts"}), RELEASE) for _ in range(2)
    )
    assert all((first[name] != second[name]).all() for name in NAMES)


def test_shared_noise_is_masked_too(tmp_path: Path) -> None:
    config = {"roc-glm.release": "noisy-counts", "roc-glm.secure": True}
    run = record(tmp_path, config)
    disclosed = disclosed_by(run)
    assert disclosed[RELEASE] == set()
    assert disclosed[HELLO] == {"facts/dropped", "facts/n-negative", "facts/n-positive"}


# A site's own defences ---------------------------------------------------------------------------


def ask(run: Recorded, node: int, content: Any, message_type: str) -> Message:
    simulation._become_server(run.grid.run.run_id)
    context: Context = run.grid.contexts[node]
    context.node_config["data-path"] = f"memory:{register_frame(cohort()[node - 1])}"
    message = Message(content, dst_node_id=node, message_type=message_type)
    return run.grid._handle(message)


def begin_anew(run: Recorded, node: int) -> None:
    """Bring a node back to where it is after the introduction."""
    run.grid.contexts[node].state = RecordDict()
    assert not ask(run, node, request_of(run, HELLO).content, HELLO).has_error()


def request_of(run: Recorded, message_type: str) -> Message:
    return next(req for req, _ in run.messages if req.metadata.message_type == message_type)


def test_noise_is_drawn_once_in_a_run(tmp_path: Path) -> None:
    for release in ("noisy-scores", "noisy-counts", "noisy-histogram"):
        run = record(tmp_path, {"roc-glm.release": release})
        said = dict(run.replies(RELEASE))[NAMES[0]]
        again = ask(run, 1, request_of(run, RELEASE).content, RELEASE)
        first, second = (ReleaseReply.from_record(m.content) for m in (said, again))
        assert first.negative.tolist() == second.negative.tolist()
        assert first.positive.tolist() == second.positive.tolist()


def test_keys_are_drawn_once_and_no_second_roster_is_answered(tmp_path: Path) -> None:
    run = record(tmp_path, {"roc-glm.release": "secure-counts"})
    hello = dict(run.replies(HELLO))
    own = hello[NAMES[0]].content.config_records["keys"]["bundle"]
    again = ask(run, 1, request_of(run, HELLO).content, HELLO)
    assert again.content.config_records["keys"]["bundle"] == own
    asked = ReleaseRequest.from_record(request_of(run, RELEASE).content)
    name = f"run-{run.grid.run.run_id}"
    invented = [SiteKeys.generate(site=site, run=name).public for site in ("ghost", "phantom")]
    roster = Roster.from_bundles([bytes(own), *invented], run=name)  # type: ignore[arg-type]
    other = ReleaseRequest(asked.cuts, asked.is_probability, 1.0, roster.to_bytes())
    reply = ask(run, 1, other.to_record(), RELEASE)
    assert reply.has_error()
    assert reply.error.reason is not None
    assert reply.error.reason.startswith("second-roster")


def test_a_site_answers_only_what_its_release_allows(tmp_path: Path) -> None:
    scores = record(tmp_path, {"roc-glm.release": "noisy-scores"})
    masked = record(tmp_path, {"roc-glm.release": "secure-counts"})
    reply = ask(masked, 1, request_of(scores, COUNTS).content, COUNTS)
    assert reply.has_error()
    assert "do not leave with release = 'secure-counts'" in str(reply.error.reason)
    asked = ReleaseRequest.from_record(request_of(masked, RELEASE).content)
    fine = ReleaseRequest(equal_cuts(1000), asked.is_probability, 1.0, asked.roster)
    begin_anew(masked, 1)
    reply = ask(masked, 1, fine.to_record(), RELEASE)
    assert "cut points that are not those of the configuration" in str(reply.error.reason)


# With noise --------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["noisy-counts", "noisy-histogram"])
def test_with_noise_nothing_exact_leaves_but_class_sizes(release: str, tmp_path: Path) -> None:
    config = {"roc-glm.release": release, "roc-glm.statistics-epsilon": 1.0}
    run = record(tmp_path, config)
    assert run.result.exchanges == 2
    disclosed = disclosed_by(run)
    assert disclosed == {
        HELLO: {"facts/dropped", "facts/n-negative", "facts/n-positive"},
        RELEASE: {"arrays/negative", "arrays/positive", "arrays/sums"},
    }
    for site, reply in run.replies(RELEASE):
        said = ReleaseReply.from_record(reply.content)
        values = np.concatenate([said.negative, said.positive, said.sums])
        assert (values != np.round(values)).all()
        scores = np.concatenate([run.rows[site].negative, run.rows[site].positive])
        assert not np.isin(values, scores).any()


def test_noisy_scores_disclose_what_the_table_names(tmp_path: Path) -> None:
    config = {"roc-glm.release": "noisy-scores", "roc-glm.mode": "fisher"}
    run = record(tmp_path, config)
    assert disclosed_by(run) == {
        HELLO: {"facts/dropped", "facts/n-negative", "facts/n-positive"},
        RELEASE: {"arrays/negative", "arrays/positive"},
        ROC_GLM_FISHER: {"arrays/sums"},
        COUNTS: {
            f"arrays/{k}" for k in ("threshold-counts", "number", "moments", "counts", "sums")
        },
    }
    everyone = np.concatenate([np.concatenate([r.negative, r.positive]) for r in run.rows.values()])
    for request, reply in run.messages:
        for message in (request, reply):
            for values in numbers(message).values():
                assert not np.isin(values, everyone).any()
    for _, reply in run.replies(ROC_GLM_FISHER):  # of the positives' probit only, no calibration
        assert len(numbers(reply)["arrays/sums"]) == 2 + 3 + 3
    for site, reply in run.replies(COUNTS):
        said = CountsReply.from_record(reply.content)
        assert [m.count for m in said.moments] == 2 * [run.rows[site].num_positive]


def test_the_alarm_rings_for_scores(tmp_path: Path) -> None:
    run = record(tmp_path, {"roc-glm.release": "exact"})
    everyone = np.concatenate([np.concatenate([r.negative, r.positive]) for r in run.rows.values()])
    found = [
        np.isin(values, everyone).sum()
        for _, reply in run.replies(RELEASE)
        for values in numbers(reply).values()
    ]
    assert sum(found) >= len(everyone)


# Sites that drop out -----------------------------------------------------------------------------


def drop_out(monkeypatch: pytest.MonkeyPatch, *names: str, handler: str = "release") -> None:
    answer = getattr(site_half, handler)

    def silent(message: Message, site: site_half.RocGlmSite, context: Context) -> Message:
        if site.name in names:
            raise SiteFault("gone", "the line is cut")
        reply: Message = answer(message, site, context)
        return reply

    monkeypatch.setattr(site_half, handler, silent)


def test_a_drop_out_ends_a_masked_run_or_the_server_is_said_to_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_out(monkeypatch, "south")
    summary = record(tmp_path, {"roc-glm.release": "secure-counts"}).result.summary
    assert summary["status"] == "failed"
    assert "no usable answer of south, so the masked sum cannot be opened" in summary["reason"]
    config = {"roc-glm.release": "secure-counts", "roc-glm.drop-outs": "semi-honest-server"}
    run = record(tmp_path, config)
    summary = run.result.summary
    assert summary["status"] == "ok"
    assert run.result.exchanges == 3
    assert (summary["lost"], summary["n-sites"]) == (["south"], 3)
    assert "trusted not to subtract" in summary["drop-outs"]
    expected = sum(r.num_positive for name, r in run.rows.items() if name != "south")
    assert summary["n-positive"] == expected


def test_too_few_sites_are_left_for_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_out(monkeypatch, "south", "west")
    config = {"roc-glm.release": "secure-counts", "roc-glm.drop-outs": "semi-honest-server"}
    summary = record(tmp_path, config).result.summary
    assert summary["status"] == "failed"
    assert "2 sites are left, 3 needed" in summary["reason"]


def test_in_clear_the_run_goes_on_without_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_out(monkeypatch, "south")
    run = record(tmp_path, {"roc-glm.release": "noisy-counts"})
    assert run.result.summary["lost"] == ["south"]
    expected = sum(r.num_positive for name, r in run.rows.items() if name != "south")
    assert run.result.summary["n-positive"] == expected


@pytest.mark.parametrize("handler", ["counts", "fisher"])
@pytest.mark.parametrize("release", ["noisy-scores", "secure-counts", "binned"])
def test_after_the_release_no_site_can_be_missed(
    handler: str, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if handler == "counts" and release != "noisy-scores":
        return
    drop_out(monkeypatch, "west", handler=handler)
    config = {
        "roc-glm.release": release,
        "roc-glm.mode": "fisher" if handler == "fisher" else "one-shot",
    }
    summary = record(tmp_path, config).result.summary
    assert summary["status"] == "failed"
    assert f"{handler}: no usable answer of west" in summary["reason"]
    assert "begin a new run" in summary["reason"]


@pytest.mark.parametrize("pins", ["", "north"])
def test_sites_that_are_not_pinned_are_refused_where_pins_are_required(
    pins: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys pinned for all but two sites, and required: the site masks nothing with those two."""
    prints = {name: create_identity(tmp_path / name) for name in NAMES}

    class PinningGrid(InProcessGrid):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            for name, context in zip(NAMES, self.contexts.values(), strict=True):
                context.node_config["identity-path"] = str(tmp_path / name)
            pinned = ", ".join(f"{n}={code}" for n, code in prints.items() if pins in ("", n))
            self.contexts[1].node_config["pinned-sites"] = pinned
            self.contexts[1].node_config["require-pinned"] = True

    with pytest.MonkeyPatch.context() as patch, caplog.at_level("INFO", logger="flwr"):
        patch.setattr(simulation, "InProcessGrid", PinningGrid)
        config = {"run-dir": str(tmp_path)}
        result = simulate("roc-glm", sites=cohort(), config=config, site_names=NAMES)
    if not pins:
        assert result.summary["status"] == "ok"
        fingerprint = result.summary["roster-fingerprint"]
        lines = [line for line in caplog.messages if f"roster {fingerprint}" in line]
        assert len(lines) == 4
        assert sorted("first use" in line for line in lines) == [False, True, True, True]
    else:
        assert result.summary["status"] == "refused"
        assert "south: no fingerprint is given for it" in result.summary["reason"]


@pytest.mark.parametrize(
    "more", [{}, {"min-sites": 4}, {"roc-glm.drop-outs": "semi-honest-server"}], ids=str
)
def test_pinned_keys_are_checked_by_the_site(more: dict[str, Any], tmp_path: Path) -> None:
    """A site that pins another key of a peer answers nothing; nobody is asked again."""
    other = SiteKeys.generate(site="north", run="other").public.fingerprint

    class PinningGrid(InProcessGrid):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.contexts[1].node_config["pinned-sites"] = f"north={other}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "InProcessGrid", PinningGrid)
        config = {"run-dir": str(tmp_path), **more}
        result = simulate("roc-glm", sites=cohort(), config=config, site_names=NAMES)
    assert result.summary["status"] == "refused"
    assert result.summary["reason"].startswith("east: north: its key has the fingerprint")
    assert result.exchanges == 2
