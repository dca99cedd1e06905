"""The report of a run: one file that needs nothing else, whatever the run left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fedapp.cli import main
from fedapp.record_shape import LedgerRow
from fedapp.report import figures, write_report
from fedapp.report.costs import sum_steps
from fedapp.report.head import format_duration
from fedapp.report.ledger import (
    format_bytes,
    format_ranges,
    site_traffic,
    sum_flows,
    volume_of,
)
from fedapp.run_folder import RunFolder
from fedapp.run_record import RunFolderError

PRIVACY = "Noise of σ = 0.0112 on every element; no (ε, δ) is claimed & nothing else."
ALL_FIGURES = {"convergence", "survival-curves", "noise-to-signal", "bytes-by-step"}
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Reader(HTMLParser):
    """Collects elements, links and text of a page, and checks that its elements are closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.pieces: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}:
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())


def make_run(
    base: Path,
    *,
    sites: Sequence[str] = ("site-0", "site-1", "site-2"),
    rounds: int = 6,
    private: bool = True,
    curves: bool = True,
    summary: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> RunFolder:
    """Leave the files of a finished survival run with known numbers."""
    folder = RunFolder.create(base, task="survival")
    config = {
        **(config or {}),
        "task": "survival",
        "survival.rounds": rounds,
        "survival.dp-mechanism": "gaussian" if private else "none",
        "survival.dp-noise-multiplier": 0.05,
    }
    defaults = {**config, "survival.rounds": 30}
    meanings = {"survival.rounds": "rounds of training"}
    folder.write_config(config, seed=0, runtime="in-process", defaults=defaults, meanings=meanings)
    for number in range(1, rounds + 1):
        value = 0.7 - 0.2 / number
        line: dict[str, Any] = {"round": number, "c-index": value, "comparable-pairs": 12345}
        line |= {"c-index-lower": value - 0.05, "c-index-upper": value + 0.04}
        if private:
            line["noise-to-signal"] = {
                site: 0.5 + 0.1 * number + 0.01 * index for index, site in enumerate(sites)
            }
        folder.append_metrics(line)
    folder.write_ledger(ledger_of(sites, rounds=rounds))
    if curves:
        times = np.linspace(0, 100, 21)
        names_and_rates = {"low risk": 0.002, "high risk": 0.01}
        groups = [
            {
                "name": name,
                "rows": 40,
                "predicted": np.exp(-rate * times),
                "kaplan-meier": np.round(np.exp(-rate * times), 1),
            }
            for name, rate in names_and_rates.items()
        ]
        folder.write_json("curves.json", {"times": times, "groups": groups})
    final: dict[str, Any] = {
        "c-index": 0.6789,
        "c-index-lower": 0.6123,
        "c-index-upper": 0.7321,
        "rounds": rounds,
        "n-sites": len(sites),
        "sites": [{"site": site, "rows": 1234, "events": 56, "test-rows": 25} for site in sites],
        "privacy": PRIVACY,
    }
    if private:
        final |= {"noise-driver": "dp_noise_multiplier"}
        final |= {"noise-to-signal-median": 0.85, "noise-to-signal-max": 1.12}
    folder.finish("ok", summary={**final, **(summary or {})})
    return folder


def ledger_of(sites: Sequence[str], *, rounds: int) -> list[LedgerRow]:
    rows: list[LedgerRow] = []
    for exchange in range(1, rounds + 2):
        step = "query.set_up" if exchange == 1 else "train"
        for site in sites:
            for sender, receiver, size, reveals in (
                ("server", site, 1000, "the global model"),
                (site, "server", 2000, "the noisy update"),
            ):
                rows.append(
                    {
                        "exchange": exchange,
                        "step": step,
                        "sender": sender,
                        "receiver": receiver,
                        "bytes": size,
                        "sealed": False,
                        "reveals": reveals,
                    }
                )
    return rows


def figure_names(folder: RunFolder) -> set[str]:
    names = {path.stem for path in folder.figures.iterdir()}
    assert {path.name for path in folder.figures.iterdir()} == {
        f"{name}.{suffix}" for name in names for suffix in ("png", "svg")
    }
    return names


def assert_drawn(folder: RunFolder, name: str) -> None:
    with Image.open(folder.figures / f"{name}.png") as image:
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
        assert image.width == round(150 * figures.WIDTH)
        assert image.height > 150
        pixels = np.asarray(image.convert("RGB"), dtype=float)
    assert pixels.reshape(-1, 3).var(axis=0).min() > 0
    # ink spread over the picture, not only in a corner
    ink = np.argwhere(pixels.min(axis=2) < 250)
    assert (np.ptp(ink, axis=0) > 0.6 * np.array(pixels.shape[:2])).all()
    svg = ElementTree.parse(folder.figures / f"{name}.svg").getroot()
    assert svg.tag.endswith("svg")
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) > 5


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Return a run with its report; tests that share it change nothing."""
    folder = make_run(tmp_path_factory.mktemp("runs"))
    assert write_report(folder.path) == folder.path / "report.html"
    return folder


def test_the_page_holds_what_the_run_left(reported: RunFolder) -> None:
    folder = reported
    text = Reader(folder.path / "report.html").text
    assert "0.679 95 % CI 0.612 – 0.732" in text
    assert PRIVACY in text
    assert "share of comparable pairs of rows" in text
    assert "pairs across sites are not compared" in text
    assert "server's estimate from what it received" in text
    assert "dp-noise-multiplier = 0.05" in text
    assert "Noise to signal over all sites and rounds: median 0.85, largest 1.12." in text
    assert "The noise was up to 1.12 times as large" in text
    assert "changed, default 30 rounds of training" in text
    assert "1 of 4 keys differ" in text
    assert "Comparable pairs: 12 345" in text.replace("\u202f", " ")
    # 7 exchanges x 3 sites x (1000 + 2000) bytes
    assert "63.0 kB" in text
    assert "train sites → server the noisy update not sealed 2–7 18 36.0 kB" in text
    assert "site-1 1 234 56 25 0.86 14.0 kB 7.0 kB" in text.replace("\u202f", " ")
    assert figure_names(folder) == ALL_FIGURES
    for name in ALL_FIGURES:
        assert_drawn(folder, name)


def test_the_page_needs_nothing_else(reported: RunFolder) -> None:
    path = reported.path / "report.html"
    reader = Reader(path)
    assert reader.tags.count("svg") == 4
    assert not {"script", "link", "iframe", "object", "embed"} & set(reader.tags)
    assert all(link.startswith(("#", "data:")) for link in reader.links)
    source = path.read_text(encoding="utf-8")
    assert "@import" not in source
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", source))
    assert len(reader.ids) == len(set(reader.ids))
    fragments = {link[1:] for link in reader.links if link.startswith("#")}
    assert fragments <= set(reader.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", source)) <= set(reader.ids)


def test_remade_to_the_same_bytes_whatever_the_style_of_the_reader(
    reported: RunFolder, tmp_path: Path
) -> None:
    import matplotlib as mpl

    copy = tmp_path / reported.path.name
    copy.mkdir()
    for source in reported.path.iterdir():
        if source.suffix in {".json", ".jsonl"}:
            (copy / source.name).write_bytes(source.read_bytes())
    with mpl.rc_context({"font.size": 20, "figure.dpi": 50, "savefig.bbox": "tight"}):
        page = write_report(copy)
        assert mpl.rcParams["font.size"] == 20
    assert page.read_bytes() == (reported.path / "report.html").read_bytes()
    for source in reported.figures.iterdir():
        assert (copy / "figures" / source.name).read_bytes() == source.read_bytes()


def test_hostile_names_are_text(tmp_path: Path) -> None:
    hostile = [
        '<script>alert("x")</script>',
        "</svg><img src=http://x onerror=y>",
        "$\\frac{$",
        "東京",
    ]
    groups = [{"name": name, "rows": 9, "predicted": [1, 0.5]} for name in hostile]
    folder = make_run(tmp_path, sites=hostile, summary={"faults": [hostile[0]], "privacy": "<b>x"})
    folder.write_json("curves.json", {"times": [0, 1], "groups": groups})
    rows = folder.read().ledger
    folder.write_ledger([{**row, "step": hostile[0], "reveals": hostile[1]} for row in rows])
    path = write_report(folder.path)
    reader = Reader(path)
    assert not {"script", "img", "b"} & set(reader.tags)
    for name in hostile:
        assert name in reader.text
    assert "<script" not in path.read_text(encoding="utf-8")


def test_one_round(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=1)
    assert "Round 0 is" not in Reader(write_report(folder.path)).text
    assert figure_names(folder) == ALL_FIGURES
    for name in ALL_FIGURES:
        assert_drawn(folder, name)


def test_hundred_sites_whose_lines_are_drawn_as_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.report.survival_figures._RASTER_POINTS", 500)
    sites = [f"site-{index}" for index in range(100)]
    folder = make_run(tmp_path, sites=sites)
    reader = Reader(write_report(folder.path))
    assert all(site in reader.pieces for site in sites)
    assert any(link.startswith("data:image/png") for link in reader.links)
    for name in ALL_FIGURES:
        assert_drawn(folder, name)


def test_privacy_off(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path, rounds=2, private=False, summary={"privacy": "No noise: updates in clear."}
    )
    text = Reader(write_report(folder.path)).text
    assert "Privatization off" in text
    assert "No noise: updates in clear." in text
    assert "No figure of noise to signal: no noise was added." in text
    assert figure_names(folder) == ALL_FIGURES - {"noise-to-signal"}


@pytest.mark.parametrize(
    ("curves", "reason"),
    [
        (None, "the run folder has no curves.json"),
        ({"times": [], "groups": []}, "curves.json has no times or no risk groups"),
        ({"baseline": {}, "silent-sites": 3}, "every site has too few rows in a risk group"),
        ({"times": [0, 1], "groups": [{"name": "a", "rows": 4}]}, "curves.json holds no curve"),
        (
            {"times": [0, 1], "groups": [{"name": "a", "predicted": [1.0]}]},
            "'predicted' of a group and the times differ in length",
        ),
    ],
)
def test_missing_curves(tmp_path: Path, curves: dict[str, Any] | None, reason: str) -> None:
    folder = make_run(tmp_path, rounds=0, curves=False)
    for suffix in ("png", "svg"):  # of an earlier report
        (folder.figures / f"survival-curves.{suffix}").write_bytes(b"old")
    if curves is not None:
        folder.write_json("curves.json", curves)
    text = Reader(write_report(folder.path)).text
    assert "No survival curves: " in text
    assert reason in text
    assert figure_names(folder) == {"bytes-by-step"}


def test_curves_with_gaps(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=0)
    group = {"name": "all", "kaplan-meier": [1.0, None, 0.4, 0.2], "predicted": [1, 0.8, 0.5, None]}
    few = {"name": "few", "rows": 6, "kaplan-meier": None, "predicted": [1, 0.9, 0.8, 0.7]}
    folder.write_json("curves.json", {"times": [0, 1, 2, 3], "groups": [group, few]})
    write_report(folder.path)
    assert_drawn(folder, "survival-curves")


@pytest.mark.parametrize(
    ("level", "cells"),
    [
        (7, "cells of time in which at least 7 rows of each group leave at every site"),
        (1, "The steps are those of the time grid."),
    ],
)
@pytest.mark.parametrize("silent", [0, 2])
def test_curves_say_what_they_are_made_of(
    tmp_path: Path, level: int, cells: str, silent: int
) -> None:
    folder = make_run(tmp_path, rounds=0, config={"survival.privacy-level": level})
    curves = folder.read_json("curves.json")
    folder.write_json("curves.json", {**curves, "silent-sites": silent})
    text = Reader(write_report(folder.path)).text
    assert "on the rows that it was trained on" in text
    assert "actuarial correction" in text
    assert cells in text
    left_out = "too few rows in a risk group to tell of any: 2 of 3 sites."
    assert (left_out in text) == bool(silent)


def test_ratio_without_bound_is_a_gap_that_is_explained(
    reported: RunFolder, tmp_path: Path
) -> None:
    assert "Where a line has a gap" not in Reader(reported.path / "report.html").text
    folder = RunFolder.create(tmp_path, task="survival")
    folder.append_metrics({"round": 0})
    for number in (1, 2):
        ratios = {"site-0": float("inf") if number == 2 else 0.5, "site-1": 50.0}
        folder.append_metrics({"round": number, "noise-to-signal": ratios})
    folder.finish("failed", "stopped")
    text = Reader(write_report(folder.path)).text
    assert "Where a line has a gap" in text
    assert "Rounds 2 " in text
    # a logarithmic axis, its numbers written out
    svg = (folder.figures / "noise-to-signal.svg").read_text()
    assert ">100<" in svg
    assert "mathdefault" not in svg


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("refused", "Refused: survival.rounds = 0"),
        ("failed", "Failed: survival.rounds = 0"),
        ("not-estimable", "Not estimable: survival.rounds = 0"),
        (None, "has not finished"),
    ],
)
def test_a_run_without_metrics(tmp_path: Path, status: str | None, words: str) -> None:
    folder = RunFolder.create(tmp_path, task="survival")
    if status:
        folder.finish(status, "survival.rounds = 0")
    text = Reader(write_report(folder.path)).text
    assert words in text
    assert "no estimate" in text
    assert "No figure of convergence: no round has a C-index." in text
    assert "nothing was exchanged" in text
    assert "No site took part" in text
    assert figure_names(folder) == set()


def test_faults_and_diagnostics_lead_the_page(tmp_path: Path) -> None:
    summary = {
        "faults": [{"site": "site-1", "code": "late", "reasons": ["no reply in 600 s"]}],
        "excluded": ["site-2: 3 rows, fewer than 5"],
        "diagnostics": ["identical_across_samples: all predictions are equal"],
    }
    text = Reader(write_report(make_run(tmp_path, rounds=0, summary=summary).path)).text
    head = text[: text.index("C-index within sites")]
    assert "Fault: site site-1, code late, reasons no reply in 600 s" in head
    assert "Excluded: site-2: 3 rows, fewer than 5" in head
    assert "Diagnostic: identical_across_samples: all predictions are equal" in head


def test_a_task_without_a_report_of_its_own(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, task="other-task")
    folder.write_ledger(ledger_of(["a"], rounds=1))
    folder.finish("ok", summary={})
    text = Reader(write_report(folder.path)).text
    assert "Federated run: other-task" in text
    assert "the noisy update" in text
    assert figure_names(folder) == {"bytes-by-step"}


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"it lacks config\.json"):
        write_report(tmp_path)


def test_flows_are_summed_by_step_and_direction() -> None:
    base = ledger_of(["a"], rounds=0)[0]
    rows: list[LedgerRow] = [
        {**base, "exchange": 3, "step": "shares", "sender": "b", "receiver": "a", "sealed": True},
        {
            **base,
            "exchange": 2,
            "step": "shares",
            "sender": "a",
            "receiver": "b",
            "bytes": 30,
            "sealed": True,
            "protection": "sealed",
            "parts": 3,
        },
        {
            **base,
            "exchange": 1,
            "step": "keys",
            "sender": "a",
            "receiver": "server",
            "bytes": 7,
            "protection": "sealed + masked + clear",
        },
        {**base, "exchange": 1, "step": "keys", "sender": "server", "receiver": "a", "bytes": 5},
    ]
    flows = sum_flows(rows)
    assert [(flow.step, flow.direction, flow.bytes, flow.messages) for flow in flows] == [
        ("keys", "sites → server", 7, 1),
        ("keys", "server → sites", 5, 1),
        ("shares", "site → site", 1030, 4),
    ]
    assert flows[2].exchanges == (2, 3)
    assert flows[2].protection_words == "sealed for the receiver"
    assert flows[2].reveals == ("the global model",)
    assert flows[0].protection_words == "sealed parts, masked sums, the rest in clear"
    assert flows[1].protection_words == "not sealed"  # a ledger that does not say more
    # What is sealed lies within messages.
    assert volume_of(flows) == 12
    assert site_traffic(rows) == {"a": (7, 5)}


def timed_ledger() -> list[LedgerRow]:
    """Two sites: an exchange of keys, two of training, of which the second ends at its timeout."""
    rows = ledger_of(["a", "b"], rounds=2)
    asked = {1: 6.0, 2: 7.5, 3: 30.0}
    answered = {(1, "a"): 5.5, (1, "b"): 6.0, (2, "a"): 7.5, (2, "b"): 3.0, (3, "a"): 4.0}
    for row in rows:
        end = asked[row["exchange"]]
        row["seconds"] = answered.get((row["exchange"], row["sender"]), end)
        if row["sender"] == "a":
            row["site-seconds"] = 0.25
    return [row for row in rows if (row["exchange"], row["sender"]) != (3, "b")]


def test_costs_are_summed_by_step() -> None:
    sealed: LedgerRow = {**ledger_of(["a"], rounds=0)[1], "sealed": True, "receiver": "b"}
    keys, training = sum_steps([sealed, *timed_ledger()])
    assert (keys.step, keys.exchanges, keys.messages, keys.bytes) == ("query.set_up", 1, 4, 6000)
    assert (training.exchanges, training.messages, training.bytes) == (2, 7, 10_000)
    # An exchange takes as long as its slowest site, or the timeout, not the sum of its sites.
    assert (keys.seconds, training.seconds) == (6.0, 37.5)
    assert (keys.site_seconds, training.site_seconds) == (0.25, 0.5)


def test_the_report_has_costs_by_step(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=2)
    folder.write_ledger(timed_ledger())
    text = Reader(write_report(folder.path)).text
    assert "Exchanges, bytes and seconds by step" in text
    assert "query.set_up 1 4 6.0 kB 6.00 6.00 0.250" in text
    assert "train 2 7 10.0 kB 37.50 18.75 0.500" in text
    assert "all 3 11 16.0 kB 43.50 14.50 0.750" in text


def test_a_run_folder_without_seconds_gets_a_report(tmp_path: Path) -> None:
    """As runs left it before the ledger had any."""
    text = Reader(write_report(make_run(tmp_path, rounds=1).path)).text
    assert "step exchanges messages bytes query.set_up 1 6 9.0 kB train 1 6 9.0 kB" in text


@pytest.mark.parametrize(
    ("protections", "words"),
    [
        (["clear", "clear"], "in clear"),
        (["masked"], "masked sums"),
        (["encrypted + clear", "masked + clear"], "ciphertexts, masked sums, the rest in clear"),
    ],
)
def test_how_messages_were_protected_in_words(protections: list[str], words: str) -> None:
    base = ledger_of(["a"], rounds=0)[0]
    (flow,) = sum_flows([{**base, "protection": protection} for protection in protections])
    assert flow.protection_words == words


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_950, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (3_210_000, "3.2 MB"),
        (5 * 10**12, "5.0 TB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_volumes_in_words(volume: int, words: str) -> None:
    assert format_bytes(volume) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.412, "0.41 s"),
        (9.999, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7800, "2 h 10 min"),
    ],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


def test_ranges_in_words() -> None:
    assert format_ranges([1, 3, 4, 5, 9]) == "1, 3–5, 9"
    assert format_ranges([]) == ""


def test_matplotlib_is_imported_late_and_without_global_state(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=0, curves=False)
    code = (
        "import sys; from pathlib import Path; from fedapp.report import write_report\n"
        "assert 'matplotlib' not in sys.modules\n"
        "write_report(Path(sys.argv[1]))\n"
        "assert 'matplotlib' in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(folder.path)],
        check=True,
        env=environment,
        timeout=60,
    )


def test_colours_of_text_stay() -> None:
    """Only attributes of style become variables of the page."""
    out = figures.for_page(
        '<?xml version="1.0"?><svg width="3pt" height="4pt" viewBox="0 0 3 4">'
        "<metadata>m</metadata>"
        '<g id="g1" clip-path="url(#c)"><text style="fill: #0072b2">id #0072b2</text></g></svg>',
        name="f",
    )
    assert out == (
        '<svg viewBox="0 0 3 4"><g id="f-g1" clip-path="url(#f-c)">'
        '<text style="fill: var(--blue)">id #0072b2</text></g></svg>'
    )


def page_of(folder: RunFolder) -> str:
    return Reader(write_report(folder.path)).text


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("config.json", '{"task": "survival", "config": 5}', "config.json: config must be an obj"),
        ("config.json", '{"task": 5}', "config.json: task must be text"),
        ("config.json", "5", "config.json: must be a JSON object"),
        ("status.json", '{"status": ["ok"]}', "status.json: status must be text"),
        ("metrics.jsonl", '{"summary": true, "diagnostics": 5}\n', "line 1: diagnostics must be a"),
        ("metrics.jsonl", '{"summary": true, "sites": ["a"]}\n', "line 1: sites must be a list of"),
        ("metrics.jsonl", '{"round": "one"}\n', "line 1: round must be a number"),
        ("metrics.jsonl", '{"round": 1, "noise-to-signal": {"a": "b"}}\n', "must hold numbers"),
        ("metrics.jsonl", '{"summary": true, "c-index": "high"}\n', "c-index must be a number"),
        ("curves.json", '{"times": 5, "groups": [1]}', "curves.json holds what no run writes"),
        ("curves.json", '{"times": [0], "groups": {"a": 1}}', "curves.json holds what no run"),
    ],
)
def test_a_damaged_folder_is_one_line_that_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, named: str
) -> None:
    folder = make_run(tmp_path)
    (folder.path / name).write_text(content)
    with pytest.raises(RunFolderError) as caught:
        write_report(folder.path)
    assert named in str(caught.value)
    assert main(["report", str(folder.path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedapp: ")


def test_without_evaluation_rows_there_is_no_c_index_and_it_says_why(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=0, config={"survival.test-fraction": 0.0})
    summary = {"rounds": 3, "privacy": PRIVACY}
    (folder.path / "metrics.jsonl").write_text("")
    folder.finish("ok", summary=summary)
    text = page_of(folder)
    assert "no rows were kept for evaluation (survival.test-fraction is 0)" in text
    assert "measured on the rows of training" not in text


def test_the_reason_of_a_missing_c_index_is_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=0)
    (folder.path / "metrics.jsonl").write_text("")
    folder.finish("ok", summary={"c-index-reason": "no-comparable-pairs"})
    words = "no two evaluation rows of a site can be compared"
    assert page_of(folder).count(words) == 3, "key number, notice, section"


def test_the_reason_of_a_missing_interval_is_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=0)
    (folder.path / "metrics.jsonl").write_text("")
    folder.finish("ok", summary={"c-index": 1.0, "c-index-reason": "c-index-at-boundary"})
    text = page_of(folder)
    assert "no confidence interval: the C-index is 0 or 1" in text
    assert "There is no C-index" not in text


def test_noise_without_any_signal_is_a_failure(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=0, private=False)
    folder.finish("ok", summary={"c-index": 0.5, "noise-to-signal-unbounded": 15})
    write_report(folder.path)
    page = (folder.path / "report.html").read_text()
    assert re.search(r'class="[^"]*failure[^"]*"[^>]*>[^<]*The noise drowned every update', page)
    assert "in none of 15" in page


def test_noise_without_signal_in_some_updates_is_a_warning(tmp_path: Path) -> None:
    text = page_of(make_run(tmp_path, summary={"noise-to-signal-unbounded": 2}))
    assert "In 2 updates the noise left no signal" in text
    assert "drowned" not in text


def test_a_privacy_level_of_1_is_noticed(tmp_path: Path) -> None:
    words = "sums over a single row may have left a site"
    assert words in page_of(make_run(tmp_path, config={"survival.privacy-level": 1}))
    assert words not in page_of(make_run(tmp_path, config={"survival.privacy-level": 2}))


def test_faults_of_many_sites_are_one_line(tmp_path: Path) -> None:
    faults = [f"site-{k}: train: late" for k in range(200)]
    summary = {"faults": faults, "excluded": [f"site-{k}" for k in range(200)]}
    text = page_of(make_run(tmp_path, summary=summary))
    assert "Fault: site-0, site-1, site-2 and 197 more: train: late" in text
    assert "Excluded: site-0, site-1, site-2 and 197 more" in text
    assert "site-150" not in text


METRICS = {
    "model": "CoxTime",
    "model-kind": "time-dependent",
    "metrics-upper-limit": 80.0,
    "metrics-time-1": 20.0,
    "auc-1": 0.71,
    "auc-1-lower": 0.61,
    "auc-1-upper": 0.79,
    "ibs": 0.1234,
    "ibs-kaplan-meier": 0.2345,
    "ibs-difference": -0.1111,
}


def test_metrics_are_in_a_table_with_their_intervals(tmp_path: Path) -> None:
    text = page_of(make_run(tmp_path, summary=METRICS))
    assert "Metrics of the final model" in text
    assert "0.7100 0.6100 – 0.7900" in text
    assert "at time 20" in text
    assert "lower (better) than that of one Kaplan-Meier curve" in text


@pytest.mark.parametrize(
    ("kind", "words", "others"),
    [
        ("proportional-hazards", "Harrell's concordance", "the lower predicted survival"),
        ("discrete", "Antolini's concordance", "the higher risk"),
        ("time-dependent", "computed for the final model only", "the higher risk"),
    ],
)
def test_the_c_index_is_called_what_it_is(
    tmp_path: Path, kind: str, words: str, others: str
) -> None:
    text = page_of(make_run(tmp_path, summary={**METRICS, "model-kind": kind}))
    assert words in text
    assert others not in text
    assert ("No figure of convergence" in text) == (kind == "time-dependent")


def test_why_there_are_no_metrics(tmp_path: Path) -> None:
    text = page_of(make_run(tmp_path, summary={"metrics-reason": "follow-up-too-short"}))
    assert "no Brier score, AUC, Uno's concordance or calibration: too few rows" in text
