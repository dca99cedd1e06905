"""Masked sums: exact for the sum, uniform for everything less than the sum."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from Crypto.Cipher import ChaCha20
from Crypto.Hash import SHA256
from Crypto.Protocol.DH import import_x25519_private_key, import_x25519_public_key, key_agreement
from Crypto.Protocol.KDF import HKDF
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tasks.secure import secure_sums
from tasks.secure.fixed_point import FixedPoint, FixedPointFault
from tasks.secure.keys import KeyFault, SiteKeys
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import MaskedVector, mask, unmask_sum
from tasks.secure.sum_guard import SumFault, SumGuard
from tasks.secure.transcript import encode
from tests.seeded_keys import seeded_keys

RUN, STEP = "run-7", "counts"
KEYS = [seeded_keys(site=f"site-{i:02}", run=RUN, seed=5) for i in range(20)]
EVERYBODY = Roster.from_bundles([keys.public for keys in KEYS], run=RUN)
SMALLEST = 1e-9  # p-value below which a statistical test fails; seeds are fixed


def first(count: int) -> Roster:
    return roster_of(KEYS[:count])


def roster_of(keys: list[SiteKeys]) -> Roster:
    return Roster.from_bundles([each.public for each in keys], run=RUN)


def answer(
    values: Any,
    site: int = 0,
    roster: Roster | None = None,
    guard: SumGuard | None = None,
    **kw: Any,
) -> MaskedVector:
    options = {"step": STEP, "bound": 10**6, **kw}
    return mask(
        np.asarray(values),
        keys=KEYS[site],
        roster=first(3) if roster is None else roster,
        guard=SumGuard() if guard is None else guard,
        **options,
    )


def answers(vectors: Sequence[Any], **kw: Any) -> list[MaskedVector]:
    roster = first(len(vectors))
    return [answer(values, site, roster, **kw) for site, values in enumerate(vectors)]


def fault(*args: Any, **kw: Any) -> SumFault:
    with pytest.raises(SumFault) as caught:
        answer(*args, **kw)
    return caught.value


# --- exact -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(3, 20), st.integers(0, 6), st.data())
def test_the_sum_is_exact_for_any_whole_numbers_sites_and_order(
    num_sites: int, length: int, data: st.DataObject
) -> None:
    largest = (2**63 - 1) // num_sites
    bound = data.draw(st.sampled_from([0, 1, 1000, largest]))
    vectors = data.draw(
        st.lists(
            st.lists(st.integers(-bound, bound), min_size=length, max_size=length),
            min_size=num_sites,
            max_size=num_sites,
        )
    )
    masked = answers([np.array(v, dtype=np.int64) for v in vectors], bound=bound)
    masked = data.draw(st.permutations(masked))
    total = unmask_sum(masked, roster=first(num_sites), step=STEP)
    assert total.dtype == np.int64
    assert total.tolist() == [sum(column) for column in zip(*vectors, strict=True)]


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sum_fits(sign: int) -> None:
    bound = (2**63 - 1) // 3
    masked = answers([[sign * bound]] * 3, bound=bound)
    assert unmask_sum(masked, roster=first(3), step=STEP).tolist() == [sign * 3 * bound]


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int32, np.uint64])
def test_every_kind_of_whole_number_is_summed(dtype: type) -> None:
    vectors = [np.array(v).astype(dtype) for v in ([1, 0, 1], [1, 1, 0], [1, 0, 0])]
    assert unmask_sum(answers(vectors), roster=first(3), step=STEP).tolist() == [3, 1, 1]


def test_masks_equal_those_of_another_implementation() -> None:
    """X25519, HKDF and ChaCha20 of PyCryptodome, on the middle one of three sites."""
    roster, bound, values = first(3), 1000, np.array([5, -7, 0, 1000])
    words = [int(v) % 2**64 for v in [*values, 0]]
    own = import_x25519_private_key(KEYS[1].sealing_private)
    for peer, sign in ((KEYS[0], -1), (KEYS[2], +1)):
        names = sorted([KEYS[1].site, peer.site])
        key = key_agreement(
            static_priv=own,
            static_pub=import_x25519_public_key(peer.public.sealing_key),
            kdf=lambda secret, names=names: HKDF(
                secret,
                32,
                roster.digest,
                SHA256,
                context=encode("fedapp/secure-sum/1", RUN, STEP, *names, "5", "1000"),
            ),
        )
        stream = ChaCha20.new(key=key, nonce=bytes(12)).encrypt(bytes(40))
        for i in range(5):
            pad = int.from_bytes(stream[8 * i : 8 * i + 8], "little")
            words[i] = (words[i] + sign * pad) % 2**64
    assert answer(values, 1, roster, bound=bound).words.tolist() == words


# --- what the server sees ----------------------------------------------------------------------


def uniform_p_values(words: NDArray[np.uint64]) -> list[float]:
    """Chi-square p-value of each of the eight bytes of the words, and of pairs in sequence."""
    table = words.astype("<u8").view(np.uint8).reshape(-1, 8)
    p_values = [
        float(stats.chisquare(np.bincount(table[:, byte], minlength=256)).pvalue)
        for byte in range(8)
    ]
    top = (words >> np.uint64(60)).astype(np.int64)
    pairs = np.bincount(16 * top[:-1:2] + top[1::2], minlength=256)
    p_values.append(float(stats.chisquare(pairs).pvalue))
    p_values.append(float(stats.kstest(words / 2.0**64, "uniform").pvalue))
    return p_values


@pytest.mark.parametrize("kind", ["zeros", "constant", "small counts", "ramp"])
def test_a_masked_vector_looks_uniform_whatever_is_in_it(kind: str) -> None:
    n = 100_000
    values = {
        "zeros": np.zeros(n, dtype=np.int64),
        "constant": np.full(n, 123_456),
        "small counts": np.random.default_rng(1).poisson(3, n),
        "ramp": np.arange(n),
    }[kind]
    assert min(uniform_p_values(answer(values).words)) > SMALLEST
    assert min(uniform_p_values(values.astype(np.uint64))) < SMALLEST  # the test can fail


def test_a_masked_vector_is_independent_of_the_values() -> None:
    n = 200_000
    values = np.random.default_rng(2).integers(-(2**60), 2**60, n)
    words = answer(values, bound=2**60).words[:-1]

    def p_values(words: NDArray[np.uint64]) -> list[float]:
        ranks = float(stats.pearsonr(values, words / 2.0**64).pvalue)
        result = [ranks]
        for shift in (0, 57):  # lowest and highest bits in use
            seen = (words >> np.uint64(shift)).astype(np.int64) % 16
            truth = (values.view(np.uint64) >> np.uint64(shift)).astype(np.int64) % 16
            table = np.bincount(16 * truth + seen, minlength=256).reshape(16, 16)
            result.append(float(stats.chi2_contingency(table).pvalue))
        return result

    assert min(p_values(words)) > SMALLEST
    assert max(p_values(values.view(np.uint64) + np.uint64(12345))) < SMALLEST  # it can fail


@pytest.mark.parametrize(
    "part", [c for k in (1, 2, 3) for c in itertools.combinations(range(4), k)]
)
def test_the_sum_over_any_part_of_the_roster_looks_uniform(part: tuple[int, ...]) -> None:
    masked = answers([np.full(20_000, site) for site in range(4)])
    total = np.sum([masked[site].words for site in part], axis=0, dtype=np.uint64)
    assert min(uniform_p_values(total)) > SMALLEST


def test_masks_of_other_steps_rosters_lengths_and_bounds_have_nothing_in_common() -> None:
    zeros = np.zeros(1000, dtype=np.int64)
    rosters = first(3), first(4)
    seen = [
        answer(zeros, roster=roster, step=step, bound=bound).words
        for roster, step, bound in itertools.product(rosters, ("a", "b"), (1, 2))
    ]
    seen.append(answer(np.zeros(1001, dtype=np.int64), step="a", bound=1).words[:1001])
    for one, other in itertools.combinations(seen, 2):
        assert not np.any(one == other)
        assert not np.any(one + other == 0)


# --- rosters, drop-outs, second answers --------------------------------------------------------


def test_a_missing_site_is_named_and_nothing_is_opened() -> None:
    masked = answers([[1], [2], [3], [4]])
    with pytest.raises(SumFault, match=r"no answer of site-01, site-03; the sum over 4") as caught:
        unmask_sum([masked[0], masked[2]], roster=first(4), step=STEP)
    assert caught.value.code == "missing-site"
    with pytest.raises(SumFault, match="no answer") as caught:
        unmask_sum([], roster=first(3), step=STEP)
    assert caught.value.code == "missing-site"


def test_a_second_roster_is_refused_by_default() -> None:
    guard = SumGuard()
    answer([1], roster=first(4), guard=guard)
    guard = SumGuard.from_bytes(guard.to_bytes())
    for roster in (first(3), first(5)):
        refusal = fault([1], roster=roster, guard=guard)
        assert refusal.code == "second-roster"
        assert "site-00, site-01, site-02, site-03" in str(refusal)
    answer([1], roster=first(3), guard=guard, step="another")


def test_a_semi_honest_server_may_repeat_a_step_without_who_dropped_out() -> None:
    guards = [SumGuard() for _ in range(5)]
    policy = {"drop_outs": "semi-honest-server"}
    for site in range(5):
        answer([site], site, first(5), guards[site], **policy)
    guards = [SumGuard.from_bytes(guard.to_bytes()) for guard in guards]
    masked = [answer([site], site, first(4), guards[site], **policy) for site in range(4)]
    assert unmask_sum(masked, roster=first(4), step=STEP).tolist() == [6]
    others = roster_of([KEYS[i] for i in (0, 1, 4)])
    for roster in (first(6), others):  # never back to more sites, or to others
        assert fault([0], 0, roster, guards[0], **policy).code == "second-roster"
    assert fault([0], 0, first(2), guards[0], **policy).code == "too-few-sites"
    assert fault([0], 0, first(3), guards[0]).code == "second-roster"  # the policy is the site's


def test_the_same_answer_may_be_sent_again_and_no_other() -> None:
    guard = SumGuard()
    sent = answer([1, 2], guard=guard)
    size = len(guard.to_bytes())
    guard = SumGuard.from_bytes(guard.to_bytes())
    assert np.array_equal(answer([1, 2], guard=guard).words, sent.words)
    assert len(guard.to_bytes()) == size
    for values, kw in (([1, 3], {}), ([1], {}), ([1, 2, 3], {}), ([1, 2], {"bound": 7})):
        refusal = fault(values, guard=guard, **kw)
        assert refusal.code == "second-answer"


def test_a_refused_step_is_not_used_up() -> None:
    guard = SumGuard()
    assert fault([2], guard=guard, bound=1).code == "outside-bound"
    assert guard.to_bytes() == SumGuard().to_bytes()
    answer([2], guard=guard)


@pytest.mark.parametrize("data", [b"", b"abc", encode("fedapp/secure-sum-guard/1", b"x")])
def test_a_damaged_guard_is_refused(data: bytes) -> None:
    with pytest.raises(SumFault) as caught:
        SumGuard.from_bytes(data)
    assert caught.value.code == "malformed-state"


def test_two_sites_are_refused_unless_allowed() -> None:
    refusal = fault([1], roster=first(2))
    assert refusal.code == "too-few-sites"
    assert "each learns the other's values" in str(refusal)
    masked = answers([[1], [2]], allow_two_sites=True)
    assert unmask_sum(masked, roster=first(2), step=STEP).tolist() == [3]
    for roster in (first(1), roster_of([])):
        assert fault([1], roster=roster, allow_two_sites=True).code == "too-few-sites"


def test_a_site_answers_only_a_roster_that_has_it_with_its_keys() -> None:
    assert fault([1], 5, first(3)).code == "not-in-roster"
    swapped = SiteKeys.generate(site=KEYS[0].site, run=RUN).public
    roster = Roster.from_bundles([swapped, *(k.public for k in KEYS[1:3])], run=RUN)
    assert fault([1], 0, roster).code == "not-in-roster"
    with pytest.raises(KeyFault, match="step"):
        answer([1], step="two\nlines")


# --- answers that do not belong together -------------------------------------------------------


def test_masks_that_do_not_cancel_are_found_out() -> None:
    other_bound = [*answers([[1], [2], [3]])[:2], answer([3], 2, bound=999_999)]
    restarted = SiteKeys.generate(site=KEYS[2].site, run=RUN)
    lied_to = Roster.from_bundles([*(k.public for k in KEYS[:2]), restarted.public], run=RUN)
    stranger = mask(
        np.array([3]), keys=restarted, roster=lied_to, step=STEP, bound=10**6, guard=SumGuard()
    )
    forged = replace(stranger, roster_digest=first(3).digest)
    for masked in (other_bound, [*answers([[1], [2], [3]])[:2], forged]):
        with pytest.raises(SumFault, match="do not belong together") as caught:
            unmask_sum(masked, roster=first(3), step=STEP)
        assert caught.value.code == "masks-do-not-cancel"


def test_all_answers_that_do_not_fit_are_named_at_once() -> None:
    good = answers([[1, 1], [2, 2], [3, 3], [4, 4]])
    bad = [
        replace(good[0], step="another"),
        replace(good[1], words=good[1].words[:-1]),
        replace(good[2], words=good[2].words.astype(np.float64)),
        good[3],
        good[3],
        replace(good[3], site="\x1b[31mstranger"),
    ]
    with pytest.raises(SumFault) as caught:
        unmask_sum(bad, roster=first(4), step=STEP)
    assert caught.value.code == "bad-answer"
    assert caught.value.reasons == (
        "step counts: site-00 answered another run or step",
        "step counts: site-01 answered with another length than most",
        "step counts: site-02 did not answer in a vector of 64-bit words",
        "step counts: site-03 answered more than once",
        "step counts: a site that was not asked answered",
    )
    with pytest.raises(SumFault, match="site-02 answered for another roster"):
        unmask_sum(
            [*answers([[1], [2], [3]])[:2], answer([3], 2, first(4))], roster=first(3), step=STEP
        )


# --- bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "bound"), [(1001, 1000), (-1001, 1000), (-(2**63), 2**61), (2**63 - 1, 2**61)]
)
def test_a_value_outside_the_bound_is_refused_by_the_bound_and_not_by_the_value(
    value: int, bound: int
) -> None:
    refusal = fault([0, value], bound=bound)
    assert refusal.code == "outside-bound"
    assert str(bound) in str(refusal)
    assert str(abs(value)) not in str(refusal)


def test_an_unsigned_value_beyond_a_signed_word_is_refused() -> None:
    assert fault(np.array([2**64 - 1], dtype=np.uint64)).code == "outside-bound"


@pytest.mark.parametrize("bound", [-1, -(-(2**63) // 3), 2**63])
def test_a_bound_under_which_the_sum_may_overflow_is_refused(bound: int) -> None:
    refusal = fault([0], bound=bound)
    assert refusal.code == "invalid-bound"
    assert f"bound = {bound}" in str(refusal)


@pytest.mark.parametrize("values", [[0.5], [[1, 2]], 3, ["a"], np.array([2**70])])
def test_what_is_no_vector_of_whole_numbers_is_refused(values: Any) -> None:
    assert fault(values).code == "invalid-values"


# --- reals -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(
    st.integers(3, 20),
    st.floats(1e-12, 1e12),
    st.data(),
)
def test_a_sum_of_reals_is_within_the_stated_tolerance(
    num_sites: int, bound: float, data: st.DataObject
) -> None:
    finest = FixedPoint.finest(bound=bound, num_sites=num_sites)
    form = FixedPoint(bits=data.draw(st.integers(0, finest.bits)), bound=bound)
    reals = data.draw(st.lists(st.floats(-bound, bound), min_size=num_sites, max_size=num_sites))
    total = sum(int(form.encode(x)) for x in reals)
    assert abs(total) < 2**63
    assert num_sites * form.integer_bound < 2**63
    assert int(form.encode(bound)) <= form.integer_bound
    got = Fraction(float(form.decode(np.array([total]))[0]))
    assert abs(got - sum(map(Fraction, reals))) <= Fraction(form.tolerance(num_sites))


def test_the_tolerance_is_not_idle() -> None:
    """Half a unit a site is reached."""
    form = FixedPoint(bits=10, bound=1.0)
    total = sum(int(form.encode(3.5 * 2**-10)) for _ in range(4))
    error = abs(float(form.decode(np.array([total]))[0]) - 4 * 3.5 * 2**-10)
    assert error == 4 * 2**-11
    assert error <= form.tolerance(4) < 1.001 * error


@given(st.integers(1, 100), st.floats(1e-100, 2**56))
def test_the_finest_format_is_the_finest(num_sites: int, bound: float) -> None:
    form = FixedPoint.finest(bound=bound, num_sites=num_sites)
    assert num_sites * form.integer_bound < 2**63
    if form.bits < 512:
        assert num_sites * Fraction(bound) * 2 ** (form.bits + 1) > 2**63 - num_sites


def test_reals_are_summed_under_masks() -> None:
    rng = np.random.default_rng(3)
    reals = rng.normal(0, 100, (5, 50))
    form = FixedPoint.finest(bound=1e4, num_sites=5)
    assert form.bits == 47
    masked = answers([form.encode(row) for row in reals], bound=form.integer_bound)
    got = form.decode(unmask_sum(masked, roster=first(5), step=STEP))
    exact = [sum(map(Fraction, column)) for column in reals.T.tolist()]
    errors = [abs(Fraction(x) - y) for x, y in zip(got.tolist(), exact, strict=True)]
    assert 0 < max(errors) <= Fraction(form.tolerance(5))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 7.3, -7.3])
def test_a_real_outside_the_bound_is_refused_before_masking(value: float) -> None:
    with pytest.raises(FixedPointFault) as caught:
        FixedPoint(bits=20, bound=7.25).encode([1.0, value])
    assert caught.value.code == "outside-bound"
    assert "7.25" in str(caught.value)
    assert "7.3" not in str(caught.value)


@pytest.mark.parametrize(
    ("bits", "bound", "words"),
    [
        (-1, -1.0, ["bits = -1", "bound = -1.0"]),
        (513, np.nan, ["bits = 513", "bound = nan"]),
        (10, np.inf, ["bound = inf"]),
        (43, 2.0**20, ["bound = 1048576.0 with bits = 43"]),
    ],
)
def test_a_format_that_does_not_fit_is_refused(bits: int, bound: float, words: list[str]) -> None:
    with pytest.raises(FixedPointFault) as caught:
        FixedPoint(bits=bits, bound=bound)
    assert caught.value.code == "invalid-fixed-point"
    assert len(caught.value.reasons) == len(words)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(("bound", "num_sites"), [(0.0, 3), (np.inf, 3), (2.0**62, 3), (1.0, 0)])
def test_no_format_is_found_where_none_fits(bound: float, num_sites: int) -> None:
    with pytest.raises(FixedPointFault) as caught:
        FixedPoint.finest(bound=bound, num_sites=num_sites)
    assert caught.value.code == "invalid-fixed-point"


# --- speed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 150, (1 << 13) - 1])
def test_no_more_keystream_is_made_than_there_are_words(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site makes a mask for every other one: of a thousand sites, a thousand short ones."""
    made: list[int] = []

    class Counting(Cipher):  # type: ignore[type-arg]
        def encryptor(self) -> Any:
            stream = super().encryptor()

            class Counted:
                def update_into(self, data: bytes, buffer: bytearray) -> int:
                    made.append(len(data))
                    return int(stream.update_into(data, buffer))

            return Counted()

    monkeypatch.setattr(secure_sums, "Cipher", Counting)
    answer(np.zeros(length, np.int64), roster=first(5))
    assert made == [8 * (length + 1)] * 4


def test_a_million_words_of_five_sites_take_little_more_than_their_keystreams() -> None:
    n, values = 1_000_000, np.arange(1_000_000)

    def keystreams() -> None:
        for _ in range(4):
            cipher = Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), mode=None)
            cipher.encryptor().update(bytes(8 * n))

    def best(work: Any) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()
            work()
            times.append(time.process_time() - start)
        return min(times)

    seconds = best(lambda: answer(values, roster=first(5)))
    assert seconds < max(0.2, 4 * best(keystreams))
