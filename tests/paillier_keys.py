"""Key pairs that the tests of Paillier share, drawn once a session."""

from __future__ import annotations

from functools import cache

from tasks.vertical_xgboost.paillier.keys import PrivateKey, generate_key


@cache
def weak_key(number: int = 0) -> PrivateKey:
    """A pair of 1024 bits; another one for another number."""
    return generate_key(1024, allow_weak_key=True)
