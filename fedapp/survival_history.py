"""What a survival run gave, under the names of federated-survival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedapp.simulation import SimulationResult


def history_of(
    result: SimulationResult, scores: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return lists by round; see `fedapp.survival_runner.FSARunner.run`.

    Parameters
    ----------
    result : SimulationResult
        Of the run.
    scores : mapping of str to mapping, optional
        Metrics of the final model on rows at hand, ``train`` and ``test``; they take the place of
        those by round.
    """
    from fedapp.run_folder import RunFolder

    records = RunFolder.open(result.run_folder).read().rounds
    trained = [record for record in records if record.get("round", 0) >= 1]
    history: dict[str, Any] = {
        "test_Cindex": [one["c-index"] for one in trained if "c-index" in one],
        "test_IBS": [result.summary["ibs"]] if "ibs" in result.summary else [],
        "train_loss": [one["train-loss"] for one in trained if "train-loss" in one],
        "noise_to_signal": [
            max(one["noise-to-signal"].values()) for one in trained if one.get("noise-to-signal")
        ],
        "rounds": records,
    }
    for name, found in (scores or {}).items():
        history[f"{name}_Cindex"] = _present(found, "c_index")
        history[f"{name}_IBS"] = _present(found, "ibs")
    return history


def measured_noise(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run's summary says of noise against signal; absent where nothing was seen."""
    names = {
        "noise-to-signal-median": "noise_to_signal_median",
        "noise-to-signal-max": "noise_to_signal_max",
        "noise-to-signal-unbounded": "updates_without_visible_signal",
    }
    return {name: summary[key] for key, name in names.items() if key in summary}


def _present(scores: Mapping[str, Any], name: str) -> list[float]:
    return [scores[name]] if name in scores else []
