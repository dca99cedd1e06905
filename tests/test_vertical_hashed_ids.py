"""Ids under keys, and private set intersection: the same common rows as sets of ids have."""

from __future__ import annotations

import hashlib
import hmac
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.secure.transcript import encode
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost import private_sets
from tasks.vertical_xgboost.alignment import (
    HashedIds,
    common_places,
    common_rows,
    hub_of,
    id_type,
    tells_exponents_later,
)
from tests.vertical_frames import config_of

USE = "fedapp/hashed-ids/1"
IDS = ("a", "b", "c", "d")

some_ids = st.sets(st.text(min_size=1, max_size=4), max_size=12).map(sorted)


def test_hashes_are_those_of_hmac_sha_256_ascending() -> None:
    drawn = HashedIds.draw(IDS)
    theirs = [hmac.new(drawn.key, text.encode(), hashlib.sha256).digest() for text in IDS]
    assert list(drawn.hashes) == sorted(theirs)
    assert len(drawn.key) == 32


def test_every_drawing_has_another_key() -> None:
    one, two = HashedIds.draw(IDS), HashedIds.draw(IDS)
    assert not {one.key, *one.hashes} & {two.key, *two.hashes}
    assert hashlib.sha256(b"a").digest() not in one.hashes


@given(st.lists(some_ids, min_size=1, max_size=3), some_ids)
@settings(deadline=None, max_examples=50)
def test_common_rows_are_the_intersection_of_sets(others: list[list[str]], own: list[str]) -> None:
    sent = [HashedIds.from_bytes(HashedIds.draw(ids).to_bytes(), sender="b") for ids in others]
    places = common_places(own, [hashed.places_in(own) for hashed in sent])
    expected = set(own).intersection(*others)
    assert [own[at] for at in places] == sorted(expected)
    answer = HashedIds.draw([own[at] for at in places])
    for ids in others:
        found = common_rows(answer, ids, hub="a", told=len(places))
        assert [ids[at] for at in found] == sorted(expected)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"garbage", "no hashed ids"),
        (encode(USE, b"k" * 32), "no hashed ids"),
        (encode("fedapp/other/1", b"k" * 32, b""), "no hashed ids"),
        (encode(USE, b"k" * 31, b""), "under a key of 31 bytes; must be 32"),
        (encode(USE, b"", b"h" * 32), "under a key of 0 bytes; must be 32"),
        (encode(USE, b"k" * 32, b"h" * 33), "cut short"),
        (encode(USE, b"k" * 32, b"h" * 64), "repeat or are in no ascending order"),
        (encode(USE, b"k" * 32, b"z" * 32 + b"a" * 32), "repeat or are in no ascending order"),
    ],
)
def test_hashed_ids_of_another_form_are_refused_by_name(data: bytes, words: str) -> None:
    with pytest.raises(SiteFault, match=words) as caught:
        HashedIds.from_bytes(data, sender="bank")
    assert caught.value.code == "bad-request"
    assert str(caught.value).startswith("bank: ")


def test_an_answer_with_strange_rows_or_another_count_is_refused() -> None:
    with pytest.raises(SiteFault, match="a: 2 common rows are not this party's"):
        common_rows(HashedIds.draw(["b", "x", "y"]), IDS, hub="a", told=3)
    with pytest.raises(SiteFault, match="a: 1 common rows; the server was told 2"):
        common_rows(HashedIds.draw(["b"]), IDS, hub="a", told=2)


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (["0", "7", "-12", "1000"], "whole numbers"),
        (["007", "123"], "digits with leading zeros"),
        (["00"], "digits with leading zeros"),
        (["-007"], "text"),
        (["7", "a"], "text"),
        (["7.5"], "text"),
        (["٧"], "text"),
    ],
)
def test_types_of_ids(ids: list[str], kind: str) -> None:
    assert id_type(ids) == kind


def test_the_hub_is_the_first_by_name_or_as_configured() -> None:
    names = ("bank", "shop", "tel")
    assert hub_of(config_of(alignment="hashed"), names) == "bank"
    assert hub_of(config_of(alignment="psi", alignment_hub="tel"), names) == "tel"
    with pytest.raises(SiteFault, match='alignment-hub = "store": allowed are the parties bank'):
        hub_of(config_of(alignment="hashed", alignment_hub="store"), names)
    with pytest.raises(ValueError, match="alignment-hub = 'tel': allowed with alignment"):
        config_of(alignment_hub="tel")


def test_label_sizes_are_told_late_only_where_they_matter() -> None:
    regression = {"alignment": "hashed", "objective": "reg:squarederror"}
    assert tells_exponents_later(config_of(**regression))
    for keys in (
        {"alignment": "hashed"},
        {**regression, "alignment": "same"},
        {**regression, "base_score": "0"},
        {**regression, "label_bound": 9.0},
    ):
        assert not tells_exponents_later(config_of(**keys))


# Private set intersection ------------------------------------------------------------------------


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "private_set_intersection.python", None)
    with pytest.raises(SiteFault, match=r"pip install '\.\[psi\]'") as caught:
        private_sets.library()
    assert caught.value.code == "missing-package"


needs_psi = pytest.mark.skipif(
    find_spec("private_set_intersection") is None, reason="needs the extra psi"
)


@needs_psi
def test_private_sets_give_the_intersection() -> None:
    own = [f"p{at}" for at in range(60)]
    for theirs in ([f"p{at}" for at in range(0, 90, 3)], ["q"], own):
        key, request = private_sets.invite(own)
        data = private_sets.answer(request, theirs, hub="bank")
        places = private_sets.places_of_common(key, data, own, sender="shop")
        assert [own[at] for at in places] == [text for text in own if text in theirs]
        assert places.dtype == np.intp
        for text in {*own, *theirs} - {"q"}:  # a single letter is in any bytes
            for seen in (request, data):
                assert text.encode() not in seen or len(text) < 3


@needs_psi
def test_answers_under_another_key_or_of_another_form_find_nothing() -> None:
    own = ["a", "b", "c"]
    key, request = private_sets.invite(own)
    other, _ = private_sets.invite(own)
    data = private_sets.answer(request, own, hub="bank")
    assert len(private_sets.places_of_common(other, data, own, sender="shop")) == 0
    with pytest.raises(SiteFault, match="bank: no request of a private intersection"):
        private_sets.answer(b"garbage", own, hub="bank")
    for bad in (b"garbage", encode("fedapp/private-sets-answer/1", b"x"), data[:-5]):
        with pytest.raises(SiteFault, match="shop: no answer of a private intersection"):
            private_sets.places_of_common(key, bad, own, sender="shop")
    with pytest.raises(SiteFault, match="shop: no answer"):  # of another number of ids
        private_sets.places_of_common(key, data, [*own, "d"], sender="shop")
