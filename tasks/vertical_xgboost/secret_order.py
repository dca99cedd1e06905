"""Orders that somebody must not guess: permutations from the operating system's generator."""

from __future__ import annotations

import secrets

import numpy as np

from tasks.vertical_xgboost.candidates import IntpArray


def secret_permutation(length: int) -> IntpArray:
    """Draw a permutation of 0 to length - 1.

    By sorting random words: two of them are equal once in 2**64 pairs.
    """
    words = np.frombuffer(secrets.token_bytes(8 * length), dtype=np.uint64)
    return np.argsort(words, kind="stable").astype(np.intp)


def draw_split_clients(num_parties: int) -> tuple[int, ...]:
    """Draw for each source, by its place, another party that decrypts its sums.

    Parameters
    ----------
    num_parties : int
        2 or more.
    """
    drawn = [secrets.randbelow(num_parties - 1) for _ in range(num_parties)]
    return tuple(other + (other >= source) for source, other in enumerate(drawn))
