"""Every command of the docs does what tests/doclines.txt says; ``python tests/doclines.py --write`` renews it."""

import pytest

from doclines import difference, name_of, pages

pytestmark = pytest.mark.slow

# the comparison of all pages takes a quarter of an hour: run the script
QUICK = ("docs/codes/repetition.md", "docs/start.md", "docs/strategies.md")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in pages() if name_of(page) in QUICK], ids=name_of)
def test_the_commands_of_a_page_do_what_they_did(page):
    changed = difference(page)
    assert not changed, "\n".join(changed)
