"""The rows of a node and the settings of its run, as the handlers of each task take them.

A task is imported where its site is made: torch alone takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from flwr.app import Context

from fedapp import run_config
from fedapp.site_limits import site_budget
from tasks.site.faults import SITE_LIMIT, SiteFault

if TYPE_CHECKING:
    from tasks.privacy.site_budget import SiteBudget
    from tasks.roc_glm.client import RocGlmSite
    from tasks.survival.client import SurvivalSite
    from tasks.vertical_xgboost.site import VerticalSite

Items = tuple[tuple[str, bool | int | float | str], ...]

_MOST_SITES = 16_384
"""Sites whose rows a process of a simulation keeps. They are asked in turn, so that with one site
more every message would read its rows anew."""


def survival_site(context: Context) -> SurvivalSite:
    """Return rows and settings of a node in a run of the survival task."""
    return _read_survival_site(
        context.run_id,
        tuple(sorted(context.node_config.items())),
        tuple(sorted(context.run_config.items())),
    )


@lru_cache(maxsize=_MOST_SITES)
def _read_survival_site(run_id: int, node_items: Items, run_items: Items) -> SurvivalSite:
    """Read a site's rows once a process and run; without the cache the result is the same."""
    config = _checked(run_id, run_items)
    budget = site_budget(dict(node_items), run_id, config)
    return prepare_survival_site(dict(node_items), config, budget=budget)


def roc_glm_site(context: Context) -> RocGlmSite:
    """Return rows and settings of a node in a run of the ROC-GLM task."""
    from tasks.roc_glm import site_state

    return _read_roc_glm_site(
        context.run_id,
        tuple(sorted(context.node_config.items())),
        tuple(sorted(context.run_config.items())),
        site_state.known_model(context),
    )


@lru_cache(maxsize=_MOST_SITES)
def _read_roc_glm_site(run_id: int, node_items: Items, run_items: Items, model: str) -> RocGlmSite:
    """Read a site's rows once a process and run; without the cache the result is the same."""
    config = _checked(run_id, run_items)
    budget = site_budget(dict(node_items), run_id, config)
    return prepare_roc_glm_site(dict(node_items), config, model=model, budget=budget)


def vertical_site(context: Context) -> VerticalSite:
    """Return rows and settings of a node in a run of the vertical XGBoost task."""
    from tasks.vertical_xgboost import site_state
    from tasks.vertical_xgboost.alignment_client import aligned_site
    from tasks.vertical_xgboost.earlier_trees import with_first

    resumed, trees, repeated = site_state.known_resumed(context)
    site = _read_vertical_site(
        context.run_id,
        tuple(sorted(context.node_config.items())),
        tuple(sorted(context.run_config.items())),
        resumed,
    )
    site = aligned_site(site, context)
    return with_first(site, trees, repeated=repeated) if trees else site


@lru_cache(maxsize=_MOST_SITES)
def _read_vertical_site(
    run_id: int, node_items: Items, run_items: Items, resumed: str
) -> VerticalSite:
    """Read a party's rows once a process and run; without the cache the result is the same."""
    config = _checked(run_id, run_items)
    from fedapp.vertical_party import prepare_vertical_site

    return prepare_vertical_site(dict(node_items), config, resumed)


def forget_sites() -> None:
    """Let go of the rows that this process has read for simulated sites."""
    _read_survival_site.cache_clear()
    _read_roc_glm_site.cache_clear()
    _read_vertical_site.cache_clear()
    _checked.cache_clear()


def prepare_survival_site(
    node_config: Mapping[str, run_config.Value],
    config: run_config.RunConfig,
    *,
    budget: SiteBudget | None = None,
) -> SurvivalSite:
    """Read and check the rows of a node for the survival task.

    Parameters
    ----------
    node_config : mapping
        Of the node.
    config : RunConfig
    budget : SiteBudget, optional
        What the run may spend of the site's privacy.

    Raises
    ------
    SiteFault
        With everything that is wrong with the node's configuration or rows.
    """
    from fedapp import site_data
    from tasks.survival.client import SurvivalSite

    survival = config.survival
    if config.general.seeded_noise and _is_deployed(node_config):
        raise SiteFault(
            "seeded-noise",
            "seeded-noise = true: only in simulation; noise from a known seed protects nobody",
        )
    bundled = site_data.bundled_set(node_config, data=survival.data)
    time = survival.time or (bundled.time if bundled else "time")
    event = survival.event or (bundled.event if bundled else "event")
    frame = site_data.load_frame(
        node_config,
        data=survival.data,
        partition=site_data.Partition(
            kind=survival.partition,
            alpha=survival.dirichlet_alpha,
            column=survival.partition_column,
            time=time,
            event=event,
            event_value=survival.event_value,
        ),
        design=survival.design,
        seed=config.general.seed,
    )
    if bundled:
        frame = site_data.decode(frame, bundled.encoding, columns=survival.declared_categories)
    return SurvivalSite.prepare(
        frame,
        name=site_data.site_name(node_config),
        data_set=bundled.name if bundled else "",
        time=time,
        event=event,
        config=survival,
        seed=config.general.seed,
        noise_seed=config.general.seed if config.general.seeded_noise else None,
        budget=budget,
    )


@lru_cache(maxsize=8)
def _checked(run_id: int, run_items: Items) -> run_config.RunConfig:
    """Check the settings of a run once for all sites of this process."""
    try:
        return run_config.read(dict(run_items))
    except run_config.ConfigError as error:
        raise SiteFault("bad-configuration", *error.faults) from None


def _is_deployed(node_config: Mapping[str, run_config.Value]) -> bool:
    """Whether a node has rows of its own: neither a part of simulated data nor a frame."""
    from fedapp import site_data

    if "partition-id" in node_config and "data-path" not in node_config:
        return False
    return not str(node_config.get("data-path", "")).startswith(site_data.MEMORY_PREFIX)


def prepare_roc_glm_site(
    node_config: Mapping[str, run_config.Value],
    config: run_config.RunConfig,
    *,
    model: str = "",
    budget: SiteBudget | None = None,
) -> RocGlmSite:
    """Read and check the rows of a node for the ROC-GLM task.

    Parameters
    ----------
    node_config : mapping
        Of the node.
    config : RunConfig
    model : str
        Model file that the server sent; ``""``: the rows have scores.
    budget : SiteBudget, optional
        What the run may spend of the site's privacy.

    Raises
    ------
    SiteFault
        With everything that is wrong with the node's configuration or rows.
    """
    from fedapp import site_data
    from tasks.roc_glm.client import RocGlmSite
    from tasks.roc_glm.score_model import ScoreModel

    roc_glm = config.roc_glm
    is_deployed = _is_deployed(node_config)
    if config.general.seeded_noise and is_deployed and not roc_glm.allow_seeded_noise:
        raise SiteFault(
            "seeded-noise",
            "seeded-noise = true: on real site data only with roc-glm.allow-seeded-noise = true",
        )
    frame = site_data.load_frame(node_config, data=roc_glm.data, seed=config.general.seed)
    bundled = site_data.bundled_set(node_config, data=roc_glm.data)
    classifier = ScoreModel.from_json(model) if model else None
    if budget is not None and classifier is not None and classifier.kind == "linear":
        # Asked often enough, with other coefficients, it is the largest value of each column.
        raise SiteFault(
            SITE_LIMIT,
            'roc-glm.model of kind "linear": whether its scores lie in [0, 1] leaves without '
            'noise and tells of rows; node config "max-epsilon" takes models of probabilities only',
        )
    quantiles_of = classifier
    if quantiles_of is None and bundled is not None and bundled.classifier is not None:
        quantiles_of = bundled.classifier()
    return RocGlmSite.prepare(
        frame,
        name=site_data.site_name(node_config),
        label=roc_glm.label or (bundled.label if bundled else "") or "label",
        score=roc_glm.score or (bundled.score if bundled else "") or "score",
        config=roc_glm,
        model=classifier,
        quantiles_of=quantiles_of,
        noise_seed=config.general.seed if config.general.seeded_noise else None,
        budget=budget,
    )
