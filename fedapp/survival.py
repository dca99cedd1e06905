"""Federated survival models from Python, by the names of federated-survival.

A script for that package runs with its import changed::

    from fedapp.survival import FederatedSurvival

    model = FederatedSurvival(model="DeepSurv", n_clients=3, global_rounds=5, local_steps=3)
    model.fit(frame)
    model.predict_survival(frame.head())
    model.get_privacy_info()["noise_driver"]

What runs is this application: the same sites, messages and strategies as under ``flwr run``, in
this process unless told otherwise. So numbers differ from that package's, updates are privatized
unless ``use_differential_privacy=False``, and what a site sends are sums and updates, not rows.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy.typing as npt
import pandas as pd

from fedapp.fsa_config import FSAConfig
from fedapp.survival_launch import Backend
from fedapp.survival_runner import FitError, FSARunner
from tasks.survival.differential_privacy import DifferentialPrivacy

__all__ = ["DifferentialPrivacy", "FSAConfig", "FSARunner", "FederatedSurvival", "FitError"]


class FederatedSurvival:
    """A federated survival model with ``fit`` and ``predict_survival``.

    Parameters
    ----------
    model : str, optional
        Name of the model; default the configuration's (DeepSurv).
    config : FSAConfig, optional
        Settings, instead of all others.
    **settings : Any
        ``n_clients``, ``global_rounds``, ``local_steps``, ``random_state`` and any other setting
        of `FSAConfig`.

    Attributes
    ----------
    config : FSAConfig
        Settings.
    runner_ : FSARunner or None
        What ran; None before `fit`.
    history_ : dict or None
        What `FSARunner.run` returned.

    Raises
    ------
    TypeError
        For settings that do not exist, or settings beside `config`.
    ValueError
        For every value that is not allowed.

    Warns
    -----
    UserWarning
        For each setting that was changed from its default and has no effect.
    """

    def __init__(
        self, model: str | None = None, *, config: FSAConfig | None = None, **settings: Any
    ) -> None:
        if model is not None:
            if "model_type" in settings:
                raise TypeError("model and model_type are one setting; give one of them")
            settings = {"model": model, **settings}
        if config is not None and settings:
            raise TypeError(f"config: holds all settings; do not give {', '.join(settings)}, too")
        self.config = FSAConfig(**settings) if config is None else config
        self.runner_: FSARunner | None = None
        self.history_: dict[str, Any] | None = None

    def fit(
        self,
        data: Any = None,
        durations: Any = None,
        events: Any = None,
        *,
        duration_col: str | None = None,
        event_col: str | None = None,
        client_col: str | None = None,
        backend: Backend = "in-process",
        superlink: str = "",
    ) -> FederatedSurvival:
        """Train over sites.

        Parameters
        ----------
        data : object
            Tables in any form of :mod:`fedapp.survival_tables`: one DataFrame, whose rows are
            dealt to ``n_clients`` sites; a list of them, one a site; a mapping of site names to
            tables; a partition with ``clients_set``; an array of features. None: the data of the
            run configuration, or of the sites themselves with `superlink`.
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
        FederatedSurvival
            This object.

        Raises
        ------
        FitError
            If the run was refused or its result does not exist, with the reason.
        TypeError, ValueError
            If data or settings are not usable.
        """
        runner = FSARunner(self.config)
        history = runner.run(
            data,
            durations=durations,
            events=events,
            duration_col=duration_col,
            event_col=event_col,
            client_col=client_col,
            backend=backend,
            superlink=superlink,
        )
        self.runner_, self.history_ = runner, history
        return self

    def predict_survival(self, features: Any, times: npt.ArrayLike | None = None) -> pd.DataFrame:
        """Survival of each row over time, times by rows; see `FSARunner.predict_survival`."""
        return self._runner().predict_survival(features, times)

    def evaluate(
        self,
        data: Any,
        durations: Any = None,
        events: Any = None,
        *,
        duration_col: str | None = None,
        event_col: str | None = None,
    ) -> dict[str, Any]:
        """C-index, integrated Brier score and others; see `FSARunner.evaluate`."""
        return self._runner().evaluate(
            data, durations, events, duration_col=duration_col, event_col=event_col
        )

    def get_privacy_info(self) -> dict[str, Any]:
        """Return what is configured and measured, before and after `fit`; see `FSARunner`."""
        return self._runner().get_privacy_info()

    def get_run_summary(self) -> dict[str, Any]:
        """Return settings and final metrics of the last fit, and where its run folder is.

        Raises
        ------
        RuntimeError
            Before `fit`.
        """
        runner, config = self._runner(), self.config
        result = runner.result
        final = {
            name: values[-1]
            for name, values in (self.history_ or {}).items()
            if values and name.endswith(("_Cindex", "_IBS"))
        }
        return {
            "model": config.model,
            "protocol": "FedAvg",
            "n_clients": result.summary["n-sites"],
            "n_features": len(runner.feature_names),
            "global_rounds": config.global_rounds,
            "local_steps": config.local_steps,
            "batch_size": config.batch_size,
            "final_metrics": final,
            "run_folder": str(result.run_folder),
        }

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all settings by name, as scikit-learn asks for."""
        names = [one.name for one in fields(self.config) if one.name != "options"]
        return {name: getattr(self.config, name) for name in names} | dict(self.config.options)

    def set_params(self, **settings: Any) -> FederatedSurvival:
        """Change settings; what was fitted before is forgotten."""
        self.config = FSAConfig(**{**self.get_params(), **settings})
        self.runner_, self.history_ = None, None
        return self

    def __repr__(self) -> str:
        return f"FederatedSurvival({self.config!r})"

    def _runner(self) -> FSARunner:
        return FSARunner(self.config) if self.runner_ is None else self.runner_
