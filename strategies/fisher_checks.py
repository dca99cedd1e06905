"""What sites may answer in Fisher scoring: sums of the coefficients asked for, of the same rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.fisher_result import Iteration
from strategies.membership import Refused
from tasks.glm.families import FisherSums, FloatArray
from tasks.glm.messages import is_finite


def check_sums(sums: FisherSums, coefficients: FloatArray | None, *, has_dispersion: bool) -> None:
    """Refuse sums that are no answer to these coefficients; None: a start was asked for.

    Raises
    ------
    ValueError
        With what is wrong.
    """
    if coefficients is None:
        if not is_finite(sums):
            raise ValueError("a start that is not finite")
        return
    if len(coefficients) != sums.score.size:
        raise ValueError("sums of another number of coefficients than asked for")
    if has_dispersion and math.isnan(sums.pearson):
        raise ValueError("sums without a Pearson statistic")


def refuse_other_sizes(replies: Mapping[str, Any]) -> None:
    """Refuse replies (`SiteReply` by site) whose sums are of different numbers of coefficients.

    Raises
    ------
    Refused
        With the number of each site.
    """
    sizes = {name: reply.sums.score.size for name, reply in replies.items()}
    if len(set(sizes.values())) > 1:
        raise Refused([f"{name}: {size} coefficients" for name, size in sizes.items()])


def refuse_other_rows(
    sums: FisherSums, history: Sequence[Iteration], *, sites: tuple[str, ...]
) -> None:
    """Refuse sums of other rows than those of the iteration before, by the same sites.

    Raises
    ------
    Refused
        With both numbers.
    """
    before = history[-1] if history else None
    if before and before.sites == sites and before.rows != sums.rows:
        raise Refused(
            [f"the sites have {sums.rows} rows, and had {before.rows} in the iteration before"]
        )


def refuse_other_number(number: int, names: Sequence[str] | None) -> None:
    """Refuse sums of another number of coefficients than there are names, if there are any.

    Raises
    ------
    ValueError
        With both numbers.
    """
    if names is not None and len(names) != number:
        raise ValueError(f"feature_names: {len(names)} names of {number} coefficients")
