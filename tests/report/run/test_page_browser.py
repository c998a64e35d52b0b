"""The page in a real browser, on a desk and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfmodel.report.run.page import write_report
from perfmodel.studies.run.result import Result

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

FIGURES = 7


@pytest.fixture(scope="module")
def page_file(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(result, tmp_path_factory.mktemp("report"))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_page_opens_cleanly(browser: Browser, page_file: Path, width: int, height: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(180_000)
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    page.wait_for_function(
        f"document.querySelectorAll('.js-plotly-plot .main-svg').length >= {FIGURES}"
    )
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".js-plotly-plot").count() == FIGURES
    widths = page.eval_on_selector_all(
        ".js-plotly-plot .main-svg", "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert max(widths) <= width
    page.close()


def test_tables_become_cards_on_a_phone(browser: Browser, page_file: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(page_file.as_uri())
    page.wait_for_selector("#scaling table.stacked")
    boxes = "[...document.querySelectorAll('.scroll')]"
    assert page.evaluate(f"{boxes}.filter(b => b.scrollWidth > b.clientWidth).length") == 0
    # No rows are hidden without a sign: short tables stand whole, long ones are shaded below.
    tall = page.evaluate(
        f"{boxes}.filter(b => b.scrollHeight > b.clientHeight).map(b => b.className)"
    )
    assert set(tall) <= {"scroll long"}
    shades = page.locator(".scroll").first.evaluate("b => getComputedStyle(b).backgroundImage")
    assert "to top" in shades or "0deg" in shades
    row = page.locator("#scaling table tbody tr").first
    titles = row.locator("td").evaluate_all("all => all.map(cell => cell.dataset.title)")
    assert titles[:3] == ["GPUs", "Nodes", "Step"]
    shown = row.locator("td").nth(2).evaluate("c => getComputedStyle(c, '::before').content")
    assert shown == '"Step"'
    # On a desk the same page has its table again.
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_selector("table.stacked", state="detached")
    assert row.evaluate("row => getComputedStyle(row).display") == "table-row"
    page.close()
