"""Names and words of another machine: what is let through, and what becomes of the rest."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.site_data import site_name
from tasks.site.faults import SiteFault
from tasks.site.foreign_text import printable
from tasks.site.names import is_site_name, normalized_name


@given(st.text(), st.integers(min_value=3, max_value=40))
def test_printable_text_is_one_short_line_without_control_characters(
    text: str, longest: int
) -> None:
    shown = printable(text, longest=longest)
    assert len(shown) == min(len(text), longest)
    assert len(shown.splitlines()) <= 1
    assert all(unicodedata.category(mark)[0] != "C" for mark in shown)
    assert printable(shown, longest=longest) == shown


@pytest.mark.parametrize(
    "text", ["", "Klinik Süd 3", "site-1: 3 rows", "東京", "<b>", "a\N{EM DASH}b"]
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@given(st.text(max_size=70))
def test_a_site_may_say_the_names_that_it_may_have_and_no_others(text: str) -> None:
    try:
        name = site_name({"site-name": text})
    except SiteFault:
        assert not is_site_name(text)
    else:
        assert is_site_name(name)
        assert name == normalized_name(text)
        assert printable(name) == name


@pytest.mark.parametrize("name", ["A" * 65, "", " a", "a ", "a  b", ".a", "a/b", "a\nb", "e\u0301"])
def test_what_is_no_name_of_a_site(name: str) -> None:
    assert not is_site_name(name)
