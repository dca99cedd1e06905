"""A site's update as it may leave: clipped, noised, and noted where the site sets a maximum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.privacy.client import MOST_CLIENTS
from tasks.privacy.mechanisms import noise_source
from tasks.privacy.update import privatize
from tasks.site.faults import SITE_LIMIT, SiteFault
from tasks.survival.messages import Arrays, TrainConfig
from tasks.survival.models import SurvivalModel, arrays_of
from tasks.survival.spending import update_cost

if TYPE_CHECKING:
    from tasks.survival.client import SurvivalSite


def private_update(
    site: SurvivalSite, received: Arrays, model: SurvivalModel, request: TrainConfig
) -> Arrays:
    """Return the global model with the site's private update on it.

    Parameters
    ----------
    site : SurvivalSite
        Whose settings and budget hold.
    received : dict of str to ndarray
        The global model.
    model : SurvivalModel
        As trained by the site.
    request : TrainConfig
        Round, and number of clients that the noise is scaled for.

    Raises
    ------
    SiteFault
        ``unbelievable-clients``; ``site-limit`` or ``site-ledger`` where the site sets a maximum
        that the update does not keep; and as `privatize`. Nothing may leave then.
    """
    settings = site.config.privatization
    trained = arrays_of(model.network)
    if settings is None:
        return trained
    if not 1 <= request.num_clients <= MOST_CLIENTS:  # noise is divided by its square root
        raise SiteFault(
            "unbelievable-clients",
            f"num-clients = {request.num_clients}: must be 1 to {MOST_CLIENTS}",
        )
    update = privatize(
        received,
        trained,
        clip_norm=settings.clip_norm,
        noise=settings.noise(num_clients=request.num_clients),
        source=noise_source(site.noise_rng(request.server_round)),
    )
    _spend(site, request)
    return update.arrays


def _spend(site: SurvivalSite, request: TrainConfig) -> None:
    """Note at the site what an update costs: before it leaves.

    The first of a run reserves for all rounds from it on, as a resumed run begins later.
    """
    if site.budget is None:
        return
    number, rounds = request.server_round, site.config.rounds
    if type(number) is not int or not 1 <= number <= rounds:
        raise SiteFault(
            SITE_LIMIT,
            f"round {number!r}: survival.rounds = {rounds}, and node config "
            '"max-epsilon" holds the run to them',
        )
    cost = update_cost(site.config, num_clients=request.num_clients)
    site.budget.release(step=f"round-{number}", cost=cost, releases=rounds - number + 1)
