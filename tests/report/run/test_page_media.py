"""The page in the dark, on paper, and with hostile names: in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.files import data_folder
from perfmodel.report.run.page import write_report
from perfmodel.studies.run.result import Result

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

FIGURES = 7

CONTRASTS = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b]
    .map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(one).backgroundColor);
      if (a > 0.5) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim(), node = walker.currentNode.parentElement;
    if (!text || node.closest("script, style, noscript, .hoverlayer, .scatterlayer")) continue;
    if (!node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const drawn = node.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [a, b] = [luminance(channels(drawn)), luminance(behind(node))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text.slice(0, 40)]);
  }
  return found;
}"""
"""Contrast of every text against what lies behind it, as WCAG 2 defines it (W3C, 1.4.3)."""


TOUCHING = """() => {
  const found = [];
  for (const plot of document.querySelectorAll(".plot")) {
    const frame = plot.getBoundingClientRect();
    const texts = [...plot.querySelectorAll("svg text")].filter((e) => e.textContent.trim());
    const boxes = texts.map((e) => e.getBoundingClientRect());
    boxes.forEach((one, at) => {
      const name = texts[at].textContent;
      if (one.left < frame.left - 1 || one.right > frame.right + 1) found.push(`${name} is cut`);
      for (let other = at + 1; other < boxes.length; other += 1) {
        const two = boxes[other];
        const width = Math.min(one.right, two.right) - Math.max(one.left, two.left);
        const height = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
        if (width > 2 && height > 3) found.push(`${name} on ${texts[other].textContent}`);
      }
    });
  }
  return found;
}"""
"""Labels of figures that are cut by the edge or stand on each other."""


@pytest.fixture(scope="module")
def shown(browser: Browser) -> Iterator[Callable[..., Page]]:
    opened: list[Page] = []

    def show(file: Path, **options: Any) -> Page:
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        opened.append(page)
        page.set_default_timeout(180_000)
        page.goto(file.as_uri())
        page.wait_for_function(
            f"document.querySelectorAll('.js-plotly-plot .main-svg').length >= {FIGURES}"
        )
        return page

    yield show
    for page in opened:
        page.close()


@pytest.fixture(scope="module")
def file(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    points = tuple(replace(p, interval_s=(p.step_time_s, 2 * p.step_time_s)) for p in result.points)
    folder = tmp_path_factory.mktemp("media")
    return write_report(replace(result, points=points), folder)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_readable(shown: Callable[..., Page], file: Path, scheme: str) -> None:
    page = shown(file, color_scheme=scheme)
    found = page.evaluate(CONTRASTS)
    assert len(found) > 150
    assert [one for one in found if one[0] < 4.5] == []
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(18, 23, 29)" if scheme == "dark" else "rgb(255, 255, 255)")


@pytest.mark.slow
def test_lines_of_figures_are_seen_in_the_dark(shown: Callable[..., Page], file: Path) -> None:
    page = shown(file, color_scheme="dark")
    strokes = page.eval_on_selector_all(
        "#figure-scaling .scatterlayer path.js-line",
        "all => all.map(e => getComputedStyle(e).stroke)",
    )
    assert "rgb(228, 233, 239)" in strokes  # the line of linear scaling, dark ink on white paper
    assert "rgb(27, 36, 48)" not in strokes


@pytest.mark.slow
def test_intervals_are_seen_in_the_dark(shown: Callable[..., Page], file: Path) -> None:
    opacity = "all => Math.max(...all.map(e => Number(getComputedStyle(e).fillOpacity)))"
    for scheme, least, most in (("light", 0.1, 0.25), ("dark", 0.3, 0.4)):
        page = shown(file, color_scheme=scheme)
        assert least < page.eval_on_selector_all("#figure-steptime .js-fill", opacity) < most


@pytest.mark.slow
def test_paper_is_white_whatever_the_screen(shown: Callable[..., Page], file: Path) -> None:
    page = shown(file, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    found = page.evaluate(CONTRASTS)
    assert [one for one in found if one[0] < 4.5] == []


WIDER_THAN_PAPER = """() => [...document.querySelectorAll(".plot .main-svg, .scroll > table, p")]
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
    .map((e) => `${e.closest("section").id} ${e.tagName} ${e.getBoundingClientRect().right}`)"""


EMPTY_BELOW = """() => [...document.querySelectorAll(".plot")]
    .map((e) => e.clientHeight - e.querySelector(".main-svg").clientHeight)
    .filter((height) => height > 2)"""


@pytest.mark.slow
def test_figures_and_tables_fit_the_paper_and_come_back(
    shown: Callable[..., Page], file: Path
) -> None:
    page = shown(file)
    sizes = "[...document.querySelectorAll('.main-svg')].map(e => [e.clientWidth, e.clientHeight])"
    before = page.evaluate(sizes)
    assert max(width for width, _ in before) > 1000
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 690, "height": 1020})
    page.wait_for_timeout(200)
    assert page.evaluate(WIDER_THAN_PAPER) == []
    assert page.evaluate(EMPTY_BELOW) == []
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_timeout(200)
    assert page.evaluate(sizes) == before
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 1
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")


@pytest.mark.slow
def test_print_wastes_no_half_sheets(shown: Callable[..., Page], file: Path) -> None:
    """With figures as large as on the screen, of which half did not fit, these were 8 sheets."""
    printed = shown(file).pdf(format="A4")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 6


@pytest.mark.slow
def test_labels_of_figures_do_not_touch(shown: Callable[..., Page], file: Path) -> None:
    for width in (390, 1440):
        page = shown(file, viewport={"width": width, "height": 900})
        assert page.evaluate(TOUCHING) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


# ---------------------------------------------------------------- hostile names

EVIL = '"><img src=x onerror=pwned=1>{{7*7}}'
SCRIPT = "</script><script>pwned=1</script><!-- &amp; <b>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report of a scenario in which every name that a user may choose is an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    node = (data_folder("topologies") / "ethernet-10g.yaml").read_text(encoding="utf-8")
    node = node.replace("nccl-topo", "'<b>topo'").replace("IEEE 802.3", SCRIPT)
    node = node.replace("1 x V100 PCIe, 10", f"{SCRIPT} 10")
    (folder / f"{EVIL}.yaml").write_text(node, encoding="utf-8")
    rows = [f"'{SCRIPT}{n}',1000x1000,fp32,true,2 ms,4 ms" for n in range(4)]
    text = "\n".join(["name,shape,dtype,requires_grad,forward,backward", *rows]) + "\n"
    (folder / f"model{EVIL}.csv").write_text(text, encoding="utf-8")
    scenario = folder / f"scenario{EVIL}.yaml"
    scenario.write_text(
        f"# {SCRIPT} is the question?\nperfmodel: 1\nmodel: {{file: 'model{EVIL}.csv'}}\n"
        f"compute: {{source: file, times: 'model{EVIL}.csv', precision: fp32}}\n"
        f"cluster: {{node: './{EVIL}.yaml', nodes: 2, fabric: one-switch}}\n"
        "training: {batch_per_gpu: 8}\nscale: {nodes: [1, 2]}\n",
        encoding="utf-8",
    )
    asked = ["run", str(scenario), "-o", str(folder / "out"), "--explore", "--points", "54"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return folder / "out"


@pytest.mark.slow
def test_names_of_users_are_only_ever_text(browser: Browser, hostile: Path) -> None:
    page = browser.new_page()
    page.set_default_timeout(180_000)
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((hostile / "report.html").as_uri())
    page.wait_for_selector("#explorer-chart circle")
    for slider in page.locator(".axis input").all():
        slider.focus()
        page.keyboard.press("End")
        page.keyboard.press("Home")
    text = page.locator("main").inner_text()
    assert "</script><script>pwned=1</script>" in text  # the question, and parameters
    assert "<img src=x onerror=pwned=1>{{7*7}}" in text  # the file
    assert page.evaluate("typeof pwned") == "undefined"
    assert page.locator("img, b img, main script[src]").count() == 0
    assert complaints == []
    assert requests == [page.url]
    page.close()


def test_markdown_of_hostile_names_has_no_tags(hostile: Path) -> None:
    text = (hostile / "report.md").read_text(encoding="utf-8")
    assert "pwned" in text
    assert "<" not in text.replace("&lt;", "")
