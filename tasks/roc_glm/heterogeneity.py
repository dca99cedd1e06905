"""Do the sites' own AUCs differ by more than chance? Cochran's Q, I^2 and tau^2 on the logit scale.

DerSimonian and Laird, "Meta-analysis in clinical trials", 1986; Higgins and Thompson 2002.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit
from scipy.stats import chi2

from tasks.site.not_estimable import NotEstimable


@dataclass(frozen=True)
class SiteAuc:
    """AUC of one site's own rows, with its DeLong variance (where A1 lets it be sent)."""

    site: str
    auc: float
    variance: float


@dataclass(frozen=True)
class Heterogeneity:
    """Spread of the sites' AUCs.

    Attributes
    ----------
    sites : int
        Sites with 0 < AUC < 1 and a positive variance; the others cannot be weighed.
    statistic, p_value : float
        Cochran's Q, chi-squared with sites - 1 degrees of freedom if all sites are alike.
    inconsistency : float
        I^2 in [0, 1), the share of the spread that is not chance.
    between_variance : float
        tau^2 of the logit AUC.
    mean_auc : float
        Random-effects mean, mapped back from the logit scale.
    """

    sites: int
    statistic: float
    p_value: float
    inconsistency: float
    between_variance: float
    mean_auc: float


def heterogeneity(sites: Sequence[SiteAuc]) -> Heterogeneity:
    """Compare the sites' AUCs.

    Parameters
    ----------
    sites : sequence of SiteAuc

    Raises
    ------
    NotEstimable
        ``"too-few-sites"`` if fewer than two sites can be weighed.
    """
    usable = [site for site in sites if 0.0 < site.auc < 1.0 and site.variance > 0.0]
    if len(usable) < 2:
        raise NotEstimable(
            "too-few-sites", f"{len(usable)} sites have an AUC with a variance; 2 are needed"
        )
    auc = np.array([site.auc for site in usable])
    effect = logit(auc)
    within = np.array([site.variance for site in usable]) / (auc * (1.0 - auc)) ** 2
    weight = 1.0 / within
    fixed = (weight * effect).sum() / weight.sum()
    statistic = float((weight * (effect - fixed) ** 2).sum())
    freedom = len(usable) - 1
    scale = weight.sum() - (weight**2).sum() / weight.sum()
    between = max(0.0, (statistic - freedom) / scale)
    mixed = 1.0 / (within + between)
    return Heterogeneity(
        sites=len(usable),
        statistic=statistic,
        p_value=float(chi2.sf(statistic, freedom)),
        inconsistency=max(0.0, 1.0 - freedom / statistic) if statistic > 0 else 0.0,
        between_variance=float(between),
        mean_auc=float(expit((mixed * effect).sum() / mixed.sum())),
    )
