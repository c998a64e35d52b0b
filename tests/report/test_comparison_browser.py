"""The page of a comparison in a real browser: names are text, whatever stands in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfmodel.report.common.html import write_each
from perfmodel.report.comparison import FILES
from perfmodel.scenario import load_scenario
from perfmodel.studies.compare import compare

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=\"window.bad=1\"></script><script>window.bad=1</script> & 'b'"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = ["scale=null", "model.name=resnet18", "cluster.nodes=2"]
    asked = {
        "plain": load_scenario("bucket-size-slow-ethernet", small),
        HOSTILE: load_scenario("bucket-size-slow-ethernet", [*small, "strategy.hook=fp16"]),
    }
    found = compare(asked, attribute=True, jobs=1)
    return write_each(FILES, found, tmp_path_factory.mktemp("compare"))


def brightness(colour: str) -> float:
    """Mean of "rgb(r, g, b)", from 0 to 1."""
    parts = [int(part) for part in re.findall(r"\d+", colour)[:3]]
    return sum(parts) / 3 / 255


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_comparison_opens_cleanly(
    browser: Browser, page_file: Path, width: int, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.set_default_timeout(180_000)
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    page.wait_for_selector(".js-plotly-plot .main-svg")
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("window.bad") is None
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text().startswith(f"{HOSTILE} is the quickest: ")
    assert page.locator("p", has_text="<img src=x").count() >= 2
    assert (page.locator(".ytick").nth(1).text_content() or "").startswith(f"B, {HOSTILE[:20]}")
    assert brightness(page.evaluate("getComputedStyle(document.body).backgroundColor")) == (
        pytest.approx(1 if scheme == "light" else 0, abs=0.15)
    )
    page.close()
