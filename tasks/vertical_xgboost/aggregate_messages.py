"""The exchange that ``aggregator = "source"`` adds to a level: a source adds up sealed shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from tasks.secure.record_names import Protection, protected_name
from tasks.secure.transcript import decode, encode
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.candidates import IntpArray
from tasks.vertical_xgboost.message_parts import (
    SEALED_ORDERS,
    SEALED_SHARES,
    Sealed,
    Seconds,
    array_record,
    as_bytes,
    as_whole,
    check_refused,
    put_sealed,
    put_seconds,
    read_refused,
    read_sealed,
    read_seconds,
    whole_numbers,
)

AGGREGATE = "query.vertical_aggregate"

ORDER_REVEALS = "the secret order of the sender's candidates at the next level"

_SHARE = "fedapp/vertical-share/1"

FIRST_ORDER = "order-first"
"""Name of the step under which a source seals the order of the first level."""


def order_step(tree: int, level: int) -> str:
    """Name of the step under which the order of the level after this one is sealed."""
    return f"order-after-{tree}-{level}"


def share_step(tree: int, level: int) -> str:
    """Name of the step under which owners seal their shares for a source."""
    return f"share-{tree}-{level}"


def join_share(share: bytes, refused: NDArray[np.bool_] | None) -> bytes:
    """A share with its refusals as one payload."""
    bits = b"" if refused is None else np.packbits(refused).tobytes()
    return encode(_SHARE, share, bits)


def split_share(payload: bytes, shape: tuple[int, int]) -> tuple[bytes, NDArray[np.bool_] | None]:
    """The reverse of `join_share`; ValueError if it does not fit the (1 + candidates, nodes)."""
    share, bits = decode(payload, _SHARE)
    if not bits:
        return share, None
    count = shape[0] * shape[1]
    if len(bits) != -(-count // 8):
        raise ValueError("refusals of another size")
    flags = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=count)
    return share, flags.astype(np.bool_).reshape(shape)


@dataclass(frozen=True, eq=False)
class NextOrder:
    """A source's secret order for the next level.

    Attributes
    ----------
    order : (candidates,) intp
        For the server.
    sealed : dict of receiver to bytes
        For the label owners but the source's split client.
    """

    order: IntpArray
    sealed: Sealed


def put_order(content: RecordDict, following: NextOrder | None) -> None:
    """Put an order into a message."""
    if following is not None:
        content["order"] = array_record({"order": following.order.astype(np.int32)})
        put_sealed(content, following.sealed, SEALED_ORDERS)


def read_order(content: RecordDict) -> NextOrder | None:
    """The order of a message, if it has one; ValueError if it is none."""
    record = content.array_records.get("order")
    if record is None:
        return None
    order = whole_numbers(record["order"].numpy(), "order")
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise ValueError("not an order")
    return NextOrder(order, read_sealed(content, SEALED_ORDERS))


@dataclass(frozen=True)
class AggregateRequest:
    """Server to a source: the owners' shares, sealed for it.

    Attributes
    ----------
    tree, level : int
    sealed : dict of owner to bytes
    """

    tree: int
    level: int
    sealed: Sealed

    reveals: ClassVar[str] = (
        "sealed, from each party: ciphertexts of its sums, which the source cannot decrypt; which "
        "candidates min-instances refuses, where it is set"
    )
    reveals_plain: ClassVar[str] = (
        "sealed, from each party: SUMS OF ITS GRADIENTS (encryption = none); which candidates "
        "min-instances refuses, where it is set"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        at = ConfigRecord({"tree": self.tree, "level": self.level})
        content = RecordDict({"aggregate": at})
        put_sealed(content, self.sealed, SEALED_SHARES)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> AggregateRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        at = content.config_records["aggregate"]
        return cls(as_whole(at["tree"]), as_whole(at["level"]), read_sealed(content, SEALED_SHARES))


@dataclass(frozen=True, eq=False)
class AggregateReply:
    """A source: the total of its sums, for its split client.

    Attributes
    ----------
    total : bytes
        Ciphertexts, in the level's order, re-randomised.
    refused : (1 + candidates, nodes) bool or None
    following : NextOrder or None
        None where candidates are not shuffled.
    protection : str
        Of the total.
    seconds : dict of str to float
    """

    total: bytes
    refused: NDArray[np.bool_] | None
    following: NextOrder | None
    protection: Protection
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "nothing of one party: totals encrypted for split clients (the server has no key), the "
        "secret order of candidates for the next level, seconds per operation of cryptography; "
        "with min-instances, which candidates some label owner refuses"
    )
    reveals_plain: ClassVar[str] = (
        "SUMS OF GRADIENTS OF ALL PARTIES IN CLEAR (encryption = none); secret order, seconds and "
        "refusals as under encryption"
    )
    reveals_sealed: ClassVar[Mapping[str, str]] = {SEALED_ORDERS: ORDER_REVEALS}

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        name = protected_name(self.protection, "total")
        content = RecordDict({name: ConfigRecord({"total": self.total})})
        if self.refused is not None:
            content["refused"] = array_record({"refused": self.refused})
        put_order(content, self.following)
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(
        cls,
        content: RecordDict,
        *,
        shape: tuple[int, int],
        num_ordered: int | None,
        has_refusals: bool,
        protection: Protection,
    ) -> AggregateReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed.

        Parameters
        ----------
        content : RecordDict
        shape : (1 + candidates, nodes)
        num_ordered : int or None
            Candidates of which the source draws an order for the next level; None: it draws none.
        has_refusals : bool
            Whether it tells refusals of ``min-instances``.
        protection : str
            Of the total.
        """
        refused = None
        record = content.array_records.get("refused")
        if record is not None:
            refused = read_refused(record).get("refused")
        found = {} if refused is None else {"refused": refused}
        check_refused(found, {"refused": shape}, expected=has_refusals)
        following = read_order(content)
        if (len(following.order) if following else None) != num_ordered:
            raise MalformedReply("order: must be one of all candidates, where it is drawn")
        total = as_bytes(content.config_records[protected_name(protection, "total")]["total"])
        return cls(total, refused, following, protection, read_seconds(content))
