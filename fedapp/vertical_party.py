"""A node's rows for the vertical XGBoost task."""

from __future__ import annotations

from collections.abc import Mapping

from fedapp import run_config, site_data
from tasks.vertical_xgboost.rows import read_table
from tasks.vertical_xgboost.site import VerticalSite


def prepare_vertical_site(
    node_config: Mapping[str, run_config.Value], config: run_config.RunConfig
) -> VerticalSite:
    """Read and check the rows of a node for the vertical XGBoost task.

    Raises
    ------
    SiteFault
        With everything that is wrong with the node's configuration or rows.
    """
    vertical = config.vertical_xgboost
    bundled = site_data.bundled_set(node_config, data=vertical.data)
    id_column = vertical.id or (bundled.id if bundled else "") or "id"
    label_column = vertical.label or (bundled.label if bundled else "") or "label"
    frame = site_data.load_frame(
        node_config,
        data=vertical.data,
        seed=config.general.seed,
        spread=site_data.Spread(id=id_column, label=label_column),
    )
    table = read_table(
        frame,
        id_column=id_column,
        label_column=label_column,
        config=vertical,
        seed=config.general.seed,
    )
    path = str(node_config.get("data-path", ""))
    return VerticalSite(
        name=site_data.site_name(node_config),
        table=table,
        config=vertical,
        simulated=path.startswith(site_data.MEMORY_PREFIX)
        or ("partition-id" in node_config and "data-path" not in node_config),
        model_dir=str(node_config.get("model-dir", "")).strip(),
        seed=config.general.seed,
    )
