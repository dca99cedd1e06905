"""RocGlm in a ServerApp of one's own: what each iteration of Fisher scoring found, and the AUC.

The sites run the ClientApp of this package; they take the task and its mode from the run
configuration, so a run has to say ``task="roc-glm"`` and ``roc-glm.mode="fisher"``::

    python examples/roc_glm_validation.py
"""

from __future__ import annotations

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedapp import client_app, run_config
from fedapp.fingerprint import code_fingerprint
from fedapp.simulation import InProcessGrid
from strategies.exchange import Exchange
from strategies.fisher_result import Iteration
from strategies.membership import meet_sites
from strategies.roc_glm import RocGlm


def print_iteration(iteration: Iteration) -> None:
    """Tell of one iteration."""
    print(f"iteration {iteration.number}: deviance {iteration.deviance:.4f}")


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Introduce the sites, and validate the classifier whose scores they have."""
    config = run_config.read(context.run_config).roc_glm
    exchange = Exchange.around(grid, timeout=600.0)
    sites = meet_sites(exchange, fingerprint=code_fingerprint(), min_sites=3)
    strategy = RocGlm(config=config, sites=sites, after_iteration=print_iteration)
    validation = strategy.start(grid=exchange).validation
    print(f"AUC {validation.estimate.auc:.4f}")


# `flwr run` gives a ServerApp its grid and context; here both are made by hand, with three sites
# that share the bundled data.
if __name__ == "__main__":
    settings = {**run_config.defaults(), "task": "roc-glm", "roc-glm.mode": "fisher"}
    nodes = [{"partition-id": part, "num-partitions": 3} for part in range(3)]
    main(
        InProcessGrid(client_app.app, nodes, settings),
        Context(0, 0, {}, RecordDict(), settings),
    )
