"""A node's rows for the vertical XGBoost task."""

from __future__ import annotations

from collections.abc import Mapping

from fedapp import run_config, site_data
from fedapp.fingerprint import code_fingerprint
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.categorical import TextCodings, parse_codings
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.earlier_trees import check_part
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.part_files import own_part
from tasks.vertical_xgboost.rows import read_table
from tasks.vertical_xgboost.site import VerticalSite


def prepare_vertical_site(
    node_config: Mapping[str, run_config.Value],
    config: run_config.RunConfig,
    resumed: str = "",
) -> VerticalSite:
    """Read and check the rows of a node for the vertical XGBoost task.

    Parameters
    ----------
    node_config : mapping
        Of the node.
    config : RunConfig
    resumed : str
        Training that is gone on with, as its parties know it; ``""``: none.

    Raises
    ------
    SiteFault
        With everything that is wrong with the node's configuration or rows.
    """
    vertical = config.vertical_xgboost
    bundled = site_data.bundled_set(node_config, data=vertical.data)
    id_column = vertical.id or (bundled.id if bundled else "") or "id"
    label_column = vertical.label or (bundled.label if bundled else "") or "label"
    name = site_data.site_name(node_config)
    path = str(node_config.get("data-path", ""))
    simulated = path.startswith(site_data.MEMORY_PREFIX) or (
        "partition-id" in node_config and "data-path" not in node_config
    )
    model_dir = str(node_config.get("model-dir", "")).strip()
    part: ModelPart | None = None
    if (named := _model_named(vertical, resumed)) is not None:
        model, key = named
        part = own_part(model, name=name, simulated=simulated, model_dir=model_dir, key=key)
    frame = site_data.load_frame(
        node_config,
        data=vertical.data,
        seed=config.general.seed,
        spread=site_data.Spread(id=id_column, label=label_column, weight=vertical.weight),
    )
    if part is not None and vertical.mode != "train":
        labels = () if vertical.asker else (label_column,)
        wanted = {id_column, *labels, *part.columns}
        frame = frame[[column for column in frame.columns if column in wanted]]
        vertical = vertical.model_copy(
            update={"test_fraction": 0.0, "weight": "", **_labels_of(part)}
        )
    table = read_table(
        frame,
        id_column=id_column,
        label_column=label_column,
        config=vertical,
        seed=config.general.seed,
        codings=_codings(node_config, vertical),
        categories=None if part is None else part.categories,
    )
    if part is not None and vertical.mode == "train":
        check_part(part, table.feature_names, vertical, resumed=bool(resumed))
    noise_seed = config.general.seed if config.general.seeded_noise else None
    if vertical.dp_epsilon and noise_seed is not None and not simulated:
        raise SiteFault(
            "seeded-noise",
            "seeded-noise = true: only in simulation; noise from a known seed protects nobody",
        )
    return VerticalSite(
        name=name,
        table=table,
        config=vertical,
        simulated=simulated,
        model_dir=model_dir,
        seed=config.general.seed,
        noise_seed=noise_seed,
        code=code_fingerprint(),
        part=part,
        resumes=bool(resumed),
        consents=vertical.export_consent
        if simulated
        else node_config.get("export-consent") is True,
    )


def _model_named(config: VerticalXGBoostConfig, resumed: str) -> tuple[str, str] | None:
    """The model of which the party must have its part, and the key that names it."""
    if config.mode != "train":
        return config.model, "vertical-xgboost.model"
    if resumed:
        return resumed, "resume"
    if config.warm_start:
        return config.warm_start, "vertical-xgboost.warm-start"
    return None


def _codings(
    node_config: Mapping[str, run_config.Value], config: VerticalXGBoostConfig
) -> TextCodings:
    """How the party's columns of text become features: its own word goes before the run's."""
    given = node_config.get("categorical", "")
    if not isinstance(given, str):
        raise SiteFault("bad-configuration", 'node config "categorical" must be text in quotes')
    try:
        return parse_codings(given, default=config.categorical)
    except ValueError as error:
        raise SiteFault("bad-configuration", f'node config "categorical": {error}') from None


def _labels_of(part: ModelPart) -> dict[str, object]:
    """How labels are read: as in the training."""
    names = ("objective", "positive-label", "negative-label", "classes", "label-bound")
    found = {name: part.settings[name] for name in names if name in part.settings}
    return {name.replace("-", "_"): value for name, value in found.items()}
