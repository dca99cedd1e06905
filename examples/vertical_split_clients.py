"""Vertical XGBoost in a ServerApp of one's own, with split clients that are agreed on beforehand.

Who decrypts whose sums is drawn by default. Parties may know better who has no reason to ally::

    python examples/vertical_split_clients.py
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedapp import client_app, run_config, vertical_run
from fedapp.fingerprint import code_fingerprint
from fedapp.simulation import InProcessGrid
from strategies.exchange import Exchange
from strategies.membership import meet_sites
from strategies.vertical_xgboost import VerticalXGBoost


class NextByName(VerticalXGBoost):
    """The sums of a party's columns are decrypted by the next party in the order of names."""

    def choose_split_clients(self, names: tuple[str, ...]) -> Mapping[str, str]:
        """Return each party's split client."""
        return dict(zip(names, (*names[1:], names[0]), strict=True))


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Introduce the parties, and train with them."""
    config = run_config.read(context.run_config)
    exchange = Exchange.around(grid, disclosures=vertical_run.disclosures(config))
    parties = meet_sites(exchange, fingerprint=code_fingerprint(), min_sites=3)
    strategy = NextByName(config=config.vertical_xgboost, parties=parties)
    result = strategy.start(grid=exchange, timeout=600.0)
    for source, client in result.split_clients.items():
        print(f"{source}: decrypted by {client}")
    last = result.trees[-1]
    print(f"{len(result.trees)} trees, accuracy {last.train.quality:.3f} on training rows")


# `flwr run` gives a ServerApp its grid and context; here both are made by hand, with three parties
# that share the bundled data, and without encryption to be fast.
if __name__ == "__main__":
    settings = {
        **run_config.defaults(),
        "task": "vertical-xgboost",
        "vertical-xgboost.encryption": "none",
        "vertical-xgboost.num-trees": 3,
        "vertical-xgboost.max-depth": 2,
    }
    nodes = [{"partition-id": part, "num-partitions": 3} for part in range(3)]
    main(
        InProcessGrid(client_app.app, nodes, settings),
        Context(0, 0, {}, RecordDict(), settings),
    )
