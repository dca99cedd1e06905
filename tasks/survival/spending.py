"""What a survival run spends of a site's privacy, as the site works it out itself.

The bound is of the whole update: whatever rows a site has, its clipped update is no longer than
dp-clip-norm, so two updates differ by at most twice that, and Gaussian noise of standard deviation
sigma on it is one Gaussian release of ratio 2 clip / sigma. No number of the server's goes into
this but the K by whose root the noise is divided, and that as the site did divide.
"""

from __future__ import annotations

from tasks.privacy.mechanisms import GAUSSIAN, LAPLACE
from tasks.privacy.site_budget import Cost
from tasks.survival.config import SurvivalConfig

EXACT_SUMS = (
    "moments of features, counts by time, losses, evaluation and baseline hazard leave as exact "
    "sums beside the updates"
)


def unstated(config: SurvivalConfig) -> list[str]:
    """Say why the updates of a run have no epsilon, a line a reason; empty if they have one."""
    if config.dp_mechanism == LAPLACE:
        return [
            'survival.dp-mechanism = "laplace": its noise is not calibrated to the bound of an '
            "update's L2 norm"
        ]
    if config.dp_mechanism != GAUSSIAN:
        return [f'survival.dp-mechanism = "{config.dp_mechanism}": updates leave without noise']
    if config.dp_noise_multiplier == 0:
        return ["survival.dp-noise-multiplier = 0.0: updates leave without noise"]
    return []


def update_cost(config: SurvivalConfig, *, num_clients: int) -> Cost:
    """Cost of one update with Gaussian noise.

    Parameters
    ----------
    config : SurvivalConfig
        One whose `unstated` is empty.
    num_clients : int
        K, by whose root the noise was divided; at least 1.
    """
    settings = config.privatization
    assert settings is not None
    return Cost(ratio=2.0 * settings.clip_norm / settings.noise(num_clients=num_clients).scale)
