"""What a party of the vertical task adds to its introduction: facts of its rows, and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tasks.secure.transcript import decode, encode
from tasks.site.messages import Facts
from tasks.site.reply_fields import MalformedReply
from tasks.vertical_xgboost.message_parts import read_exponent

DIGEST_BYTES = 32

_PAILLIER = "fedapp/paillier-key-of-site/1"


@dataclass(frozen=True)
class PaillierBundle:
    """A Paillier key that its owner signed.

    Parameters
    ----------
    key : bytes
        Public key; empty where nothing is encrypted.
    signature : bytes
        By the owner's signing key of the run, over `signed`.
    """

    key: bytes
    signature: bytes

    @staticmethod
    def signed(run: str, site: str, key: bytes) -> bytes:
        """What is signed."""
        return encode(_PAILLIER, run, site, key)

    def to_bytes(self) -> bytes:
        """Return both parts as bytes."""
        return encode(_PAILLIER, self.key, self.signature)

    @classmethod
    def from_bytes(cls, data: bytes) -> PaillierBundle:
        """Read both parts; ValueError if they are not there."""
        key, signature = decode(data, _PAILLIER)
        return cls(key, signature)


@dataclass(frozen=True)
class PartyFacts:
    """What a party adds to its introduction.

    Attributes
    ----------
    num_rows, num_evaluation : int
        Rows, and how many of them evaluate: the same at all parties.
    digest : bytes
        Of the ids in order with their evaluation flags; empty where rows are aligned.
    label_exponent : int
        Power of two that bounds its labels.
    paillier : bytes
        `PaillierBundle`.
    weight_exponent : int or None
        Power of two that bounds its row weights; None where rows have none.
    id_type : str
        Of `tasks.vertical_xgboost.alignment.ID_TYPES`; ``""`` where rows are not aligned.
    model : bytes
        Digest of the shape of the model that the training goes on from; empty without one.
    trees : int
        Finished trees of the training that is resumed, which the party has kept; else 0.
    """

    num_rows: int
    num_evaluation: int
    digest: bytes
    label_exponent: int
    paillier: bytes
    weight_exponent: int | None = None
    id_type: str = ""
    model: bytes = b""
    trees: int = 0

    reveals: ClassVar[str] = (
        "public keys, number of rows and of those that evaluate, digest of all ids, power of two "
        "above the party's largest label, or that it has none (regression or counts without "
        "label-bound only), and where rows have row weights the power of two above the largest of "
        "them, or that it has none"
    )
    reveals_unaligned: ClassVar[str] = (
        "public keys, number of rows, whether ids are whole numbers, digits with leading zeros or "
        "text"
    )
    reveals_warm_start: ClassVar[str] = "digest of the model's shape and parties"
    reveals_resumed: ClassVar[str] = "how many trees of the interrupted training the party has kept"

    def to_facts(self) -> Facts:
        """Return the facts for the introduction."""
        return {
            "num-rows": self.num_rows,
            "num-evaluation": self.num_evaluation,
            "digest": self.digest,
            "label-exponent": self.label_exponent,
            "paillier": self.paillier,
            **({} if self.weight_exponent is None else {"weight-exponent": self.weight_exponent}),
            **({"id-type": self.id_type} if self.id_type else {}),
            **({"model": self.model} if self.model else {}),
            **({"trees": self.trees} if self.trees else {}),
        }

    @classmethod
    def from_facts(cls, facts: Facts) -> PartyFacts:
        """Read the facts.

        Raises
        ------
        tasks.site.reply_fields.MalformedReply
            With the name of what is missing or of another form.
        """
        digest, paillier = facts.get("digest"), facts.get("paillier")
        kind = str(facts.get("id-type", ""))
        if not isinstance(digest, bytes) or len(digest) != (0 if kind else DIGEST_BYTES):
            raise MalformedReply(f"digest: must be {DIGEST_BYTES} bytes, none with an id-type")
        if not isinstance(paillier, bytes):
            raise MalformedReply("paillier: must be bytes")
        model = facts.get("model", b"")
        if not isinstance(model, bytes) or len(model) not in (0, DIGEST_BYTES):
            raise MalformedReply(f"model: must be {DIGEST_BYTES} bytes, where there is one")
        return cls(
            num_rows=_count(facts, "num-rows"),
            num_evaluation=_count(facts, "num-evaluation"),
            digest=digest,
            label_exponent=read_exponent(facts.get("label-exponent"), "label-exponent"),
            paillier=paillier,
            weight_exponent=None
            if (told := facts.get("weight-exponent")) is None
            else read_exponent(told, "weight-exponent"),
            id_type=kind,
            model=model,
            trees=_count(facts, "trees") if "trees" in facts else 0,
        )


def _count(facts: Facts, key: str) -> int:
    value = facts.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise MalformedReply(f"{key}: must be a whole number of 0 or more")
    return value
