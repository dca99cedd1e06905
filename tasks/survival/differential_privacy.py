"""Privatization of a survival model's update under the names of federated-survival.

The document meant below is the privacy page of that package, version 0.8.
:class:`DifferentialPrivacy` does what it describes; the mathematics is in :mod:`tasks.privacy`. The
document's scale and the reading of it are kept too: noise and clipping as configured, and no formal
guarantee derived from them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.privacy.mechanisms import (
    AdditiveNoise,
    PrivatizationSettings,
    additive_mechanism_faults,
    is_number,
    noise_source,
    select_candidate,
    setting_faults,
)
from tasks.privacy.renyi import renyi_to_epsilon
from tasks.privacy.update import Clip, clip_by_global_norm, is_floating, privatize
from tasks.site.faults import SiteFault
from tasks.survival.privacy_words import (
    DEFAULTS,
    INACTIVE_PARAMETERS,
    NOISE_DRIVERS,
    no_guarantee,
    privacy_info,
    warn_of_ignored_settings,
)

Weights = Mapping[str, Any]


class DifferentialPrivacy:
    """Clip and noise one client's update; select a candidate privately.

    Parameters
    ----------
    config : object, optional
        Anything with the six settings as attributes, for instance
        :class:`~tasks.survival.config.SurvivalConfig`; settings given by keyword go before it.
    dp_mechanism : {"gaussian", "laplace", "exponential"}
        Distribution of the noise. ``"exponential"`` selects a candidate and trains nothing.
    dp_clip_norm : float
        Bound of the update's L2 norm, > 0.
    dp_noise_multiplier : float
        Drives Gaussian noise, >= 0.
    dp_sensitivity : float
        Factor on the noise scale, > 0; for selection the sensitivity of the quality.
    dp_epsilon : float
        Drives Laplace noise and selection, > 0.
    dp_delta : float
        In (0, 1). Drives nothing; read by :meth:`convert_renyi_to_epsilon` only.
    rng : numpy.random.Generator, optional
        For simulations. Without it noise comes from the operating system's generator.
    clip : callable
        Another clipping; see :func:`tasks.privacy.update.privatize`.

    Attributes
    ----------
    last_noise_sigma : float or None
        Standard deviation of one element's noise in the last update (sqrt(2) b under Laplace).
    last_clipped_update_norm : float or None
        L2 norm of the last clipped update, before noise. Do not send it.
    last_noise_to_signal : float or None
        last_noise_sigma sqrt(number of floating-point elements) / last_clipped_update_norm;
        infinite for a zero update.

    Raises
    ------
    ValueError
        For everything out of range: name, value and what is allowed.

    Warns
    -----
    UserWarning
        For each setting that was changed from its default and that the mechanism ignores.
    """

    def __init__(
        self,
        config: object | None = None,
        *,
        dp_mechanism: str | None = None,
        dp_clip_norm: float | None = None,
        dp_noise_multiplier: float | None = None,
        dp_sensitivity: float | None = None,
        dp_epsilon: float | None = None,
        dp_delta: float | None = None,
        rng: np.random.Generator | None = None,
        clip: Clip = clip_by_global_norm,
    ) -> None:
        given = {
            "dp_mechanism": dp_mechanism,
            "dp_clip_norm": dp_clip_norm,
            "dp_noise_multiplier": dp_noise_multiplier,
            "dp_sensitivity": dp_sensitivity,
            "dp_epsilon": dp_epsilon,
            "dp_delta": dp_delta,
        }
        self._values: dict[str, Any] = {
            name: getattr(config, name, DEFAULTS[name]) if value is None else value
            for name, value in given.items()
        }
        if faults := _faults(self._values):
            raise ValueError("; ".join(faults))
        warn_of_ignored_settings(self._values)
        self._source = noise_source(rng)
        self._clip = clip
        self.last_noise_sigma: float | None = None
        self.last_clipped_update_norm: float | None = None
        self.last_noise_to_signal: float | None = None

    # What is configured ----------------------------------------------------------------------

    @property
    def noise_driver(self) -> str:
        """Name of the setting that sets the noise."""
        return NOISE_DRIVERS[self._values["dp_mechanism"]]

    @property
    def inactive_parameters(self) -> list[str]:
        """Names of the settings that the mechanism ignores."""
        return list(INACTIVE_PARAMETERS[self._values["dp_mechanism"]])

    @property
    def guarantee(self) -> str:
        """One sentence: that no formal guarantee is claimed, and why."""
        return no_guarantee(self._values["dp_mechanism"])

    def get_privacy_info(self) -> dict[str, Any]:
        """Return what is configured and what it is worth, before and after any update."""
        return privacy_info(self._values)

    def noise(self, *, num_clients: int) -> AdditiveNoise:
        """Return the noise of one client's update when `num_clients` clients are addressed.

        Raises
        ------
        ValueError
            If `num_clients` is no whole number >= 1, or the mechanism is the exponential one.
        """
        settings = PrivatizationSettings(
            clip_norm=self._values["dp_clip_norm"],
            mechanism=self._values["dp_mechanism"],
            noise_multiplier=self._values["dp_noise_multiplier"],
            sensitivity=self._values["dp_sensitivity"],
            epsilon=self._values["dp_epsilon"],
        )
        return settings.noise(num_clients=num_clients)

    # In training ------------------------------------------------------------------------------

    def privatize_model_update(
        self, global_weights: Weights, local_weights: Weights, num_clients: int = 1
    ) -> dict[str, Any]:
        """Return global + clipped and noised (local - global). At the client, once a round.

        Parameters
        ----------
        global_weights : mapping of str to torch.Tensor or numpy.ndarray
            The model as received.
        local_weights : mapping of str to torch.Tensor or numpy.ndarray
            The model as trained.
        num_clients : int
            Clients addressed in this round, K: the noise is divided by sqrt(K). Default 1, the
            most noise.

        Returns
        -------
        dict
            The kind, types and devices of `global_weights`. Integer and boolean buffers are the
            global ones.

        Raises
        ------
        ValueError
            If the mechanism is the exponential one or `num_clients` is out of range.
        tasks.site.faults.SiteFault
            See :func:`tasks.privacy.update.privatize`: nothing may be sent then.
        """
        faults = additive_mechanism_faults(self._values["dp_mechanism"], "dp_mechanism")
        if faults:
            raise ValueError("; ".join(faults))
        update = privatize(
            _to_numpy(global_weights),
            _to_numpy(local_weights),
            clip_norm=self._values["dp_clip_norm"],
            noise=self.noise(num_clients=num_clients),
            source=self._source,
            clip=self._clip,
        )
        self.last_noise_sigma = update.noise_sigma
        self.last_clipped_update_norm = update.clipped_norm
        self.last_noise_to_signal = update.noise_to_signal
        return _like(global_weights, update.arrays)

    def apply_dp_to_weights(self, weights: Any, num_clients: int | None = None) -> Any:
        """Return `weights`, the same object: the average at the server gets no noise."""
        return weights

    # Off the training path --------------------------------------------------------------------

    def add_noise_to_weights(self, weights: Weights, num_clients: int = 1) -> dict[str, Any]:
        """Return weights with noise on every floating-point element; not used in training.

        It protects nothing: weights themselves are not bounded, so noise of whatever scale has no
        sensitivity to be measured against. :meth:`privatize_model_update` bounds the update first.
        """
        noise = self.noise(num_clients=num_clients)
        noisy = {
            name: np.asarray(array + noise.draw(self._source, array.shape), dtype=array.dtype)
            if is_floating(array)
            else array
            for name, array in _to_numpy(weights).items()
        }
        return _like(weights, noisy)

    def exponential_mechanism(self, candidates: Sequence[Any], quality_scores: Any) -> int:
        """Return the index of a candidate, with P ~ exp(dp_epsilon q / (2 dp_sensitivity)).

        Parameters
        ----------
        candidates : sequence of length m
            What is selected from.
        quality_scores : array_like, shape (m,)
            Quality of each; higher is better.

        Raises
        ------
        ValueError
            If the lengths differ or a score is not finite.
        """
        scores = np.asarray(quality_scores, dtype=np.float64)
        if scores.shape != (len(candidates),):
            raise ValueError(
                f"quality_scores of shape {scores.shape}: must be one score for each of the "
                f"{len(candidates)} candidates"
            )
        return select_candidate(
            scores,
            epsilon=self._values["dp_epsilon"],
            sensitivity=self._values["dp_sensitivity"],
            source=self._source,
        )

    def convert_renyi_to_epsilon(self, alpha: float, rdp: float) -> float:
        """Return the epsilon of (epsilon, dp_delta) that Renyi DP of one order implies."""
        return renyi_to_epsilon(alpha, rdp, delta=self._values["dp_delta"])


def _faults(values: Mapping[str, Any]) -> list[str]:
    faults = []
    if values["dp_mechanism"] not in NOISE_DRIVERS:
        allowed = ", ".join(f'"{name}"' for name in NOISE_DRIVERS)
        faults.append(f"dp_mechanism = {values['dp_mechanism']!r}: must be one of {allowed}")
    numbers = {name.removeprefix("dp_"): value for name, value in values.items()}
    delta = numbers.pop("delta")
    del numbers["mechanism"]
    faults += setting_faults(numbers, prefix="dp_")
    if not is_number(delta) or not 0 < delta < 1:
        faults.append(f"dp_delta = {delta!r}: must be a number in (0, 1)")
    return faults


def _to_numpy(weights: Weights) -> dict[str, NDArray[Any]]:
    return {name: _array(name, value) for name, value in weights.items()}


def _array(name: str, value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    try:
        return np.asarray(value.detach().cpu().numpy())
    except (AttributeError, TypeError, RuntimeError):
        kind = getattr(value, "dtype", type(value).__name__)
        raise SiteFault(
            "unsupported-update",
            f"array {name!r}: {kind}; must be a dense tensor or array of float16, float32 or "
            "float64 (or an integer or boolean buffer)",
        ) from None


def _like(weights: Weights, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return arrays as the kind of mapping, tensor and device that `weights` has."""
    kind: type[dict[str, Any]] = OrderedDict if isinstance(weights, OrderedDict) else dict
    result = kind()
    for name, value in weights.items():
        if isinstance(value, np.ndarray | np.generic):
            result[name] = arrays[name]
        else:
            import torch  # here only: numpy users do not wait for it

            result[name] = torch.from_numpy(np.array(arrays[name])).to(value.device)
    return result
