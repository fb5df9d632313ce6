"""Every command of the docs does what tests/doclines.txt says; ``python tests/doclines.py --write`` renews it."""

import pytest

from doclines import difference, name_of, pages, stored


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=name_of(page)) for page in pages() if name_of(page) in stored()]
)
def test_the_commands_of_a_page_do_what_they_did(page):
    changed = difference(page)
    assert not changed, "\n".join(changed)
