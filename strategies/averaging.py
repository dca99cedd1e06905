"""Averaging over sites: which replies may enter, and the weighted means of models and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from numpy.typing import NDArray

from tasks.privacy.mechanisms import AdditiveNoise, is_number
from tasks.privacy.received_update import longest_update, update_length
from tasks.privacy.update import is_floating
from tasks.site.faults import SiteFault

Arrays = dict[str, NDArray[Any]]

MALFORMED = "malformed-reply"
"""Code of the fault of a reply that cannot enter an average."""

IMPLAUSIBLE = "implausible-update"
"""Code of the fault of an update that no site can have made by the settings it was given."""

_MOST_NAMED = 8


@dataclass(frozen=True)
class Update:
    """A usable reply of one site.

    Attributes
    ----------
    site : str
        The site's name.
    reply : Message
        As it came.
    arrays : dict of str to numpy.ndarray
        Its model, in the order of the global one.
    weight : float
        Its weight in the average, finite and > 0.
    """

    site: str
    reply: Message
    arrays: Arrays
    weight: float


def matching_arrays(content: RecordDict, sent: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return a reply's model, in the order of the one that was sent.

    Raises
    ------
    tasks.site.faults.SiteFault
        If there is not exactly one ArrayRecord, or it has other names, shapes or types than what
        was sent, or an element is not finite.
    """
    records = list(content.array_records.values())
    if len(records) != 1:
        raise SiteFault(MALFORMED, f"{len(records)} ArrayRecords; must be exactly one")
    try:
        received = {name: array.numpy() for name, array in records[0].items()}
    except Exception as error:
        raise SiteFault(MALFORMED, "an array cannot be read") from error
    reasons = [f"array {name!r} is missing" for name in sent if name not in received]
    # What a site calls arrays that nobody asked for may be anything: counted, not repeated.
    if unknown := len(set(received) - set(sent)):
        reasons.append(f"{unknown} arrays that were not sent")
    for name, expected in sent.items():
        array = received.get(name)
        if array is None:
            continue
        if (array.shape, array.dtype) != (expected.shape, expected.dtype):
            reasons.append(
                f"array {name!r}: shape {array.shape}, type {array.dtype}; sent were "
                f"{expected.shape}, {expected.dtype}"
            )
        elif is_floating(array) and not np.isfinite(array).all():
            reasons.append(f"array {name!r}: has NaN or infinite elements")
    if reasons:
        raise SiteFault(MALFORMED, *reasons[:_MOST_NAMED])
    return {name: received[name] for name in sent}


def refuse_too_long(
    arrays: Mapping[str, NDArray[Any]],
    sent: Mapping[str, NDArray[Any]],
    noise: AdditiveNoise,
    *,
    clip_norm: float,
) -> None:
    """Refuse an update that no site can have made that clips at `clip_norm` and adds `noise`.

    Raises
    ------
    tasks.site.faults.SiteFault
        If it is longer than :func:`tasks.privacy.received_update.longest_update`.
    """
    longest = longest_update(sent, noise, clip_norm=clip_norm)
    if not update_length(sent, arrays) <= longest:
        raise SiteFault(
            IMPLAUSIBLE,
            f"the update is longer than clip-norm {clip_norm:g} and noise allow ({longest:.3g})",
        )


def stated_examples(content: RecordDict, key: str) -> float:
    """Return the number of examples in a reply's one MetricRecord.

    Raises
    ------
    tasks.site.faults.SiteFault
        If it is missing, not finite or not > 0.
    """
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise SiteFault(MALFORMED, f"{len(records)} MetricRecords; must be exactly one")
    stated = records[0].get(key)
    if stated is None or isinstance(stated, list) or not is_number(stated) or stated <= 0:
        raise SiteFault(MALFORMED, f"{key}: must be there, finite and > 0")
    return float(stated)


def weighted_mean(sent: Mapping[str, NDArray[Any]], updates: Sequence[Update]) -> ArrayRecord:
    """Return the weighted mean of models, summed in double precision in the order of `updates`.

    Parameters
    ----------
    sent : mapping of str to numpy.ndarray
        The global model: its integer and boolean arrays stay, the other arrays' types are kept.
    updates : sequence of Update
        At least one.
    """
    weights = np.array([update.weight for update in updates], dtype=np.float64)
    shares = weights / weights.max()
    shares /= shares.sum()
    mean: dict[str, NDArray[Any]] = {}
    for name, array in sent.items():
        if not is_floating(array):
            mean[name] = array
            continue
        total = np.zeros(array.shape)
        for share, update in zip(shares, updates, strict=True):
            total += share * update.arrays[name].astype(np.float64)
        # A mean lies between its terms; only rounding can lead out of the type's range.
        limits = np.finfo(array.dtype)
        total = np.clip(total, float(limits.min), float(limits.max))
        mean[name] = np.asarray(total).astype(array.dtype)
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in mean.items()})


def mean_of_common_metrics(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Average the metrics that every reply has, as Flower's FedAvg does.

    Parameters
    ----------
    contents : list of RecordDict
        At most one MetricRecord each; replies without one are left out.
    weighted_by_key : str
        The metric to weigh by; if not every reply has it, all weigh the same.
    """
    records = [next(iter(c.metric_records.values())) for c in contents if c.metric_records]
    if not records:
        return MetricRecord()
    common = [
        key
        for key, value in records[0].items()
        if all(key in record and _length(record[key]) == _length(value) for record in records)
    ]
    weighted = weighted_by_key in common
    reduced = []
    for record in records:
        metrics = MetricRecord({key: record[key] for key in common})
        if not weighted:
            metrics[weighted_by_key] = 1.0
        reduced.append(RecordDict({"metrics": metrics}))
    return aggregate_metricrecords(reduced, weighted_by_key)


def _length(value: object) -> int | None:
    return len(value) if isinstance(value, list) else None
