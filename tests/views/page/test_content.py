"""What a report says of figures that are not anyk's own."""

import pytest

import anyk
from anyk.views import Panel, report_figures


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(report_figures, "entries", dict(report_figures.entries))
    problem = anyk.problems.from_data("synthetic:rows=40,features=3")
    with anyk.train(problem, "uncoded", "simulated", workers=3, delays="exp:mean=1", steps=3) as run:
        yield run


def failing(run, tasks):
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("figure", "sentence"),
    [
        (failing, "the report figure 'test-own' failed: KeyError: 'no such thing'"),
        (lambda run, tasks: "a text", "report figure 'test-own' returned str, not an anyk.views.Panel or None"),
    ],
)
def test_a_wrong_figure_of_a_plug_in_ends_in_a_sentence(run, tmp_path, figure, sentence):
    report_figures.register("test-own")(figure)
    with pytest.raises(anyk.BadInput, match=sentence):
        anyk.report(run, tmp_path / "page.html")


def test_a_figure_of_a_plug_in_is_shown_unless_it_is_none(run, tmp_path):
    report_figures.register("test-own")(lambda run, tasks: Panel("Of my own", f"tasks: {len(tasks)}"))
    report_figures.register("test-none")(lambda run, tasks: None)
    assert f"tasks: {len(anyk.runs.tasks_of(run))}" in anyk.report(run, tmp_path / "page.html").read_text(
        encoding="utf-8"
    )
