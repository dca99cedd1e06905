"""Numbers that do not exist for the data at hand, each with the name of the reason."""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "no-events",  # no event among the training rows of any site
    "one-class",  # no row of one class in the whole federation
    "separated",  # no threshold (or: a linear predictor) with both outcomes: the MLE is at infinity
    "quasi-separated",  # exactly one threshold with both outcomes: a line through one point
    "collinear",  # the information matrix is singular: columns depend on each other
    "not-converged",  # the rounds ran out
    "auc-0-or-1",  # the logit of the AUC is infinite
    "too-few-positives",  # a variance needs two
    "too-few-negatives",
    "zero-variance",  # constant scores, or a test at the very AUC
    "too-few-sites",  # heterogeneity needs two
    "constant-scores",  # a slope needs two different scores
]


class NotEstimable(Exception):
    """A number that does not exist, said by name instead of printed as what the rounds left.

    Parameters
    ----------
    reason : str
        One of `Reason`.
    detail : str
        One line for people: what was found and what would be needed. Holds nothing of a row.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}")
