"""What travels where the importance of features is summed over the parties of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from tasks.secure.secure_sums import MaskedVector
from tasks.site.foreign_text import printable
from tasks.site.messages import Facts
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.feature_importance import are_groups, distinct
from tasks.vertical_xgboost.message_parts import (
    Seconds,
    array_record,
    as_bytes,
    put_masked,
    put_seconds,
    read_masked,
    read_seconds,
    whole_numbers,
)

IMPORTANCE = "query.vertical_importance"
IMPORTANCE_STEP = "vertical-importance"
"""Step to which the masks of the sums are bound."""


@dataclass(frozen=True)
class SplitColumns:
    """What a party adds to its introduction: which of its own splits are on one column.

    Attributes
    ----------
    groups : tuple of int
        Of each own record the feature, numbered by first use from 0.
    names : tuple of str or None
        Columns by that number; None where the party does not consent to their being told.
    """

    groups: tuple[int, ...]
    names: tuple[str, ...] | None

    reveals: ClassVar[str] = (
        "which of the party's own splits are on the same column; with its consent "
        "(export-consent) the names of these columns"
    )

    def to_facts(self) -> Facts:
        """Return the facts for the introduction."""
        told: dict[str, list[int] | list[str]] = {"split-columns": list(self.groups)}
        if self.names is not None:
            told["column-names"] = list(self.names)
        return told

    @classmethod
    def from_facts(cls, facts: Facts) -> SplitColumns:
        """Read the facts; MalformedReply with the name of what is missing or of another form."""
        groups = facts.get("split-columns")
        if not isinstance(groups, list) or not all(type(each) is int for each in groups):
            raise MalformedReply("split-columns: must be whole numbers")
        numbers = tuple(int(each) for each in groups)
        if not are_groups(numbers):
            raise MalformedReply("split-columns: must count columns by first use")
        names = facts.get("column-names")
        if names is None:
            return cls(numbers, None)
        if not isinstance(names, list) or len(names) != len(set(numbers)):
            raise MalformedReply("column-names: must be one a column")
        if len(set(names)) != len(names) or not all(isinstance(each, str) for each in names):
            raise MalformedReply("column-names: must be different texts")
        # Names of categories may be long: cut or replaced, two may look alike.
        return cls(numbers, tuple(distinct(printable(str(each)) for each in names)))


@dataclass(frozen=True)
class ImportanceRequest:
    """Server to every party: sum your covers by feature.

    Attributes
    ----------
    roster : bytes
        Public keys of all parties.
    groups : mapping of str to tuple of int
        Of all parties, as they told.
    """

    roster: bytes
    groups: Mapping[str, tuple[int, ...]]

    reveals: ClassVar[str] = (
        "public keys of all parties; which splits of a party are on the same column"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        arrays = {name: np.array(own, dtype=np.int32) for name, own in self.groups.items()}
        return RecordDict(
            {"roster": ConfigRecord({"keys": self.roster}), "groups": array_record(arrays)}
        )

    @classmethod
    def from_record(cls, content: RecordDict) -> ImportanceRequest:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        groups: ArrayRecord = content.array_records["groups"]
        read = {
            name: tuple(whole_numbers(array.numpy(), "groups").tolist())
            for name, array in groups.items()
        }
        return cls(as_bytes(content.config_records["roster"]["keys"]), read)


@dataclass(frozen=True, eq=False)
class ImportanceReply:
    """A party: its covers by feature, under masks.

    Attributes
    ----------
    masked : MaskedVector
    seconds : dict of str to float
        Processor time of cryptography.
    """

    masked: MaskedVector
    seconds: Seconds = field(default_factory=dict)

    reveals: ClassVar[str] = (
        "under masks: of every feature the sum, over its splits and over all parties' training "
        "rows, of Hessians; seconds per operation of cryptography"
    )

    def to_record(self) -> RecordDict:
        """Return the message's content."""
        content = RecordDict()
        put_masked(content, self.masked)
        put_seconds(content, self.seconds)
        return content

    @classmethod
    def from_record(cls, content: RecordDict) -> ImportanceReply:
        """Read the message's content; raises ValueError or KeyError if it is malformed."""
        masked = read_masked(content)
        if masked is None:
            raise ValueError("no masked sums")
        return cls(masked, read_seconds(content))
