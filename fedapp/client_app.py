"""The ClientApp: one function a message type. A task is imported inside its handler, since every
message of a deployed run starts a process and torch alone takes seconds to import."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp import run_config
from fedapp.fingerprint import code_fingerprint
from fedapp.hosted_sites import each_hosted_site
from tasks.site.client import answering_faults, introduce
from tasks.site.faults import SiteFault

if TYPE_CHECKING:
    from tasks.survival.client import SurvivalSite

app = ClientApp(mods=[each_hosted_site])

Items = tuple[tuple[str, bool | int | float | str], ...]


@app.query("hello")
@answering_faults
def hello(message: Message, context: Context) -> Message:
    """Say who this site is, which code it runs, and whether its data fit the run."""
    from fedapp.site_data import site_name

    return introduce(
        message,
        fingerprint=code_fingerprint(),
        site_name=lambda: site_name(context.node_config),
        check_data=lambda: _survival_site(context),
    )


@app.query("survival_statistics")
@answering_faults
def survival_statistics(message: Message, context: Context) -> Message:
    """Return moments of the features and the outline of follow-up."""
    from tasks.survival import client

    return client.statistics(message, _survival_site(context))


@app.train()
@answering_faults
def survival_train(message: Message, context: Context) -> Message:
    """Evaluate the global model, train it on this site's rows, privatize the update."""
    from tasks.survival import client

    return client.train(message, _survival_site(context))


@app.evaluate()
@answering_faults
def survival_evaluate(message: Message, context: Context) -> Message:
    """Evaluate the final model and sum what the baseline hazard is made of."""
    from tasks.survival import client

    return client.evaluate(message, _survival_site(context))


@app.query("survival_curves")
@answering_faults
def survival_curves(message: Message, context: Context) -> Message:
    """Sum predicted and observed survival by risk group."""
    from tasks.survival import client

    return client.curves(message, _survival_site(context))


def _survival_site(context: Context) -> SurvivalSite:
    return _read_survival_site(
        context.run_id,
        tuple(sorted(context.node_config.items())),
        tuple(sorted(context.run_config.items())),
    )


@lru_cache(maxsize=512)
def _read_survival_site(run_id: int, node_items: Items, run_items: Items) -> SurvivalSite:
    """Read a site's rows once a process and run; without the cache the result is the same."""
    try:
        config = run_config.read(dict(run_items))
    except run_config.ConfigError as error:
        raise SiteFault("bad-configuration", *error.faults) from None
    return prepare_survival_site(dict(node_items), config)


def forget_sites() -> None:
    """Let go of the rows that this process has read for simulated sites."""
    _read_survival_site.cache_clear()


def prepare_survival_site(
    node_config: Mapping[str, run_config.Value], config: run_config.RunConfig
) -> SurvivalSite:
    """Read and check the rows of a node for the survival task.

    Raises
    ------
    SiteFault
        With everything that is wrong with the node's configuration or rows.
    """
    from fedapp import site_data
    from tasks.survival.client import SurvivalSite

    survival = config.survival
    frame = site_data.load_frame(
        node_config,
        data=survival.data,
        partition=survival.partition,
        seed=config.general.seed,
    )
    bundled = site_data.bundled_set(node_config, data=survival.data)
    return SurvivalSite.prepare(
        frame,
        name=site_data.site_name(node_config),
        data_set=bundled.name if bundled else "",
        time=survival.time or (bundled.time if bundled else "time"),
        event=survival.event or (bundled.event if bundled else "event"),
        config=survival,
        seed=config.general.seed,
        noise_seed=config.general.seed if config.general.seeded_noise else None,
    )
