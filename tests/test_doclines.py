"""The commands of the docs work; ``python tests/doclines.py`` tries those of all pages."""

import pytest

import doclines
from doclines import failures, name_of, pages

pytestmark = pytest.mark.slow

# all pages take a quarter of an hour: run the script
QUICK = ("docs/codes/repetition.md", "docs/start.md", "docs/strategies.md")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in pages() if name_of(page) in QUICK], ids=name_of)
def test_the_commands_of_a_page_work(page):
    failed = failures(page)
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(
    ("printed", "works"),
    [
        (["$ anyk list", "exit 0", "  codes"], True),
        (["$ anyk list", "skipped: takes hours"], True),
        (["$ anyk list", "exit 2", "  Error: no such command"], False),
        (["$ anyk list", "exit 1 AttributeError"], False),
        (["$ anyk list", "  the process was killed meanwhile"], False),
        (["Traceback (most recent call last):"], False),
        ([], False),
    ],
)
def test_a_command_that_fails_is_found(printed, works, monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ anyk list\n```\n", encoding="utf-8")
    monkeypatch.setattr(doclines, "ROOT", tmp_path)
    monkeypatch.setattr(doclines, "performed", lambda page: printed)
    assert (failures(page) == []) == works
