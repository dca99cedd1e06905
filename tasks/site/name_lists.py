"""Lines about many sites: one for each thing said, with the first few names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_SHOWN = 3


def some_names(names: Iterable[str], *, at_most: int = 5) -> str:
    """Join names by commas; of more than `at_most`, name the first three and count the others.

    Numbers in names count as numbers, so that site-10 comes after site-9.
    """
    ordered = sorted(names, key=_by_number)
    if len(ordered) <= at_most:
        return ", ".join(ordered)
    return f"{', '.join(ordered[:_SHOWN])} and {len(ordered) - _SHOWN} more"


def lines_by_words(said: Iterable[tuple[str, str]]) -> list[str]:
    """Turn pairs of site and words into a line for each words: ``"site-0, site-1: words"``."""
    names: dict[str, list[str]] = {}
    for name, words in said:
        names.setdefault(words, []).append(name)
    return [f"{some_names(who)}: {words}" for words, who in names.items()]


def _by_number(name: str) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)
    ]


def duplicates(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, times in Counter(names).items() if times > 1)
