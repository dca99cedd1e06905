"""A logistic regression over three hospitals, with the coefficients of the pooled rows.

The ClientApp is a function of four lines; the strategy is used as it comes. A callback prints the
deviance of each iteration::

    python examples/logistic_regression.py
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from sklearn.datasets import load_breast_cancer

from fedapp.simulation import InProcessGrid
from strategies.fisher_result import Iteration
from strategies.fisher_scoring import FisherScoring
from tasks.glm.client import answer
from tasks.site.client import answering_faults

HOSPITALS = ("north", "south", "west")
FEATURES = ["mean radius", "mean texture", "mean smoothness"]

app = ClientApp()


@app.query("fisher_scoring")
@answering_faults
def fisher_scoring(message: Message, context: Context) -> Message:
    """Answer an iteration with sums over this hospital's rows."""
    site = str(context.node_config["site-name"])
    rows = load_breast_cancer(as_frame=True).frame[HOSPITALS.index(site) :: len(HOSPITALS)]
    malignant = rows["target"] == 0
    return answer(message, rows[FEATURES], malignant, intercept=True, site=site)


def tell(iteration: Iteration) -> None:
    """Print the deviance at the coefficients of an iteration; the first one has none yet."""
    if iteration.evaluated is not None:
        print(f"iteration {iteration.number}: deviance {iteration.deviance:.6f}")


def main() -> None:
    """Fit the model and print the coefficient table."""
    grid = InProcessGrid(app, [{"site-name": name} for name in HOSPITALS], {})
    strategy = FisherScoring(family="logit", min_sites=len(HOSPITALS), after_iteration=tell)
    print(strategy.start(grid=grid))


if __name__ == "__main__":
    main()
