"""Lines about many sites name a few of them."""

from __future__ import annotations

import pytest

from tasks.site.name_lists import lines_by_words, some_names


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], ""),
        (["b", "a"], "a, b"),
        (["site-10", "site-9", "site-2"], "site-2, site-9, site-10"),
        ([f"site-{k}" for k in range(5)], "site-0, site-1, site-2, site-3, site-4"),
        ([f"site-{k}" for k in range(200)], "site-0, site-1, site-2 and 197 more"),
        (["7", "north", "north-2", "é"], "7, north, north-2, é"),
    ],
)
def test_the_first_names_and_the_count_of_the_others(names: list[str], words: str) -> None:
    assert some_names(names) == words


def test_one_line_for_each_thing_said() -> None:
    said = [(f"site-{k}", "too few rows" if k % 2 else "no file") for k in range(20)]
    assert lines_by_words(said) == [
        "site-0, site-2, site-4 and 7 more: no file",
        "site-1, site-3, site-5 and 7 more: too few rows",
    ]
