"""What a site remembers of the masked sums that it answered, so that it answers each step once.

Two answers under one mask give the difference of the values, and sums over two rosters give the
values of the sites by which the rosters differ: see `tasks.secure.secure_sums`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from tasks.secure.roster import Roster
from tasks.secure.transcript import decode, encode
from tasks.site.faults import SiteFault

DropOuts = Literal["stop", "semi-honest-server"]

_GUARD = "fedapp/secure-sum-guard/1"


class SumFault(SiteFault):
    """A masked sum that is refused; names sites, step and bounds, never a value."""


@dataclass(frozen=True)
class _Answer:
    names: tuple[str, ...]
    roster_digest: bytes
    words_digest: bytes


@dataclass
class SumGuard:
    """What a site remembers of a run: which rosters it has answered at each step, and how.

    Digests of what it sent, nothing of its values or masks. To be stored with the site's keys.
    """

    _answers: dict[str, list[_Answer]] = field(default_factory=dict)

    def check_roster(self, step: str, roster: Roster, *, drop_outs: DropOuts) -> None:
        """Refuse a roster that may not be answered at this step.

        Raises
        ------
        SumFault
            ``second-roster`` if another one was answered, and it is not allowed or this one is
            not a smaller part of it.
        """
        answers = self._answers.get(step, [])
        if not answers or any(a.roster_digest == roster.digest for a in answers):
            return
        if drop_outs != "semi-honest-server":
            raise SumFault(
                "second-roster",
                f"step {step} was answered for the sites {', '.join(answers[-1].names)}: "
                "it is not answered for others (drop-outs = stop)",
            )
        if not set(roster.names) < set(answers[-1].names):
            raise SumFault(
                "second-roster",
                f"step {step} was answered for the sites {', '.join(answers[-1].names)}: "
                "it is answered anew only for part of them",
            )

    def remember(self, step: str, roster: Roster, words: NDArray[np.uint64]) -> None:
        """Note an answer, or refuse it if the same roster got a different one at this step.

        Raises
        ------
        SumFault
            ``second-answer``.
        """
        words_digest = hashlib.sha256(words.data).digest()
        answers = self._answers.setdefault(step, [])
        for answer in answers:
            if answer.roster_digest == roster.digest:
                if answer.words_digest != words_digest:
                    raise SumFault(
                        "second-answer",
                        f"step {step} was answered with other values: "
                        "a second answer under the same masks would reveal the difference",
                    )
                return
        answers.append(_Answer(roster.names, roster.digest, words_digest))

    def to_bytes(self) -> bytes:
        """Serialise for the site's state."""
        return encode(
            _GUARD,
            *(
                encode(_GUARD, step, answer.roster_digest, answer.words_digest, *answer.names)
                for step, answers in self._answers.items()
                for answer in answers
            ),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote.

        Raises
        ------
        SumFault
            ``malformed-state`` if it is something else.
        """
        answers: dict[str, list[_Answer]] = {}
        try:
            for entry in decode(data, _GUARD):
                step, roster_digest, words_digest, *names = decode(entry, _GUARD)
                answer = _Answer(tuple(n.decode() for n in names), roster_digest, words_digest)
                answers.setdefault(step.decode(), []).append(answer)
        except ValueError:
            reason = "the stored record of answered sums is damaged"
            raise SumFault("malformed-state", reason) from None
        return cls(answers)
