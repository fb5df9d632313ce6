"""Keyed draws: pure, uniform, independent across keys, and the published Philox bits under the stated hash."""

from __future__ import annotations

from hashlib import blake2b
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from anyk.base import keyed
from anyk.base.keyed import array_digest, keyed_generator, keyed_uniform, keyed_uniforms

pytestmark = pytest.mark.in_process

WORD = 2**64 - 1
ids = st.lists(st.integers(-5, 2000) | st.text("abc-", min_size=1, max_size=3), max_size=3)


def philox4x64(counter: int, key: int) -> list[int]:
    """Philox4x64-10 of Salmon, Moraes, Dror and Shaw (2011) on Python's whole numbers."""
    x = [counter >> 64 * i & WORD for i in range(4)]
    k0, k1 = key & WORD, key >> 64
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [b >> 64 ^ x[1] ^ k0, b & WORD, a >> 64 ^ x[3] ^ k1, a & WORD]
        k0, k1 = k0 + 0x9E3779B97F4A7C15 & WORD, k1 + 0xBB67AE8584CAA73B & WORD
    return x


def documented_uniform(seed: int, purpose: str, *ids: object, number: int) -> float:
    """The draw by hand: BLAKE2b of the key's parts, then the 53 high bits of Philox's words, counted from 1."""
    joined = "\x1f".join(map(str, (seed, purpose, *ids)))
    key = int.from_bytes(blake2b(joined.encode(), digest_size=16).digest(), "little")
    return (philox4x64(number // 4 + 1, key)[number % 4] >> 11) / 2**53


def test_the_reference_philox_gives_the_authors_known_answer() -> None:
    # Random123's kat_vectors: philox4x64, 10 rounds, counter and key zero
    expected = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert philox4x64(0, 0) == expected


@pytest.mark.parametrize("number", [0, 1, 3, 4, 255, 256, 257, 511, 512, 10**6 + 7, 2**40 + 5])
def test_a_draw_is_philox_under_the_hash_of_its_key(number: int) -> None:
    assert keyed_uniform(7, "delay", 3, number=number) == documented_uniform(7, "delay", 3, number=number)


def test_draws_are_pinned() -> None:
    """The draws of a published seed are a promise: a change here changes every run that anybody has repeated."""
    drawn = [keyed_uniform(1, "delay", worker, number=n) for worker in (0, 1) for n in (0, 1)]
    assert drawn == [documented_uniform(1, "delay", worker, number=n) for worker in (0, 1) for n in (0, 1)]
    assert drawn == [0.5345822979277083, 0.4315122873179116, 0.40655229225367584, 0.33745151168845977]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**70), ids, st.integers(0, 1500), st.integers(0, 600))
def test_a_slice_is_its_draws_one_by_one(seed: int, ids: list[int | str], start: int, count: int) -> None:
    drawn = keyed_uniforms(seed, "x", *ids, start=start, count=count)
    assert drawn.shape == (count,) and drawn.dtype == np.float64
    assert drawn.tolist() == [keyed_uniform(seed, "x", *ids, number=start + i) for i in range(count)]


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(0, 1200, 37)))
def test_no_draw_depends_on_what_was_drawn_before(order: list[int]) -> None:
    drawn = {number: keyed_uniform(3, "order", 1, number=number) for number in order}
    assert [drawn[n] for n in sorted(drawn)] == keyed_uniforms(3, "order", 1, start=0, count=1200)[::37].tolist()


def test_writing_into_an_answer_changes_no_later_draw() -> None:
    for count in (10, 256, 300):
        before = keyed_uniforms(3, "mine", start=0, count=count).tolist()
        keyed_uniforms(3, "mine", start=0, count=count)[:] = -1.0
        assert keyed_uniforms(3, "mine", start=0, count=count).tolist() == before


def test_draws_of_different_keys_differ() -> None:
    keys = [(0, "a"), (1, "a"), (10, "a"), (-1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 0, 0), (0, "a0")]
    keys += [(0, "a", 1, 23), (0, "a", 12, 3), (0, "a", 123), (0, "a", "x"), (0, "a", -1), (2**64, "a"), (2**128, "a")]
    draws = {key: keyed_uniforms(*key, start=0, count=256) for key in keys}
    for one, other in combinations(keys, 2):
        assert not np.isin(draws[one], draws[other]).any(), (one, other)


@pytest.mark.parametrize("key", [(0, "delay", 0), (0, "delay", 1), (12345, "item", 3, 4)])
def test_draws_are_uniform_and_unrelated_to_their_neighbours(key: tuple[int | str, ...]) -> None:
    count = 50_000
    drawn = keyed_uniforms(*key, start=100, count=count)
    assert drawn.min() >= 0.0 and drawn.max() < 1.0
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3
    for lag in (1, 4, 256):  # neighbours, the next Philox block, the same place in the next kept block
        assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < 4 / count**0.5


def test_neighbouring_keys_are_uncorrelated() -> None:
    count = 20_000
    rows = np.array([keyed_uniforms(0, "delay", worker, start=0, count=count) for worker in range(12)])
    off = np.corrcoef(rows)[np.triu_indices(12, 1)]
    assert np.abs(off).max() < 4.5 / count**0.5  # the largest of 66
    first = np.array([keyed_uniform(seed, "delay", 0, number=0) for seed in range(2000)])
    assert stats.kstest(first, "uniform").pvalue > 1e-3  # the same draw across seeds is uniform, too


def test_a_generator_is_fresh_each_time_and_its_own_for_each_key() -> None:
    one, two = keyed_generator(5, "code", 3), keyed_generator(5, "code", 3)
    first = one.standard_normal(1000)
    assert first.tolist() == two.standard_normal(1000).tolist()
    assert first.tolist() != one.standard_normal(1000).tolist()
    assert first.tolist() == keyed_generator(5, "code", 3).standard_normal(1000).tolist()
    for other in ((6, "code", 3), (5, "codes", 3), (5, "code", 4), (5, "code")):
        assert not np.isin(keyed_generator(*other).standard_normal(1000), first).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [2, 64, 5000, 300_000])
def test_digests_notice_every_bit_every_sign_and_every_place(size, dtype):
    random = np.random.default_rng(size)
    w = random.standard_normal(size).astype(dtype)
    digest = array_digest(w)
    assert digest == array_digest(w.copy()) and 0 < digest < 2**63
    others = [-w, w[::-1], np.concatenate([w[: size // 2], -w[size // 2 :]])]
    for position in (1, size // 3 + 1, size // 2, size - 1):
        for value in (-w[position], np.nextafter(w[position], dtype(9))):
            others.append(w.copy())
            others[-1][position] = value
        others.append(w.copy())
        others[-1][[0, position]] = w[[position, 0]]
    others += [w.reshape(-1, 2).T.ravel()] * (size > 2)
    # by whole rows of the sums, and by whole parts
    others += [np.roll(w, by) for by in (1, size // 2, 511, 1022, 511 * 512, 1022 * 512, keyed.PART) if by % size]
    assert digest not in [array_digest(np.ascontiguousarray(other)) for other in others]


def test_digests_of_parts_add_up():
    w = np.arange(3.0 * keyed.PART + 7)
    parts = [array_digest(w[first : first + keyed.PART], first) for first in range(0, w.size, keyed.PART)]
    assert sum(parts) % 2**63 == array_digest(w)
