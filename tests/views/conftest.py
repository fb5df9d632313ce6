"""A headless browser for the tests that look at pages; without one they are skipped, or fail where it is required."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def found() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = found()
    if path is None:
        why = "no Chromium is installed (Debian: apt-get install chromium)"
        if os.environ.get("ANYK_TEST_BROWSER") == "required":
            pytest.fail(why)
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Opened:
    """A page in the browser, with all that it complained of and asked other hosts for."""

    def __init__(self, browser: Any, file: Any, **look: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1100, "height": 900}, **look)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda one: self.complaints.append(one.text) if one.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file if str(file).startswith("http://") else f"file://{file}", timeout=120_000)
        self.page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
        self.page.wait_for_timeout(300)

    def model(self, name: str, what: str) -> Any:
        """An expression of ``figure``, a model of the page by its name."""
        return self.page.evaluate(
            f"() => {{ const figure = Bokeh.documents[0].get_model_by_name('{name}'); return {what}; }}"
        )

    def tips(self) -> str:
        """The texts of all tooltips that are shown."""
        self.page.locator(".bk-Tooltip").first.wait_for()
        return self.page.evaluate(
            """() => {
                const found = [];
                const walk = (node) => {
                    for (const one of node.querySelectorAll("*")) {
                        if (one.classList.contains("bk-Tooltip") && one.checkVisibility())
                            for (const row of one.shadowRoot.querySelectorAll(".bk-tooltip-row, .bk-tooltip-content, div"))
                                if (!row.querySelector("div")) found.push(row.textContent.trim());
                        if (one.shadowRoot) walk(one.shadowRoot);
                    }
                };
                walk(document);
                return found.join(" ");
            }"""
        )

    def place(self, name: str, x: float, y: float) -> tuple[float, float]:
        """Where a point of a figure is in the window, after scrolling it into view."""
        return tuple(
            self.page.evaluate(
                """([name, x, y]) => {
                    const model = Bokeh.documents[0].get_model_by_name(name);
                    const view = Bokeh.index.find_one(model);
                    view.el.scrollIntoView({block: 'center'});
                    const box = view.el.getBoundingClientRect(), frame = view.frame;
                    return [box.left + frame.x_scale.compute(x), box.top + frame.y_scale.compute(y)];
                }""",
                [name, x, y],
            )
        )


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    pages: list[Opened] = []

    def open_it(file: Any, **look: Any) -> Opened:
        pages.append(Opened(browser, file, **look))
        return pages[-1]

    yield open_it
    for one in pages:
        one.context.close()
