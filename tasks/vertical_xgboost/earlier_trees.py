"""Trees of an earlier training that a new one goes on from: what must fit, and where rows stand.

A party has its part of the earlier model. The sides of its rows at splits of others it hears from
their owners; from then on it knows the margins that its rows have under the earlier trees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.part_document import Setting
from tasks.vertical_xgboost.partial_dp import planned_releases
from tasks.vertical_xgboost.rows import PartyTable
from tasks.vertical_xgboost.site import VerticalSite

MUST_FIT = ("objective", "eta", "lambda", "positive-label", "negative-label", "classes")
"""Settings that all trees of a model have in common."""


def check_settings(settings: Mapping[str, Setting], config: VerticalXGBoostConfig) -> list[str]:
    """What in a configuration does not fit the training that it goes on from, a line a key.

    Parameters
    ----------
    settings : mapping
        Of the earlier training.
    config : VerticalXGBoostConfig
    """
    now = config.model_dump(by_alias=True)
    faults = [
        f"{key} = {now[key]!r}: must be {settings[key]!r}, as in the model of warm-start"
        for key in MUST_FIT
        if key in settings and settings[key] != now[key]
    ]
    base = settings.get("base-score", "mean")
    if config.base_score not in ("mean", base):
        faults.append(
            f"base-score = {config.base_score!r}: allowed is 'mean' (not looked at) or {base!r}, "
            "as in the model of warm-start"
        )
    had_noise = float(settings.get("dp-epsilon", 0.0)) > 0.0
    if had_noise and not config.dp_epsilon:
        faults.append(
            "dp-epsilon = 0: must be above 0, since the model of warm-start has noisy leaves and "
            "exact ones of the same rows would undo them"
        )
    if config.dp_epsilon and not had_noise:
        faults.append(
            f"dp-epsilon = {config.dp_epsilon}: must be 0, since the model of warm-start has exact "
            "leaves, whose epsilon is infinite"
        )
    return faults


def same_settings(settings: Mapping[str, Setting], config: VerticalXGBoostConfig) -> list[str]:
    """What in a configuration is not as in the training that is resumed, a line a key."""
    now = config.model_dump(by_alias=True)
    return [
        f"{key} = {now.get(key)!r}: must be {value!r}, as in the training that is resumed"
        for key, value in settings.items()
        if now.get(key) != value
    ]


def rows_digest(table: PartyTable) -> str:
    """SHA-256 of a party's rows in hex: ids, evaluation flags, features, labels and weights."""
    digest = hashlib.sha256(b"rows of a party of vertical-xgboost\n" + table.digest())
    for array in (table.features, table.labels, table.weights):
        digest.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def cut_for(site: VerticalSite, going_on: Told | None) -> VerticalSite:
    """A party's part with the trees alone after which a resumed training goes on.

    Raises
    ------
    SiteFault
        ``"bad-request"`` if it has not so many, or there is nothing to resume; ``"bad-resume"`` if
        its trees are others than the server's.
    """
    if (going_on is not None) is not site.resumes:
        raise SiteFault(
            "bad-request", "going-on: must be told of a resumed training, and only then"
        )
    if going_on is None:
        return site
    cut = with_first(site, going_on.trees, repeated=going_on.repeated)
    if cut.part is None or cut.part.model_digest != going_on.digest:
        raise SiteFault(
            "bad-resume", "the trees that this party has kept are not those of the server"
        )
    return cut


def with_first(site: VerticalSite, trees: int, *, repeated: int) -> VerticalSite:
    """A party that goes on after so many trees of its part; parameters as of `cut_for`."""
    part = site.part
    if part is None or not part.origin.trees_before < trees <= len(part.trees):
        raise SiteFault("bad-request", f"{trees} trees to go on from: this party has others")
    origin = part.origin
    if origin.releases:
        last = replace(origin.releases[-1], count=planned_releases(site.config) + repeated)
        origin = replace(origin, releases=(*origin.releases[:-1], last))
    return replace(site, part=replace(part.first(trees), origin=origin))


class Told(Protocol):
    """Where a resumed training goes on: see `tasks.vertical_xgboost.going_on`."""

    @property
    def trees(self) -> int:
        """All that the model has so far."""

    @property
    def digest(self) -> bytes:
        """Of their shape and owners."""

    @property
    def repeated(self) -> int:
        """Noisy weights that are told twice."""


def check_part(
    part: ModelPart,
    feature_names: Sequence[str],
    config: VerticalXGBoostConfig,
    *,
    resumed: bool,
) -> None:
    """Refuse to go on from a part that does not fit a party's columns and settings.

    Parameters
    ----------
    part : ModelPart
    feature_names : sequence of str
        Columns of the party's rows, in their order.
    config : VerticalXGBoostConfig
    resumed : bool
        Its training is gone on with, for which all settings must be the same.

    Raises
    ------
    SiteFault
        ``"bad-warm-start"`` or ``"bad-resume"`` with all faults. Columns are told by position,
        since names are the party's own.
    """
    check = same_settings if resumed else check_settings
    faults = check(part.settings, config)
    known, now = list(part.feature_names), list(feature_names)
    if known != now:
        missing = [str(at) for at, name in enumerate(known, start=1) if name not in now]
        new = [str(at) for at, name in enumerate(now, start=1) if name not in known]
        if missing or new:
            told = []
            if missing:
                told.append(f"feature {', '.join(missing[:5])} of the part is no column here")
            if new:
                told.append(f"column {', '.join(new[:5])} here is no feature of the part")
            words = "; ".join(told)
        else:
            words = "they stand in another order, which decides ties"
        faults.append(
            f"the {len(now)} columns of this party's rows are not the {len(known)} features of its "
            f"part of the model ({words})"
        )
    if faults:
        raise SiteFault("bad-resume" if resumed else "bad-warm-start", *faults)


class Weighted(Protocol):
    """A tree whose leaves are known."""

    @property
    def weights(self) -> Mapping[int, float]:
        """Weight of each leaf, not times eta."""

    @property
    def roots(self) -> Mapping[int, int]:
        """Root above each node."""


def margin_range(
    base_margins: Sequence[float], trees: Sequence[Weighted], *, eta: float
) -> tuple[list[float], list[float]]:
    """Least and largest margins that a row can have after trees, whatever its values.

    Added up tree after tree as margins are: rounding keeps the order, so no margin is outside.

    Parameters
    ----------
    base_margins : sequence of float
        One a root.
    trees : sequence of Weighted
    eta : float

    Returns
    -------
    least, largest : list of float
        One a root.
    """
    least, largest = list(base_margins), list(base_margins)
    for tree in trees:
        for root in range(len(least)):
            added = [eta * w for leaf, w in tree.weights.items() if tree.roots[leaf] == root]
            least[root] += min(added)
            largest[root] += max(added)
    return least, largest


def gradient_exponent(
    labels: FloatArray,
    config: VerticalXGBoostConfig,
    *,
    base_margins: Sequence[float],
    trees: Sequence[Weighted] = (),
) -> int:
    """What an owner tells of the size of its first gradients, which earlier trees may have moved.

    Known before rows' margins are: the bound is of any row with such a label.

    Parameters
    ----------
    labels : (n,) float64
        Evaluation rows too.
    config : VerticalXGBoostConfig
    base_margins : sequence of float
        One a root.
    trees : sequence of Weighted
        Earlier ones.
    """
    objective = objective_of(config)
    return max(
        objective.gradient_exponent(labels, base_margins=end, label_bound=config.label_bound)
        for end in margin_range(base_margins, trees, eta=config.eta)
    )
