"""Other weights in the average: the square root of the number of examples.

The strategy is told apart from FedAvg by one method. Sites with many rows count for less than by
their number, sites with few for more::

    python examples/other_weights.py
"""

from __future__ import annotations

import math

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapp.simulation import InProcessGrid
from strategies.dp_fedavg import DPFedAvg
from tasks.privacy.client import UpdatePrivatization


class SquareRootWeights(DPFedAvg):
    """DPFedAvg in which a reply weighs the square root of its number of examples."""

    def weigh(self, reply: Message) -> float:
        """Return the weight of a reply."""
        return math.sqrt(super().weigh(reply))


# A model of one number, the mean of a site's rows, stands for any other.
app = ClientApp(mods=[UpdatePrivatization(clip_norm=2.5, noise_multiplier=0.0001)])


@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Move the model to the mean of the site's rows, all of which are the number `value`."""
    mean = ArrayRecord({"mean": Array(np.array([float(context.node_config["value"])]))})
    metrics = MetricRecord({"num-examples": int(context.node_config["rows"])})
    return Message(RecordDict({"arrays": mean, "metrics": metrics}), reply_to=message)


def main() -> None:
    """Average two sites by their rows and by the square root of these."""
    sites = [{"value": 1.0, "rows": 100}, {"value": 2.0, "rows": 10_000}]
    start = ArrayRecord({"mean": Array(np.zeros(1))})
    for strategy in (DPFedAvg(), SquareRootWeights()):
        grid = InProcessGrid(app, sites, {})
        result = strategy.start(grid=grid, initial_arrays=start, num_rounds=1)
        mean = float(result.arrays["mean"].numpy()[0])
        print(f"{type(strategy).__name__}: {mean:.2f}")


if __name__ == "__main__":
    main()
