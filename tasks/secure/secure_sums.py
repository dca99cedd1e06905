"""Sums over sites of which the server learns the sum only: pairwise masks, modulo 2**64.

Every two sites of a roster agree, from their X25519 keys, on a mask of uniform 64-bit words that
nobody else can compute; the site whose name comes first adds it, the other one subtracts it. In
the sum over all sites of the roster the masks cancel, exactly (Bonawitz et al. 2017, "Practical
secure aggregation for privacy-preserving machine learning", section 4.0.2, without the part that
reveals secrets of sites that dropped out). A mask is the ChaCha20 keystream under
HKDF-SHA256(shared secret; roster digest, run, step, the two names, length, bound): one roster and
one step a mask, no exchange of its own. The last word of every answer stands for 0, so that
masks that do not cancel (sites that were told different keys, lengths or bounds) are found out.

What the server learns
    The sum over the roster, the length, who answered. Each answer, and each sum over part of the
    roster, is uniform to it.
What is trusted
    At least two sites of every roster to collude neither with the server nor with the rest: the
    others (up to K - 1 sites) can subtract their own values and keep that of one site, which no
    protocol for sums can prevent. The keys: see `tasks.secure.roster` about sites that a server
    invents. Of two sites each learns the other's value from the sum: refused unless allowed.
Drop-outs
    If a site of the roster does not answer, the sum of that step cannot be opened, and a site's
    own mask is never revealed. A site answers one roster a step, and, asked again, only with the
    same answer (two values under one mask would give their difference). With
    ``drop_outs = "semi-honest-server"`` it answers the step anew for a smaller roster, taken from
    the one before: if the missing answer did arrive, the difference of the two sums is the
    missing site's value, so the server is trusted not to look.
What is not covered
    The same value asked for under two step names with two rosters: a step name has to say what
    is summed, and a site has to derive it itself. Wrong values of a site; sizes; a server that
    lies about keys where none is pinned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from tasks.secure.fixed_point import WORD_BOUND
from tasks.secure.keys import SiteKeys, check_name
from tasks.secure.roster import Roster
from tasks.secure.sum_guard import DropOuts, SumFault, SumGuard
from tasks.secure.transcript import encode

_MASK = "fedapp/secure-sum/1"
_WORD = np.dtype("<u8")
_BLOCK = 1 << 16  # bytes of keystream at most at a time: stays in the cache


@dataclass(frozen=True, eq=False)
class MaskedVector:
    """A site's answer, in which its values cannot be seen.

    Parameters
    ----------
    site, run, step : str
        Whose answer, and to what.
    roster_digest : bytes
        Digest of the roster whose masks it carries, 32 bytes.
    words : ndarray of uint64, shape (n + 1,)
        Masked values, and the masked check word.
    """

    site: str
    run: str
    step: str
    roster_digest: bytes
    words: NDArray[np.uint64]


def mask(
    values: NDArray[np.integer] | NDArray[np.bool_],
    *,
    keys: SiteKeys,
    roster: Roster,
    step: str,
    bound: int,
    guard: SumGuard,
    drop_outs: DropOuts = "stop",
    allow_two_sites: bool = False,
) -> MaskedVector:
    """Answer a step: the site's whole numbers under the masks of a roster.

    Parameters
    ----------
    values : ndarray of integers or bool, shape (n,)
        What is summed; reals go through `tasks.secure.fixed_point.FixedPoint` first.
    keys : SiteKeys
        Of this site.
    roster : Roster
        The sites that answer, this one among them; three or more.
    step : str
        What is summed; used once in a run.
    bound : int
        Largest absolute value that any site may send, the same at all of them;
        K * bound must be less than 2**63.
    guard : SumGuard
        Of this site in this run; changed in place, to be stored with the keys.
    drop_outs : {"stop", "semi-honest-server"}
        Whether a step may be answered anew for part of its roster.
    allow_two_sites : bool
        Allow a roster of two, where each site learns the other's values from the sum.

    Returns
    -------
    MaskedVector
        For the server.

    Raises
    ------
    SumFault
        ``too-few-sites``, ``invalid-bound``, ``invalid-values``, ``outside-bound``,
        ``second-roster``, ``second-answer``, ``not-in-roster``.
    KeyFault
        ``invalid-name`` if the step has no proper name.
    """
    check_name("step", step)
    _check_roster(keys, roster, step=step, allow_two_sites=allow_two_sites)
    _check_values(values, bound=bound, num_sites=len(roster.names), step=step)
    guard.check_roster(step, roster, drop_outs=drop_outs)
    words = np.zeros(len(values) + 1, dtype=_WORD)
    words[:-1] = values.astype(np.int64).view(np.uint64)
    own = keys.sealing_private_key
    for peer in roster.bundles:
        if peer.site == keys.site:
            continue
        first, second = sorted((keys.site, peer.site))
        info = encode(_MASK, roster.run, step, first, second, str(len(words)), str(bound))
        key = HKDF(algorithm=SHA256(), length=32, salt=roster.digest, info=info).derive(
            own.exchange(peer.sealing_public_key)
        )
        _apply_keystream(words, key, add=keys.site == first)
    guard.remember(step, roster, words)
    return MaskedVector(keys.site, roster.run, step, roster.digest, words)


def unmask_sum(masked: Sequence[MaskedVector], *, roster: Roster, step: str) -> NDArray[np.int64]:
    """Add the answers of all sites of a roster; their masks cancel.

    Parameters
    ----------
    masked : sequence of MaskedVector
        One a site of the roster, in any order.
    roster : Roster
        The sites that were asked.
    step : str
        The step they were asked about.

    Returns
    -------
    ndarray of int64, shape (n,)
        The sums over sites, exact.

    Raises
    ------
    SumFault
        ``missing-site`` if the sum cannot be opened because sites did not answer; ``bad-answer``
        if one is not of the roster, answered twice, or answered something else;
        ``masks-do-not-cancel``. All faults at once, with the code of the first.
    """
    _check_answers(masked, roster=roster, step=step)
    total = np.zeros(len(masked[0].words), dtype=_WORD)
    for answer in masked:
        total += answer.words
    if total[-1] != 0:
        raise SumFault(
            "masks-do-not-cancel",
            f"step {step}: the answers of {', '.join(roster.names)} do not belong together",
        )
    return total[:-1].astype(np.uint64, copy=False).view(np.int64)


def _check_roster(keys: SiteKeys, roster: Roster, *, step: str, allow_two_sites: bool) -> None:
    least = 2 if allow_two_sites else 3
    if len(roster.names) < least:
        raise SumFault(
            "too-few-sites",
            f"step {step}: a masked sum needs {least} sites or more, asked for "
            f"{len(roster.names)} (of two sites, each learns the other's values from the sum)",
        )
    if keys.public not in roster.bundles:
        raise SumFault(
            "not-in-roster", f"step {step}: {keys.site} is not in the roster with its own keys"
        )


def _check_values(
    values: NDArray[np.integer] | NDArray[np.bool_], *, bound: int, num_sites: int, step: str
) -> None:
    if bound < 0 or num_sites * bound >= WORD_BOUND:
        raise SumFault(
            "invalid-bound",
            f"step {step}: bound = {bound} must be 0 or more, "
            f"and {num_sites} sites times it less than 2**63",
        )
    if values.ndim != 1 or values.dtype.kind not in "iub":
        raise SumFault(
            "invalid-values",
            f"step {step}: whole numbers in one dimension are summed, "
            f"not {values.dtype} in {values.ndim}",
        )
    # As Python integers: the absolute value of -2**63 does not fit into a word.
    if values.size and max(int(values.max()), -int(values.min())) > bound:
        raise SumFault(
            "outside-bound",
            f"step {step}: a value exceeds {bound} in absolute value, "
            "the bound stated for this masked sum",
        )


def _apply_keystream(words: NDArray[np.uint64], key: bytes, *, add: bool) -> None:
    # The key serves once, so the nonce may be constant.
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    size = min(words.nbytes, _BLOCK)
    zeros, block = bytes(size), bytearray(size)
    pad = np.frombuffer(block, dtype=_WORD)
    apply = np.add if add else np.subtract
    for at in range(0, len(words), len(pad)):
        stream.update_into(zeros, block)
        part = words[at : at + len(pad)]
        apply(part, pad[: len(part)], out=part)


def _check_answers(masked: Sequence[MaskedVector], *, roster: Roster, step: str) -> None:
    count = Counter(answer.site for answer in masked)
    missing = [name for name in roster.names if not count[name]]
    faults = []
    if missing:
        faults.append(
            (
                "missing-site",
                f"step {step}: no answer of {', '.join(missing)}; "
                f"the sum over {len(roster.names)} sites cannot be opened",
            )
        )
    digest, names = roster.digest, frozenset(roster.names)
    lengths = Counter(answer.words.shape for answer in masked)
    for answer in masked:
        wrong = []
        if answer.site not in names:  # its name may be anything: it is not repeated
            faults.append(("bad-answer", f"step {step}: a site that was not asked answered"))
            continue
        if count[answer.site] > 1:
            wrong.append("answered more than once")
        if (answer.run, answer.step) != (roster.run, step):
            wrong.append("answered another run or step")
        if answer.roster_digest != digest:
            wrong.append("answered for another roster")
        if answer.words.dtype != _WORD or answer.words.ndim != 1 or not answer.words.size:
            wrong.append("did not answer in a vector of 64-bit words")
        if len(lengths) > 1 and answer.words.shape != lengths.most_common(1)[0][0]:
            wrong.append("answered with another length than most")
        faults += [("bad-answer", f"step {step}: {answer.site} {why}") for why in wrong]
    if faults:
        raise SumFault(faults[0][0], *dict.fromkeys(reason for _, reason in faults))
