"""Vertical XGBoost with trees of few leaves, grown where the gain above was largest.

By default all open nodes of a level are decided together, which takes the fewest exchanges. Here
they are decided one at a time, and what is open when a tree has its leaves stays as it is::

    python examples/vertical_leaf_budget.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedapp import client_app, run_config, vertical_run
from fedapp.fingerprint import code_fingerprint
from fedapp.simulation import InProcessGrid
from strategies.exchange import Exchange
from strategies.membership import meet_sites
from strategies.vertical_xgboost import VerticalXGBoost


class LeafBudget(VerticalXGBoost):
    """At most so many leaves a tree, the children of the largest gain first."""

    may_prune = True
    most_leaves = 4

    def choose_nodes(self, tree: Any) -> Sequence[int]:
        """Return one open node, or all once there are leaves enough."""
        self.is_full = len(tree.splits) + 1 >= self.most_leaves
        gains = self.training.book.gains
        above = {child: gains[node] for node, pair in tree.children.items() for child in pair}
        best = max(tree.open_nodes, key=lambda node: above.get(node, 0.0))
        return tree.open_nodes if self.is_full else [best]

    def choose_split(self, node: int, splits: Any) -> tuple[int, int] | None:
        """Return no split once there are leaves enough."""
        return None if self.is_full else super().choose_split(node, splits)


def main() -> None:
    """Train with three parties that share the bundled data, without encryption to be fast."""
    settings = {
        **run_config.defaults(),
        "task": "vertical-xgboost",
        "vertical-xgboost.encryption": "none",
        "vertical-xgboost.num-trees": 3,
        "vertical-xgboost.max-depth": 6,
    }
    config = run_config.read(settings)
    nodes = [{"partition-id": part, "num-partitions": 3} for part in range(3)]
    grid = InProcessGrid(client_app.app, nodes, settings)
    exchange = Exchange.around(grid, disclosures=vertical_run.disclosures(config))
    parties = meet_sites(exchange, fingerprint=code_fingerprint(), min_sites=3)
    result = LeafBudget(config=config.vertical_xgboost, parties=parties).start(grid=exchange)
    for grown in result.trees:
        leaves, exchanges = len(grown.tree.leaves), grown.cost.exchanges
        print(
            f"tree {grown.number}: {leaves} leaves, {exchanges} exchanges, "
            f"training loss {grown.train.loss:.3f}"
        )


if __name__ == "__main__":
    main()
