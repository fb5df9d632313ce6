"""A sample of the corruption matrix; ``scripts/soak folders`` runs all of it."""

from collections import Counter

import pytest

from runs import corruption

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return corruption.make(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", ["ended", "killed"])
def test_a_damaged_folder_gives_the_same_or_a_sentence(name, folders):
    folder = folders[name]
    expected = corruption.expectations(folder)
    counts = Counter()
    for case in corruption.cases(folder, 20, seed=1):
        for command, verdict, text in corruption.judge(folder, expected, case):
            assert verdict not in ("silently different", "no sentence"), (command, case, text)
            counts[verdict] += 1
    assert counts["refused"] > 50 and counts["the same"] > 20
