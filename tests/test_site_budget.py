"""The ledger of a site: nothing resets it, whatever crashes, and what was spent never falls."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.cli import main
from tasks.privacy import chained_log
from tasks.privacy.site_budget import (
    Cost,
    Reservation,
    SiteBudget,
    _reservations,
    read_ledger,
    spent,
)
from tasks.site.faults import SiteFault

DELTA = 1e-5
ROOT = Path(__file__).resolve().parent.parent


def budget(folder: Path, run: str = "run-1", *, most: float = 3.0, config: str = "a") -> SiteBudget:
    return SiteBudget(folder, run, "survival", config, most, DELTA)


def ledger(folder: Path) -> Path:
    return folder / "privacy-ledger.jsonl"


def refused(code: str, words: str, call: object) -> str:
    with pytest.raises(SiteFault) as caught:
        call()  # type: ignore[operator]
    assert caught.value.code == code
    assert words in str(caught.value)
    return str(caught.value)


def epsilon_of(folder: Path) -> float:
    return spent(read_ledger(folder), delta=DELTA).epsilon


# What is spent -----------------------------------------------------------------------------------


def gaussian_reservations(*costs: tuple[float, int]) -> list[Reservation]:
    return [Reservation(f"run-{n}", "t", "", k, Cost(ratio)) for n, (ratio, k) in enumerate(costs)]


@pytest.mark.parametrize("costs", [[(0.1, 1)], [(0.2, 30)], [(0.05, 100), (0.4, 3), (1.0, 1)]])
def test_gaussian_runs_compose_as_dp_accounting_has_it(costs: list[tuple[float, int]]) -> None:
    renyi, exact = RdpAccountant(), PLDAccountant()
    for ratio, releases in costs:
        event = dp_accounting.GaussianDpEvent(1 / ratio)
        renyi.compose(event, releases)
        exact.compose(event, releases)
    found = spent(gaussian_reservations(*costs), delta=DELTA)
    assert found.composition == "exact composition of Gaussian releases"
    assert found.epsilon == pytest.approx(exact.get_epsilon(DELTA), rel=2e-3, abs=1e-4)
    assert found.epsilon <= renyi.get_epsilon(DELTA)


def test_noise_that_is_next_to_none_costs_more_than_anything(tmp_path: Path) -> None:
    for ratio in (1e90, 1e160, 1e308):
        assert spent(gaussian_reservations((ratio, 100)), delta=DELTA).epsilon > 1e100
    refused(
        "site-limit",
        "it would be inf",
        lambda: budget(tmp_path).check(Cost(ratio=1e300), releases=2),
    )


def test_a_long_run_does_not_lock_its_ledger(tmp_path: Path) -> None:
    """Each release reads the ledger: a run of many rounds must not make that take for ever."""
    with chained_log.opened(tmp_path, "privacy-ledger") as log:
        entries = [{"kind": "release", "run": "run-1", "step": f"round-{n}"} for n in range(30_000)]
        reserved = {"kind": "reserve", "run": "run-1", "task": "t", "config": "a", "time": ""}
        cost = {"releases": 30_000, "ratio": 0.1, "epsilon": 0.0, "delta": 0.0}
        log.entries = [{**reserved, **cost}, *entries]
        began = time.process_time()
        found = _reservations(log)["run-1"]
    assert len(found.steps) == 30_000
    assert time.process_time() - began < 3


def test_other_releases_add_up_and_leave_the_rest_of_delta_to_gaussian_ones() -> None:
    other = Reservation("b", "t", "", 2, Cost(epsilon=0.5, delta=2e-6))
    gaussian = gaussian_reservations((0.2, 5))
    assert spent([other], delta=DELTA).epsilon == pytest.approx(1.0)
    assert spent([other], delta=DELTA).composition == "basic composition"
    both = spent([other, *gaussian], delta=DELTA)
    assert both.epsilon == pytest.approx(1.0 + spent(gaussian, delta=6e-6).epsilon)
    assert "basic composition of other releases" in both.composition
    # The deltas alone are more than there is.
    many = Reservation("c", "t", "", 6, Cost(epsilon=0.5, delta=2e-6))
    assert spent([many], delta=DELTA).epsilon == math.inf


@pytest.mark.parametrize(
    "numbers",
    [{}, {"ratio": -1.0}, {"ratio": math.inf}, {"ratio": 1.0, "epsilon": 1.0}, {"delta": 1.0}],
)
def test_a_cost_is_of_one_kind_and_finite(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be a finite ratio"):
        Cost(**numbers)


# One run -----------------------------------------------------------------------------------------


def test_a_run_reserves_once_and_makes_no_more_releases(tmp_path: Path) -> None:
    own = budget(tmp_path)
    own.check(Cost(0.1), releases=2)
    assert read_ledger(tmp_path) == []
    own.release(step="round-1", cost=Cost(0.1), releases=2)
    assert epsilon_of(tmp_path) == spent(gaussian_reservations((0.1, 2)), delta=DELTA).epsilon
    own.check(Cost(0.1), releases=2)  # introduced again
    refused("site-limit", "round-1: released in this run before", lambda: again(own, "round-1"))
    own.release(step="round-2", cost=Cost(0.1), releases=2)
    refused("site-limit", "has reserved 2 releases and made them", lambda: again(own, "round-3"))
    (found,) = read_ledger(tmp_path)
    assert found.steps == ("round-1", "round-2")


def again(own: SiteBudget, step: str, ratio: float = 0.1) -> None:
    own.release(step=step, cost=Cost(ratio), releases=2)


def test_less_noise_or_another_configuration_than_reserved_is_refused(tmp_path: Path) -> None:
    again(budget(tmp_path), "round-1")
    refused("site-limit", "less noise", lambda: again(budget(tmp_path), "round-2", 0.11))
    refused("site-limit", "less noise", lambda: other_kind(budget(tmp_path)))
    refused(
        "site-limit",
        "another configuration",
        lambda: again(budget(tmp_path, config="b"), "round-2"),
    )
    again(budget(tmp_path), "round-2", 0.05)


def other_kind(own: SiteBudget) -> None:
    own.release(step="round-2", cost=Cost(epsilon=0.01), releases=2)


# Over all runs -----------------------------------------------------------------------------------


def test_runs_add_up_until_the_maximum_and_the_refusal_names_the_key(tmp_path: Path) -> None:
    said = [reserve_at(tmp_path, f"run-{number}", most=1.0) for number in range(30)]
    begun = len([words for words in said if not words])
    assert 1 < begun < 30
    assert not any(said[:begun])
    assert 'node config "max-epsilon" = 1, "max-delta" = 1e-05' in said[-1]
    assert "exact composition of Gaussian releases" in said[-1]
    assert epsilon_of(tmp_path) <= 1.0
    one_more = gaussian_reservations(*[(0.1, 2)] * (begun + 1))
    assert spent(one_more, delta=DELTA).epsilon > 1.0
    words = "over all runs the site has spent"
    new = budget(tmp_path, "run-new", most=1.0)
    refused("site-limit", words, lambda: new.check(Cost(0.1), releases=2))
    # A run that had begun makes what it has reserved.
    again(budget(tmp_path, "run-0", most=1.0), "round-2")


def reserve_at(folder: Path, run: str, *, most: float = 0.5) -> str:
    """Begin a run; return the refusal, if there was one."""
    try:
        again(budget(folder, run, most=most), "round-1")
    except SiteFault as fault:
        return f"{fault.code}: {fault}"
    return ""


def test_two_processes_and_many_threads_never_spend_the_same_rest(tmp_path: Path) -> None:
    others = [threading.Thread(target=reserve_at, args=(tmp_path, f"thread-{n}")) for n in range(6)]
    code = (
        "from pathlib import Path\n"
        "from tests.test_site_budget import reserve_at\n"
        f"for n in range(6): reserve_at(Path({str(tmp_path)!r}), f'process-{{n}}')"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as child:
        for other in others:
            other.start()
        for other in others:
            other.join()
        assert child.wait(timeout=120) == 0
    assert 0 < epsilon_of(tmp_path) <= 0.5
    count = len(read_ledger(tmp_path))
    assert spent(gaussian_reservations(*[(0.1, 2)] * (count + 1)), delta=DELTA).epsilon > 0.5


def test_a_ledger_that_is_held_is_waited_for_and_then_named(
    tmp_path: Path,
) -> None:
    with (
        chained_log.opened(tmp_path, "privacy-ledger"),
        pytest.raises(chained_log.LogFault, match="held by another process"),
        chained_log.opened(tmp_path, "privacy-ledger", seconds=0.05),
    ):
        raise AssertionError("two at once")


# Crashes -----------------------------------------------------------------------------------------


def test_killed_between_reservation_and_release_counts_as_spent(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from tasks.privacy import chained_log\n"
        "from tests.test_site_budget import again, budget\n"
        "real = chained_log.OpenLog.append\n"
        "def append(self, entry):\n"
        "    if entry['kind'] == 'release': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    real(self, entry)\n"
        "chained_log.OpenLog.append = append\n"
        f"again(budget(Path({str(tmp_path)!r})), 'round-1')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == -9
    (found,) = read_ledger(tmp_path)
    assert found.steps == ()
    assert epsilon_of(tmp_path) == spent(gaussian_reservations((0.1, 2)), delta=DELTA).epsilon
    again(budget(tmp_path), "round-1")  # the lock has died with its process


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_piece_of_a_line_that_a_crash_left_is_dropped(tmp_path: Path, cut: int) -> None:
    again(budget(tmp_path), "round-1")
    before = ledger(tmp_path).read_bytes()
    head = (tmp_path / "privacy-ledger.head").read_bytes()
    again(budget(tmp_path, "run-2"), "round-1")
    line = ledger(tmp_path).read_bytes()[len(before) :].split(b"\n")[0]
    ledger(tmp_path).write_bytes(before + line[:cut])
    (tmp_path / "privacy-ledger.head").write_bytes(head)
    assert [own.run for own in read_ledger(tmp_path)] == ["run-1"]
    again(budget(tmp_path, "run-3"), "round-1")
    assert [own.run for own in read_ledger(tmp_path)] == ["run-1", "run-3"]


def test_a_whole_entry_that_the_head_does_not_know_yet_is_spent(tmp_path: Path) -> None:
    again(budget(tmp_path), "round-1")
    head = (tmp_path / "privacy-ledger.head").read_bytes()
    again(budget(tmp_path, "run-2"), "round-1")
    (tmp_path / "privacy-ledger.head").write_bytes(head)
    assert [own.run for own in read_ledger(tmp_path)] == ["run-1", "run-2"]
    again(budget(tmp_path, "run-3"), "round-1")
    assert len(read_ledger(tmp_path)) == 3


@pytest.mark.parametrize("name", ["pwrite", "fsync", "replace"])
def test_a_disk_that_is_full_refuses_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    again(budget(tmp_path), "round-1")
    before = epsilon_of(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        new = budget(tmp_path, "run-2")
        refused("site-ledger", "No space left on device", lambda: again(new, "round-1"))
    assert epsilon_of(tmp_path) >= before
    again(budget(tmp_path, "run-3"), "round-1")
    assert {"run-1", "run-3"} <= {own.run for own in read_ledger(tmp_path)}


def test_a_line_that_is_written_in_pieces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:7], at))
    again(budget(tmp_path), "round-1")
    assert [own.steps for own in read_ledger(tmp_path)] == [("round-1",)]


def test_a_state_dir_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    own = budget(tmp_path / "file")
    refused("site-ledger", 'node config "state-dir"', lambda: own.check(None))
    refused("site-ledger", 'node config "state-dir"', lambda: again(own, "round-1"))


def test_the_files_are_their_owners(tmp_path: Path) -> None:
    again(budget(tmp_path / "made"), "round-1")
    assert (tmp_path / "made").stat().st_mode & 0o77 == 0
    for path in (tmp_path / "made").iterdir():
        assert path.stat().st_mode & 0o77 == 0, path


# Tampering ---------------------------------------------------------------------------------------


def three_entries(folder: Path) -> list[bytes]:
    again(budget(folder), "round-1")
    again(budget(folder), "round-2")
    return ledger(folder).read_bytes().splitlines(keepends=True)


def cheaper(line: bytes) -> bytes:
    return line.replace(b'"ratio": 0.1', b'"ratio": 0.001')


TAMPERED = {
    "altered": lambda lines: [cheaper(lines[0]), *lines[1:]],
    "line 1 taken": lambda lines: lines[1:],
    "line 2 taken": lambda lines: [lines[0], lines[2]],
    "cut off": lambda lines: lines[:2],
    "cut in a line": lambda lines: [*lines[:2], lines[2][:30]],
    "emptied": lambda _: [],
    "swapped": lambda lines: [lines[0], lines[2], lines[1]],
    "garbage": lambda lines: [*lines, b"\x00\xff\n"],
    "no object": lambda lines: [*lines, b"[1]\n"],
    "no number": lambda lines: [*lines, b'{"entry": 4, "x": NaN, "chain": ""}\n'],
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_a_ledger_that_was_tampered_with_is_refused(tmp_path: Path, kind: str) -> None:
    lines = three_entries(tmp_path)
    ledger(tmp_path).write_bytes(b"".join(TAMPERED[kind](lines)))
    refused("site-ledger", "privacy-ledger.jsonl", lambda: read_ledger(tmp_path))
    new = budget(tmp_path, "run-2")
    refused("site-ledger", "privacy-ledger.jsonl", lambda: new.check(Cost(0.1)))
    refused("site-ledger", "privacy-ledger.jsonl", lambda: again(new, "round-1"))


def test_a_ledger_that_is_missing_is_refused_and_not_begun_anew(tmp_path: Path) -> None:
    three_entries(tmp_path)
    ledger(tmp_path).unlink()
    refused("site-ledger", "missing", lambda: again(budget(tmp_path, "run-2"), "round-1"))
    assert not ledger(tmp_path).exists()


@pytest.mark.parametrize("text", [None, "", "{}", '{"entries": 0, "chain": "x"}', "[]"])
def test_a_head_that_is_missing_or_altered_is_refused(tmp_path: Path, text: str | None) -> None:
    three_entries(tmp_path)
    head = tmp_path / "privacy-ledger.head"
    head.unlink() if text is None else head.write_text(text)
    refused("site-ledger", "altered", lambda: again(budget(tmp_path, "run-2"), "round-1"))


def test_an_entry_of_another_version_is_refused(tmp_path: Path) -> None:
    with chained_log.opened(tmp_path, "privacy-ledger") as log:
        log.append({"kind": "give-back", "run": "run-1"})
    refused("site-ledger", "entry 1 is none that this version knows", lambda: read_ledger(tmp_path))


# Whatever happens --------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["release", "check", "full", "crash"]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.sampled_from([0.01, 0.1, 0.5]),
        st.integers(1, 3),
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(events=EVENTS)
def test_what_was_spent_never_falls_and_never_passes_the_maximum(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[str, int, int, float, int]],
) -> None:
    folder = tmp_path_factory.mktemp("site")
    before, left_site = 0.0, list[float]()
    for what, run, step, ratio, releases in events:
        own = budget(folder, f"run-{run}", most=2.0)
        with pytest.MonkeyPatch.context() as patch:
            if what == "full":
                patch.setattr(os, "replace", _no_space)
            try:
                if what == "check":
                    own.check(Cost(ratio), releases=releases)
                else:
                    own.release(step=f"round-{step}", cost=Cost(ratio), releases=releases)
                    left_site.append(ratio)
            except SiteFault:
                pass
        if what == "crash" and ledger(folder).exists():
            with ledger(folder).open("ab") as file:
                file.write(b'{"entry": 9, "ki')
        now = epsilon_of(folder)
        assert before <= now <= 2.0
        really = [Reservation(str(n), "", "", 1, Cost(r)) for n, r in enumerate(left_site)]
        assert spent(really, delta=DELTA).epsilon <= now * (1 + 1e-9)
        before = now


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


# The command -------------------------------------------------------------------------------------


def test_the_command_says_what_is_spent_and_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again(budget(tmp_path), "round-1")
    again(budget(tmp_path, "run-2"), "round-1")
    assert main(["site-ledger", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "run-1" in told
    assert "1 of 2" in told
    assert "of max-epsilon 3" in told
    assert main(["site-ledger", str(tmp_path), "--max-epsilon", "5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["left"] == pytest.approx(5 - epsilon_of(tmp_path))
    assert [own["released"] for own in document["runs"]] == [1, 1]


def test_the_command_refuses_a_ledger_that_was_altered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three_entries(tmp_path)
    assert main(["site-ledger", str(tmp_path), "--max-delta", "2"]) == 2
    assert main(["site-ledger", str(tmp_path / "none")]) == 2
    ledger(tmp_path).write_bytes(b"")
    assert main(["site-ledger", str(tmp_path)]) == 1
    assert "cut off" in capsys.readouterr().err
