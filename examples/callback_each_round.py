"""A callback each round: keep the model of the round with the lowest loss.

The model of a round is evaluated in the exchange of the next one, so the metrics that come with a
new model are those of the model before it::

    python examples/callback_each_round.py
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapp.simulation import InProcessGrid
from strategies.dp_fedavg import DPFedAvg
from tasks.privacy.client import UpdatePrivatization


class BestModel:
    """Callback that remembers the model with the lowest loss."""

    def __init__(self, start: ArrayRecord) -> None:
        self.arrays, self.loss, self.last = start, float("inf"), start

    def __call__(
        self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None
    ) -> None:
        """Compare the loss of the model of the round before with the best."""
        loss = float(metrics["loss"]) if metrics else float("inf")  # type: ignore[arg-type]
        print(f"model {server_round - 1}: loss {loss:.4f}")
        if loss < self.loss:
            self.arrays, self.loss = self.last, loss
        self.last = arrays


app = ClientApp(mods=[UpdatePrivatization(clip_norm=1.0, noise_multiplier=0.1)])


@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Evaluate the received linear model on generated rows, then take one step of gradient."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    rows = rng.normal(size=(200, 3))
    target = rows @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=200)
    weights = message.content.array_records["arrays"]["weights"].numpy()
    error = rows @ weights - target
    trained = ArrayRecord({"weights": Array(weights - 0.3 * rows.T @ error / 200)})
    metrics = MetricRecord({"num-examples": 200, "loss": float(np.mean(error**2))})
    return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)


def main() -> None:
    """Train for ten rounds and print the best model."""
    start = ArrayRecord({"weights": Array(np.zeros(3))})
    best = BestModel(start)
    grid = InProcessGrid(app, [{"partition-id": part} for part in range(3)], {})
    DPFedAvg(after_round=best).start(grid=grid, initial_arrays=start, num_rounds=10)
    print(f"best: loss {best.loss:.4f}, weights {best.arrays['weights'].numpy().round(2)}")


if __name__ == "__main__":
    main()
