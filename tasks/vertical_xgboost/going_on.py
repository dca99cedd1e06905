"""Where a resumed training goes on, as the server tells every party."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.message_parts import as_bytes, as_whole
from tasks.vertical_xgboost.party_facts import DIGEST_BYTES

_RECORD = "going-on"


@dataclass(frozen=True)
class GoingOn:
    """The trees that are kept of an interrupted training.

    Attributes
    ----------
    trees : int
        All that the model has so far, 1 or more.
    digest : bytes
        Of what parties and server know alike of these trees.
    repeated : int
        Noisy weights of the training that were or will be told twice.
    """

    trees: int
    digest: bytes
    repeated: int

    def put(self, content: RecordDict) -> None:
        """Put it into a message."""
        content[_RECORD] = ConfigRecord(
            {"trees": self.trees, "digest": self.digest, "repeated": self.repeated}
        )

    @classmethod
    def read(cls, content: RecordDict) -> GoingOn | None:
        """Read it from a message that may have none; ValueError or KeyError if it is malformed."""
        record = content.config_records.get(_RECORD)
        if record is None:
            return None
        found = cls(
            as_whole(record["trees"]), as_bytes(record["digest"]), as_whole(record["repeated"])
        )
        if found.trees < 1 or found.repeated < 0 or len(found.digest) != DIGEST_BYTES:
            raise MalformedReply("going-on: must be trees, their digest and a count")
        return found
