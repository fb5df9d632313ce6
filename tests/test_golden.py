"""Every strategy decides, and every code decodes, as the golden file says; see golden.py."""

import pytest

import golden
from anyk.protocol import Note

SEEDS = [f" seed={seed}" for seed in golden.SEEDS]


@pytest.mark.slow(always=True)
@pytest.mark.parametrize(
    ("part", "least"),
    [
        ("code ", 70),
        ("layout ", 130),
        ("steady ", 7),
        (SEEDS[0], 130),
        *(pytest.param(seed, 130, marks=pytest.mark.slow) for seed in SEEDS[1:]),
    ],
)
def test_decisions_are_as_before(part, least):
    problems, count, _ = golden.compare(part)
    assert count >= least
    assert not problems, "\n".join(problems)


def test_a_note_in_other_words_is_the_same_note_with_its_numbers():
    one, other = Note("shares=2/20 from step 12 on"), Note("from step 2 on 20 of 12")
    assert golden.numbers_of(one) == golden.numbers_of(other) == ["Note", "strategy", 2.0, 20.0, 12.0]
    assert golden.numbers_of(Note("4 workers", "fleet")) != golden.numbers_of(Note("4 workers"))
