"""Numbers that the server tells every party, checked against what the party knows of its rows.

A bound below a party's own numbers would be refused where they are rounded, and the refusal would
say how they lie to that bound. So it is looked at before anything is computed, and compared only
with what the party has told already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.earlier_trees import Weighted, gradient_exponent
from tasks.vertical_xgboost.fixed_point import FloatArray, exponent_of
from tasks.vertical_xgboost.objectives import objective_of


def check_label_exponent(told: int, labels: FloatArray, config: VerticalXGBoostConfig) -> None:
    """Refuse a bound of all labels that cannot be one.

    Parameters
    ----------
    told : int
    labels : (n,) float64
        Own labels, evaluation rows included.
    config : VerticalXGBoostConfig

    Raises
    ------
    SiteFault
        ``"bad-request"``.
    """
    own = objective_of(config).label_exponent(labels, label_bound=config.label_bound)
    _check_exponent(told, own, config, name="label-exponent")


def check_weight_exponent(told: int, weights: FloatArray | None) -> None:
    """Refuse a bound of all weights that cannot be one.

    Parameters
    ----------
    told : int
    weights : (n,) float64 or None
        Of own rows, evaluation rows included; None where rows have none.

    Raises
    ------
    SiteFault
        ``"bad-request"``.
    """
    if told < weight_exponent(weights) or (weights is None and told):
        raise SiteFault("bad-request", "weight-exponent: not one that holds for all parties")


def weight_exponent(weights: FloatArray | None) -> int:
    """What an owner tells of the size of its weights (evaluation rows too); 0 without weights."""
    return 0 if weights is None else exponent_of(weights)


def check_base_margins(
    margins: Sequence[float],
    config: VerticalXGBoostConfig,
    *,
    label_exponent: int,
    num_training: int,
    earlier: Sequence[float] | None = None,
) -> None:
    """Refuse base margins that belong to no base score of this run.

    Parameters
    ----------
    margins : sequence of float
    config : VerticalXGBoostConfig
    label_exponent : int
        That was told and accepted.
    num_training : int
        Training rows of all parties.
    earlier : sequence of float, optional
        Base margins of the model that the training goes on from.

    Raises
    ------
    SiteFault
        ``"bad-request"``.
    """
    objective, given = objective_of(config), config.given_base_score
    largest = max(map(abs, margins), default=0.0)
    if earlier is not None:
        fits = list(margins) == list(earlier)
    elif given is not None:
        fits = set(margins) == {objective.base_margin(given)}
    elif config.objective in ("binary:logistic", "multi:softprob") and config.weight:
        # Of means by weights that are whole numbers of so many bits.
        fits = largest <= math.log(max(num_training, 1)) + config.fixed_point_bits * math.log(2.0)
    elif config.objective in ("binary:logistic", "multi:softprob"):
        # Of the mean of n labels of both classes: log(k / (n - k)). Of the counts of more classes:
        # logarithms from 0 to log(n) less their mean.
        fits = largest <= math.log(max(num_training, 1))
    elif config.objective == "count:poisson":
        # Of the logarithm of a mean of whole numbers in units of 2^(exponent - bits).
        most = label_exponent * math.log(2.0)
        least = most - config.fixed_point_bits * math.log(2.0) - math.log(max(num_training, 1))
        # Weights have units of their own.
        least -= config.fixed_point_bits * math.log(2.0) if config.weight else 0.0
        fits = all(least - 1e-9 <= each <= most + 1e-9 for each in margins)
    else:
        fits = largest <= math.ldexp(1.0, label_exponent)
    if not fits or len(margins) != objective.num_roots:
        raise SiteFault("bad-request", "base-margins: of no base score that this run can have")


def check_gradient_exponent(
    told: int,
    labels: FloatArray,
    base_margins: Sequence[float],
    config: VerticalXGBoostConfig,
    *,
    trees: Sequence[Weighted] = (),
) -> None:
    """Refuse a bound of all gradients that cannot be one.

    Parameters
    ----------
    told : int
    labels : (n,) float64
        Own labels, evaluation rows included.
    base_margins : sequence of float
    config : VerticalXGBoostConfig
    trees : sequence of Weighted
        Of the model that the training goes on from.

    Raises
    ------
    SiteFault
        ``"bad-request"``.
    """
    objective = objective_of(config)
    own = gradient_exponent(labels, config, base_margins=base_margins, trees=trees)
    # With noise parties have different weights, and may tell different exponents.
    may_differ = bool(trees) and config.dp_epsilon > 0
    least = objective.bound_exponent([own])
    _check_exponent(told, least, config, name="gradient-exponent", may_differ=may_differ)


def _check_exponent(
    told: int,
    least: int,
    config: VerticalXGBoostConfig,
    *,
    name: str,
    may_differ: bool = False,
) -> None:
    may_differ = may_differ or config.tells_label_sizes
    if told < least or (told != least and not may_differ):
        raise SiteFault("bad-request", f"{name}: not one that holds for all parties")
