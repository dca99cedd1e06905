"""Another clipping: every array to its own share of the bound.

With one norm over all arrays a large array can leave nothing of a small one. Here each of m arrays
is clipped to bound / sqrt(m), which keeps the whole within the bound; had it not, the update would
be scaled down to the bound all the same::

    python examples/other_clipping.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapp.simulation import InProcessGrid
from strategies.dp_fedavg import DPFedAvg
from tasks.privacy.client import UpdatePrivatization
from tasks.privacy.mechanisms import Float64Array
from tasks.privacy.update import clip_by_global_norm


def clip_each_array(deltas: Sequence[Float64Array], bound: float) -> list[Float64Array]:
    """Clip every array by itself to the bound over the square root of their number."""
    share = bound / math.sqrt(len(deltas))
    return [clip_by_global_norm([delta], share)[0] for delta in deltas]


def app_with(privatization: UpdatePrivatization) -> ClientApp:
    """Return a ClientApp whose update is large in one array and small in the other."""
    app = ClientApp(mods=[privatization])

    @app.train()
    @app.evaluate()
    def answer(message: Message, context: Context) -> Message:
        received = message.content.array_records["arrays"]
        trained = {
            "large": Array(received["large"].numpy() + 100.0),
            "small": Array(received["small"].numpy() + 0.1),
        }
        content = RecordDict(
            {"arrays": ArrayRecord(trained), "metrics": MetricRecord({"num-examples": 1})}
        )
        return Message(content, reply_to=message)

    return app


def main() -> None:
    """Show what is left of both arrays under one norm and under one norm each."""
    start = ArrayRecord({"large": Array(np.zeros(50)), "small": Array(np.zeros(2))})
    for clip in (clip_by_global_norm, clip_each_array):
        privatization = UpdatePrivatization(clip_norm=1.0, noise_multiplier=0.001, clip=clip)
        grid = InProcessGrid(app_with(privatization), [{}, {}], {})
        result = DPFedAvg().start(grid=grid, initial_arrays=start, num_rounds=1)
        norms = {name: np.linalg.norm(array.numpy()) for name, array in result.arrays.items()}
        print(f"{clip.__name__}: large {norms['large']:.3f}, small {norms['small']:.3f}")


if __name__ == "__main__":
    main()
