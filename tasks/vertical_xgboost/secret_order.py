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
