"""Reports in a real browser: they load without a complaint, zoom, and hover and receipts show the right numbers."""

import numpy as np
import pytest
from msgspec.structs import replace

import anyk
from anyk.runs.log.fates import CUT, USED, tasks_of
from anyk.views import report

pytestmark = pytest.mark.slow

PROBLEM = anyk.problems.from_recipe({"data": "synthetic:rows=240,features=5"})
SPEC = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def race(tmp_path_factory):
    """A race over two seeds, and its page."""
    folder = tmp_path_factory.mktemp("report")
    with anyk.race(PROBLEM, ["frc:load=3", "async:lr_scale=0.1"], workers=6, cluster="simulated:partition=0.05",
                   delays="exp:mean=1", steps=12, seed=3, seeds=2) as run:  # fmt: skip
        yield run, report(run, folder / "race.html")


@pytest.fixture
def page(race, opened):
    return opened(race[1])


def test_it_loads_without_a_complaint_and_asks_no_other_host(page):
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_hover_shows_the_times_of_a_task(page, race):
    run = race[0].runs[0]
    tasks = tasks_of(run)
    i = int(np.flatnonzero((tasks.fate == USED) & (tasks.step > 2))[0])
    x, y = page.place("run0 timeline", tasks.start[i] + tasks.waiting[i] / 2, int(tasks.worker[i]))
    page.page.mouse.move(x, y)
    tip = page.tips()
    assert f"{tasks.worker[i]}, task {tasks.task[i]}" in tip and f"in step {tasks.step[i]}" in tip
    waiting = tasks.waiting[i]
    assert (f"{float(f'{1e3 * waiting:.3g}'):g} ms" if waiting < 0.1 else f"{waiting:#.4g} s") in tip


def test_hover_shows_the_value_of_a_curve(page, race):
    run = race[0].runs[0]
    page.page.check("input[value=steps]")
    page.page.wait_for_timeout(300)
    value = np.median([one.history["loss"][5] for one in race[0].runs if one.config.strategy == run.config.strategy])
    x, y = page.place("curve 1", 5, value)
    page.page.mouse.move(x, y)
    tip = page.tips()
    assert f"{value:.5f}" in tip and "5" in tip.split() and "frc:load=3" in tip


def test_the_timeline_zooms(page, race):
    end = page.model("run0 timeline", "figure.x_range.end")
    assert end == pytest.approx(race[0].runs[0].seconds, rel=0.05)
    (left, y), (right, _) = (page.place("run0 timeline", share * end, 2) for share in (0.25, 0.5))
    page.page.mouse.move(left, y)
    page.page.mouse.down()
    page.page.mouse.move(right, y, steps=4)
    page.page.mouse.up()
    page.page.wait_for_timeout(300)
    start, stop = page.model("run0 timeline", "[figure.x_range.start, figure.x_range.end]")
    assert (start, stop) == pytest.approx((0.25 * end, 0.5 * end), rel=0.05)
    page.page.click("[data-run=run0][data-zoom=in]")
    assert page.model("run0 timeline", "figure.x_range.end - figure.x_range.start") == pytest.approx((stop - start) / 2)
    page.page.click("[data-run=run0][data-zoom=whole]")
    assert page.model("run0 timeline", "[figure.x_range.start, figure.x_range.end]") == [0, end]


def test_a_click_shows_the_receipt_of_its_step(page, race):
    run = race[0].runs[0]
    tasks = tasks_of(run)
    i = int(np.flatnonzero((tasks.fate == CUT) & (tasks.step > 2))[0])
    page.page.mouse.click(*page.place("run0 timeline", tasks.start[i] + tasks.seconds[i] / 2, int(tasks.worker[i])))
    page.page.wait_for_timeout(300)
    receipt, box = run.receipt(int(tasks.step[i])), page.page.locator("#run0-receipt")
    assert f"Receipt of step {tasks.step[i]}" in box.inner_text()
    cells = [table.locator("tbody td:first-child").all_inner_texts() for table in box.locator("table").all()]
    assert cells == [[str(one[0]) for one in receipt.used], [str(one.worker) for one in receipt.cut_off]]
    late = box.locator("table").nth(1).locator("tbody td:nth-child(3)").all_inner_texts()
    assert len(late) == len(receipt.cut_off)
    assert "All 6 partitions counted with weight 1." in box.inner_text()


@pytest.mark.parametrize("step", [1, 7, 12])
def test_receipts_can_be_asked_for_by_number(page, race, step):
    page.page.fill("#run1-step", str(step))
    page.page.click("#run1-ask button")
    receipt, box = race[0].runs[1].receipt(step), page.page.locator("#run1-receipt")
    rows = [row.split("\t")[:4] for row in box.locator("table").first.locator("tbody").inner_text().splitlines()]
    assert rows == [[str(w), str(t), f"{a:.4g}", str(s)] for w, t, a, s in receipt.used]


def test_curves_switch_to_steps_and_to_logarithms(page):
    page.page.check("input[value=steps]")
    assert page.model("curve 0", "figure.x_range.end") == pytest.approx(12, rel=0.1)
    page.page.check("#logy")
    assert page.model("curve 1", "[figure.y_scale.type, figure.y_range.start > 0]") == ["LogScale", True]
    before = page.model("curve 1", "figure.renderers.filter((one) => one.visible).length")
    page.page.click("[data-line='1']")
    assert page.model("curve 1", "figure.renderers.filter((one) => one.visible).length") < before
    assert page.complaints == []


CUT_OFF = """() => [...document.querySelectorAll("main *")].filter((one) =>
    (one.scrollWidth > one.clientWidth + 1 && ["auto", "scroll", "hidden"].includes(getComputedStyle(one).overflowX))
    || (["TD", "TH", "P", "LI"].includes(one.tagName) && one.checkVisibility()
        && one.getBoundingClientRect().right > window.innerWidth + 0.5)).map((one) => one.textContent)"""


def test_it_fits_a_narrow_window_and_follows_the_dark(race, opened):
    narrow = opened(race[1], color_scheme="dark")
    narrow.page.set_viewport_size({"width": 390, "height": 800})
    narrow.page.wait_for_timeout(300)
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 390
    narrow.page.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    narrow.page.click("#run0-ask button")
    assert narrow.page.evaluate(CUT_OFF) == []
    assert narrow.page.locator("td[data-title^='speed-up']").first.is_visible()
    assert narrow.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 25, 31)"
    dark = narrow.model("run0 timeline", "figure.below[0].major_label_text_color")
    narrow.page.click("#theme")
    assert narrow.model("run0 timeline", "figure.below[0].major_label_text_color") != dark
    assert narrow.page.pdf(format="A4").startswith(b"%PDF") and narrow.complaints == []


def test_specs_with_markup_do_nothing(opened, tmp_path):
    with anyk.train(PROBLEM, "uncoded", anyk.clusters.Simulated(2), steps=3) as run:
        run.config = replace(run.config, strategy=SPEC, metric="$$x^2$$", target=0.5)
        run.summary["metric"] = {"name": f"$$x$${SPEC}", "value": 0.5}
        with anyk.train(PROBLEM, "uncoded", anyk.clusters.Simulated(2), steps=3) as other:
            view = opened(report([run, other], tmp_path / "run.html"))
    x, y = view.place("curve 0", 0.0, 0.5)
    view.page.mouse.move(x + 3, y)
    view.page.wait_for_timeout(500)
    assert SPEC in view.page.inner_text("body") and view.page.locator("img").count() == 0
    assert view.complaints == [] and all(url.startswith(("file:", "data:", "blob:")) for url in view.requests)
