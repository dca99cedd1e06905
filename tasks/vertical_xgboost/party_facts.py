"""What a party of the vertical task adds to its introduction: facts of its rows, and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tasks.secure.transcript import decode, encode
from tasks.site.messages import Facts
from tasks.vertical_xgboost.message_parts import as_bytes, as_whole

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
        Of the ids in order with their evaluation flags.
    label_exponent : int
        Power of two that bounds its labels.
    paillier : bytes
        `PaillierBundle`.
    """

    num_rows: int
    num_evaluation: int
    digest: bytes
    label_exponent: int
    paillier: bytes

    reveals: ClassVar[str] = (
        "public keys, number of rows, digest of all ids, power of two above the party's largest "
        "label (regression only)"
    )

    def to_facts(self) -> Facts:
        """Return the facts for the introduction."""
        return {
            "num-rows": self.num_rows,
            "num-evaluation": self.num_evaluation,
            "digest": self.digest,
            "label-exponent": self.label_exponent,
            "paillier": self.paillier,
        }

    @classmethod
    def from_facts(cls, facts: Facts) -> PartyFacts:
        """Read the facts; raises ValueError or KeyError if they are malformed."""
        return cls(
            num_rows=as_whole(facts["num-rows"]),
            num_evaluation=as_whole(facts["num-evaluation"]),
            digest=as_bytes(facts["digest"]),
            label_exponent=as_whole(facts["label-exponent"]),
            paillier=as_bytes(facts["paillier"]),
        )
