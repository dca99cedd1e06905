"""Run the survival task from Python, and predict and evaluate with what it gave: `FSARunner`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedapp.fsa_config import FSAConfig
from fedapp.fsa_names import KEYS
from fedapp.survival_history import history_of, measured_noise
from fedapp.survival_launch import Backend, run_at_superlink, run_in_simulation
from tasks.survival.privacy_words import privacy_info

if TYPE_CHECKING:
    from fedapp.simulation import SimulationResult
    from tasks.survival.predictor import SurvivalPredictor

SCOPE = (
    "the update of a site's whole model, clipped and noised at the site once a round; the sums of "
    "the other messages carry no noise"
)


class FitError(ValueError):
    """The run was refused, or its result does not exist; the text says why.

    Parameters
    ----------
    reason : str
        What the run said.
    result : SimulationResult
        What it left.
    """

    def __init__(self, reason: str, result: SimulationResult) -> None:
        self.result = result
        super().__init__(reason)


class FSARunner:
    """Run the survival task over sites, and keep what it gave.

    Parameters
    ----------
    config : FSAConfig
        Settings.

    Attributes
    ----------
    config : FSAConfig
        Settings.
    result_ : SimulationResult or None
        Summary, ledger and run folder of the last run.
    """

    def __init__(self, config: FSAConfig) -> None:
        if not isinstance(config, FSAConfig):
            raise TypeError(f"config: must be an FSAConfig, not a {type(config).__name__}")
        self.config = config
        self._forget()

    def _forget(self) -> None:
        options = self.config.options
        self.result_: SimulationResult | None = None
        self._predictor: SurvivalPredictor | None = None
        self._features: tuple[str, ...] = ()
        self._labels = (str(options.get("time") or "time"), str(options.get("event") or "event"))

    def run(
        self,
        data: Any = None,
        type: str = "raw",
        *,
        durations: Any = None,
        events: Any = None,
        duration_col: str | None = None,
        event_col: str | None = None,
        client_col: str | None = None,
        backend: Backend = "in-process",
        superlink: str = "",
    ) -> dict[str, Any]:
        """Train and evaluate.

        Parameters
        ----------
        data : object
            Tables in any form of :mod:`fedapp.survival_tables`: a DataFrame, a list of them (one
            a site), a mapping of site names to tables, a partition with ``clients_set``. None:
            the data of the run configuration, or of the sites themselves with `superlink`.
        type : str
            ``"raw"``; nothing else is here.
        durations, events : array_like, shape (n,), optional
            Times and events where `data` is an array of features.
        duration_col, event_col : str, optional
            Columns of times and events; default ``time``, and ``event`` or ``status``.
        client_col : str, optional
            Column of one table whose values are the sites.
        backend : {"in-process", "ray"}
            ``"ray"`` calls the real ``flwr run`` on simulated SuperNodes; names of sites are not
            kept there.
        superlink : str
            Name of a SuperLink connection of the Flower configuration, to run at its SuperNodes.

        Returns
        -------
        dict
            Lists by round, the first round first: ``test_Cindex`` (within sites, on their
            evaluation rows), ``train_loss``, ``noise_to_signal`` (largest of the sites);
            ``test_IBS`` of the final model, if the run gave one; ``rounds``, the records they are
            from. Of a partition with rows held out, ``test_Cindex``, ``test_IBS``,
            ``train_Cindex`` and ``train_IBS`` have one element, the final model's on these rows
            and on those of the sites.

        Raises
        ------
        FitError
            If the run was refused or its result does not exist, with the reason.
        TypeError, ValueError
            If data or settings are not usable.
        RuntimeError
            If a SuperLink on another machine keeps the run folder.
        """
        from fedapp.survival_tables import tables_of_sites

        if type != "raw":
            raise ValueError(f"type = {type!r}: must be 'raw'; data are not augmented here")
        settings = self.config.to_run_config()
        seed = self.config.random_state
        seed = secrets.randbits(32) if seed is None else seed
        if superlink and (data is not None or backend != "in-process"):
            words = "data are at its sites; give neither data nor backend"
            raise ValueError(f"superlink = {superlink!r}: {words}")
        tables = None
        if data is not None:
            tables = tables_of_sites(
                data,
                durations,
                events,
                config=self.config,
                seed=seed,
                duration_col=duration_col,
                event_col=event_col,
                client_col=client_col,
            )
            settings |= {"survival.time": tables.time, "survival.event": tables.event}
            if tables.held_out is not None:  # so the sites need not hold out any
                settings[KEYS["test_size"]] = 0.0
        if superlink:
            result = run_at_superlink(settings, seed=seed, superlink=superlink)
        else:
            result = run_in_simulation(settings, tables, seed=seed, backend=backend)
        self._forget()
        status = str(result.summary.get("status", "failed"))
        if status != "ok":
            reason = result.summary.get("reason", "the run gave no result")
            raise FitError(f"{status}: {reason}", result)
        self.result_ = result
        if tables is not None:
            self._labels, self._features = (tables.time, tables.event), tuple(tables.features)
        return history_of(
            self.result,
            None
            if tables is None or tables.held_out is None
            else {"train": self.evaluate(tables.frames), "test": self.evaluate(tables.held_out)},
        )

    @property
    def result(self) -> SimulationResult:
        """Summary, ledger and run folder of the last run.

        Raises
        ------
        RuntimeError
            Before a run.
        """
        if self.result_ is None:
            raise RuntimeError("no model yet: fit must be called first (run, of an FSARunner)")
        return self.result_

    @property
    def predictor(self) -> SurvivalPredictor:
        """The trained model.

        Raises
        ------
        RuntimeError
            Before a run.
        """
        if self._predictor is None:
            from tasks.survival.predictor import SurvivalPredictor

            self._predictor = SurvivalPredictor.load(self.result.run_folder / "model.npz")
        return self._predictor

    def predict_survival(self, features: Any, times: npt.ArrayLike | None = None) -> pd.DataFrame:
        """Survival of each row over time.

        Parameters
        ----------
        features : DataFrame or array_like, shape (n, p)
            A DataFrame needs the columns that the model was trained on, others are ignored. The
            columns of an array are the features in the order of the training data's, x1 to xp.
        times : array_like, shape (m,), optional
            From 0 to the end of the model's time grid; default that grid.

        Returns
        -------
        DataFrame, shape (m, n)
            Times by rows, as federated-survival has it; index the times, columns the index of
            the rows.

        Raises
        ------
        RuntimeError
            Before a run.
        ValueError
            If rows or times are not usable, with everything that is wrong.
        """
        from fedapp.survival_tables import feature_frame

        predictor = self.predictor
        frame = feature_frame(features, self.feature_names)
        at = predictor.baseline.grid if times is None else np.atleast_1d(np.asarray(times, float))
        survival = predictor.survival(frame, at)
        return pd.DataFrame(survival.T, index=pd.Index(at, name="time"), columns=frame.index)

    def evaluate(
        self,
        data: Any,
        durations: Any = None,
        events: Any = None,
        *,
        duration_col: str | None = None,
        event_col: str | None = None,
    ) -> dict[str, Any]:
        """Metrics of the trained model on given rows, all of them pooled here.

        Parameters
        ----------
        data : object
            One table with times and events; a list or mapping of them, where pairs of rows are
            compared within tables only, as in a run; or features alone.
        durations, events : array_like, shape (n,), optional
            Times and events of features alone.
        duration_col, event_col : str, optional
            Columns of times and events; default those of the training data.

        Returns
        -------
        dict
            ``c_index``, ``ibs`` and others with bounds, ``prediction_diagnostics``; see
            `fedapp.survival_scores.score_tables`. What does not exist is absent.

        Raises
        ------
        RuntimeError
            Before a run.
        TypeError, ValueError
            If the rows are not usable, with everything that is wrong.
        """
        from fedapp.survival_scores import score_tables
        from fedapp.survival_tables import EVENT, OTHER_EVENT, tables_to_score

        summary, options = self.result.summary, self.config.options
        time, event = duration_col or self._labels[0], event_col or self._labels[1]
        tables = tables_to_score(
            data, durations, events, features=self.feature_names, time=time, event=event
        )
        if event_col is None and tables and all(event not in table for table in tables):
            names = [name for name in (EVENT, OTHER_EVENT) if all(name in one for one in tables)]
            event = names[0] if names else event
        return score_tables(
            self.predictor,
            tables,
            time=time,
            event=event,
            event_value=str(options.get("event_value", "1")),
            censored_value=str(options.get("censored_value", "0")),
            kind=str(summary["model-kind"]),
            confidence_level=float(options.get("confidence_level", 0.95)),
        )

    def get_privacy_info(self) -> dict[str, Any]:
        """Return what is configured, what drives the noise and, after a run, what was measured.

        Returns
        -------
        dict
            ``enabled``, ``mechanism``, ``noise_driver``, ``inactive_parameters``,
            ``configured_...``: the settings as they are, no budget that was achieved;
            ``formal_accounting`` and ``formal_accounting_available``: False; ``guarantee`` and
            ``privacy_scope``: sentences; ``measured``: None before a run, then the median and
            largest ratio of noise to signal over all updates (as the server estimates it), and
            the number of updates in which the noise left no signal to be seen.
        """
        info = privacy_info(self.config.privacy_settings)
        return {
            "enabled": self.config.privatizes,
            **info,
            "formal_accounting": info["formal_accounting_available"],
            "privacy_scope": SCOPE if self.config.privatizes else "nothing: privatization is off",
            "measured": None if self.result_ is None else measured_noise(self.result_.summary),
        }

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in the order of the training data's columns."""
        return self._features or self.predictor.feature_names
