"""The second exchange of a level: totals to split clients, gains and sealed leaves back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.secure.record_names import Protection, protected_name
from tasks.site.reply_fields import MalformedReply, reals
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.gains import LEAST_GAIN
from tasks.vertical_xgboost.message_parts import (
    SEALED_LEAVES,
    Sealed,
    Seconds,
    array_record,
    as_bytes,
    as_whole,
    put_seconds,
    read_refused,
    read_seconds,
)

DECIDE = "query.vertical_decide"


def leaves_step(*, tree: int, level: int, source: int, node: int, place: int) -> str:
    """Name of the step under which weights are sealed.

    Parameters
    ----------
    tree, level : int
    source : int
        Place of the source whose split client seals.
    node : int
        Place of the node among the open ones.
    place : int
        Of the candidate in the level's order; -1: the node as a leaf.
    """
    return f"leaves-{tree}-{level}-{source}-{node}-{place}"


@dataclass(frozen=True, eq=False)
class DecideRequest:
    """Server to a split client: totals of the sources that it decrypts for.

    Attributes
    ----------
    tree, level : int
    totals : mapping of source to bytes
        Ciphertexts, in the level's secret order.
    refused : mapping of source to (1 + candidates, nodes) bool
    protection : str
        Of the totals.
    may_prune : bool
        Whether nodes may become leaves although candidates are eligible.
    """

    tree: int
    level: int
    totals: Mapping[str, bytes]
    refused: Mapping[str, NDArray[np.bool_]]
    protection: Protection
    may_prune: bool = False

    reveals: ClassVar[str] = (
        "sums of gradients over all parties for each open node and each candidate of a source, "
        "without feature, bucket or rows of a candidate (of two that differ by one row, that row's "
        "gradient); with min-instances, which of them some "
        "label owner refuses, without whose refusal it is"
    )
    reveals_sampled: ClassVar[str] = (
        f"{reveals}; of each tree the sum over rows that the receiver can name, since all draw "
        "alike: an equation about their labels"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        at = ConfigRecord({"tree": self.tree, "level": self.level, "may-prune": self.may_prune})
        return RecordDict(
            {
                "decide": at,
                protected_name(self.protection, "totals"): ConfigRecord(dict(self.totals)),
                "refused": array_record(self.refused),
            }
        )

    @classmethod
    def from_record(cls, content: RecordDict, *, protection: Protection) -> DecideRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed.

        Parameters
        ----------
        content : RecordDict
        protection : str
            Of the totals.
        """
        totals = content.config_records[protected_name(protection, "totals")]
        at = content.config_records["decide"]
        return cls(
            as_whole(at["tree"]),
            as_whole(at["level"]),
            {name: as_bytes(value) for name, value in totals.items()},
            read_refused(content.array_records["refused"]),
            protection,
            at["may-prune"] is True,
        )


@dataclass(frozen=True, eq=False)
class SealedOffer:
    """What a split client offers for one node of one source.

    Attributes
    ----------
    gain : float
        0 if no candidate is eligible.
    places : (r,) intp
        All that reach it, in the level's order.
    sealed : tuple of dict of party to bytes
        Where children are leaves in any case: weights of both, one a place, sealed for each party.
    leaf : dict of party to bytes, or None
        Where the node may become a leaf: its weight, sealed for each party.
    """

    gain: float
    places: IntpArray
    sealed: tuple[Sealed, ...]
    leaf: Sealed | None


@dataclass(frozen=True, eq=False)
class DecideReply:
    """A split client: its offers.

    Attributes
    ----------
    offers : mapping of source to list of SealedOffer
        One an open node.
    seconds : dict of str to float
    """

    offers: Mapping[str, Sequence[SealedOffer]]
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "the best gain of each source at each open node, and which candidates reach it; sealed for "
        "the parties: weights of leaves; seconds per operation of cryptography"
    )
    reveals_sealed: ClassVar[Mapping[str, str]] = {
        SEALED_LEAVES: "weights of the leaves that may come of a node; the receiver is handed only "
        "those that the tree keeps"
    }
    reveals_sealed_noisy: ClassVar[Mapping[str, str]] = {
        SEALED_LEAVES: "weights of the leaves that may come of a node, clipped and under Gaussian "
        "noise where the receiver is the source of the split above, else exact; the receiver is "
        "handed only those that the tree keeps"
    }

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        arrays: dict[str, NDArray[np.generic]] = {}
        content = RecordDict()
        for name, offers in self.offers.items():
            arrays[f"gains/{name}"] = np.array([offer.gain for offer in offers])
            arrays[f"counts/{name}"] = np.array([len(o.places) for o in offers], dtype=np.int32)
            places = [offer.places for offer in offers]
            arrays[f"places/{name}"] = np.concatenate(places).astype(np.int32)
            sealed = [
                weights
                for offer in offers
                for weights in (*offer.sealed, *([] if offer.leaf is None else [offer.leaf]))
            ]
            content[f"{SEALED_LEAVES}/{name}"] = ConfigRecord(
                {
                    party: [weights[party] for weights in sealed]
                    for party in (sealed[0] if sealed else ())
                }
            )
        content["arrays"] = array_record(arrays)
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(
        cls,
        content: RecordDict,
        *,
        candidates: Mapping[str, int],
        parties: Sequence[str],
        are_last: Sequence[bool],
        may_prune: bool = False,
        gamma: float = 0.0,
    ) -> DecideReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed.

        Parameters
        ----------
        content : RecordDict
        candidates : mapping of source to int
            Of the sources that the party decrypts for.
        parties : sequence of str
            For whom weights are sealed.
        are_last : sequence of bool
            For each node of the level, whether its children are leaves in any case.
        may_prune : bool
            As in the request.
        gamma : float
            Least gain of a split.
        """
        arrays = content.array_records["arrays"]
        told = [name for name in content.config_records if name.startswith(f"{SEALED_LEAVES}/")]
        if set(told) != {f"{SEALED_LEAVES}/{name}" for name in candidates}:
            raise MalformedReply("leaves: must be of each source that the party decrypts for")
        offers = {}
        for name in candidates:
            gains, counts, places = _read_offers(
                {kind: arrays[f"{kind}/{name}"].numpy() for kind in ("gains", "counts", "places")},
                candidates=candidates[name],
                nodes=len(are_last),
                gamma=gamma,
            )
            pairs = [int(c) if last else 0 for c, last in zip(counts, are_last, strict=True)]
            leaves = [may_prune or not c for c in counts]
            record = content.config_records[f"{SEALED_LEAVES}/{name}"]
            sealed = iter(_read_leaves(record, parties=parties, count=sum(pairs) + sum(leaves)))
            ends = np.cumsum(counts)
            offers[name] = [
                SealedOffer(
                    float(gains[node]),
                    places[ends[node] - counts[node] : ends[node]],
                    tuple(next(sealed) for _ in range(pairs[node])),
                    next(sealed) if leaves[node] else None,
                )
                for node in range(len(are_last))
            ]
        return cls(offers, read_seconds(content))


def _read_leaves(record: ConfigRecord, *, parties: Sequence[str], count: int) -> list[Sealed]:
    """Sealed weights of one source, one for each party; MalformedReply if they do not fit."""
    told = dict(record)
    if not told and not count:
        return []
    if set(told) != set(parties):
        raise MalformedReply("leaves: must be sealed for every party")
    parts = {party: value if isinstance(value, list) else [] for party, value in told.items()}
    if any(len(each) != count for each in parts.values()):
        raise MalformedReply("leaves: must be sealed for every party")
    return [{party: as_bytes(parts[party][at]) for party in parties} for at in range(count)]


def _read_offers(
    arrays: Mapping[str, NDArray[np.generic]], *, candidates: int, nodes: int, gamma: float
) -> tuple[FloatArray, IntpArray, IntpArray]:
    """Gains, counts and places of one source's offers; MalformedReply if they do not fit."""
    gains = reals(arrays, "gains")
    told = arrays["counts"], arrays["places"]
    if any(array.dtype.kind != "i" or array.ndim != 1 for array in told):
        raise MalformedReply("counts, places: must be whole numbers in a row")
    counts, places = (array.astype(np.intp) for array in told)
    if len(gains) != nodes or len(counts) != nodes:
        raise MalformedReply("gains, counts: must be one a node")
    if (counts < 0).any() or counts.sum() != len(places):
        raise MalformedReply("counts: must add up to the places")
    if not np.isfinite(gains).all() or (gains[counts > 0] <= LEAST_GAIN).any():
        raise MalformedReply(f"gains: must be finite and above {LEAST_GAIN:g} where there is any")
    if (gains[counts > 0] < gamma).any():
        raise MalformedReply("gains: must be gamma or more where there is any")
    if gains[counts == 0].any():
        raise MalformedReply("gains: must be 0 where no candidate is eligible")
    if ((places < 0) | (places >= candidates)).any():
        raise MalformedReply("places: must be below the number of candidates")
    pairs = np.repeat(np.arange(nodes), counts) * candidates + places
    if len(np.unique(pairs)) != len(pairs):
        raise MalformedReply("places: must differ from one another")
    return gains, counts, places
