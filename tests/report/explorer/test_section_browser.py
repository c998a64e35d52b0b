"""The explorer in a real browser: sliders change numbers, and the numbers are the grid's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perfmodel.report.common import quantities
from perfmodel.report.common.html import render_html
from perfmodel.report.explorer.design import Axis, Design, Stop
from perfmodel.report.explorer.grid import Grid, value_at
from perfmodel.report.explorer.section import explorer_section
from perfmodel.studies.run.result import Result

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

PATIENCE_MS = 180_000

HOSTILE = (
    '</script><script>window.pwned=1</script><img src=x onerror="window.pwned=1"> {{7*7}} <!--'
)


def axis(key: str, labels: list[str], values: list[float], asked: int) -> Axis:
    points = [Stop(float(n), labels[n], values[n], {}) for n in range(len(labels))]
    between = [Stop(n + 0.25, f"between {n}", 1.0, {}) for n in range(len(labels) - 1)]
    return Axis(
        key, f"Axis of {key}", tuple(sorted([*points, *between], key=lambda s: s.at)), asked
    )


def build_grid(name: str = "n0/nic0 -> leaf0 (ethernet)") -> Grid:
    """Caps, bandwidths and 1, 8, 64 GPUs; the step a little different on each of 24 points."""
    axes = (
        axis("cap", ["1 MiB", "25 MiB", "98 MiB"], [1, 25, 98], 1),
        axis("bandwidth", ["25 Gbit/s (x1)", "50 Gbit/s (x2)"], [1, 2], 0),
        Axis(
            "gpus",
            "GPUs",
            tuple(
                Stop(float(n), quantities.gpus(gpus), gpus, {}) for n, gpus in enumerate((1, 8, 64))
            ),
            2,
        ),
    )
    rows = []
    for at, (cap, rate, size) in enumerate(itertools.product(range(3), range(2), range(3))):
        waits = 0.0 if size == 0 else 0.0123 * size * (1 + cap) / (1 + rate)
        step = 0.1 + waits + 1e-5 * at
        rows.append(
            {
                "step_time_s": step,
                "low_s": None if size == 0 else 0.9 * step,
                "high_s": None if size == 0 else 1.3 * step,
                "exposed_comm_s": waits,
                "comm_s": 2 * waits,
                "samples": 32.0 * (1, 8, 64)[size],
                "memory_bytes": 1e9,
                "bottleneck": "compute" if size == 0 else name,
                "fits": cap != 2,
            }
        )
    return Grid(Design(axes, ((0, 1, 2),)), tuple(rows), 2e9)


def in_pairs(grid: Grid) -> Grid:
    """The same grid, of which only pairs of sliders were simulated together."""
    design = Design(grid.axes, ((0, 1), (0, 2), (1, 2)))
    rows = (grid.rows[grid.design.points.index(point)] for point in design.points)
    return replace(grid, design=design, rows=tuple(rows))


@dataclass
class Opened:
    """A page with what it complained about and asked for."""

    page: Page
    complaints: list[str]
    requests: list[str]

    def text(self, name: str) -> str:
        found = self.page.locator(f"#explorer-{name}").text_content() or ""
        return found.replace("\xa0", " ")

    def move(self, key: str, stop: int) -> None:
        self.page.locator(f"#explorer-{key}").fill(str(stop))


@pytest.fixture(scope="module")
def pages(browser: Browser) -> Iterator[Callable[..., Opened]]:
    opened: list[Page] = []

    def open_page(file: Path, **options: Any) -> Opened:
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        page.set_default_timeout(PATIENCE_MS)
        opened.append(page)
        seen = Opened(page, [], [])
        page.on("console", lambda message: seen.complaints.append(message.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("#explorer-chart circle")
        return seen

    yield open_page
    for page in opened:
        page.close()


@pytest.fixture(scope="module")
def grid() -> Grid:
    return build_grid()


@pytest.fixture(scope="module")
def file(result: Result, grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "report.html"
    path.write_text(page_of(result, grid), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opened(pages: Callable[..., Opened], file: Path) -> Opened:
    return pages(file)


@pytest.fixture
def desk(opened: Opened) -> Opened:
    """Return the page on a desk, as it was asked."""
    opened.page.locator("#explorer-reset").click()
    return opened


def page_of(result: Result, grid: Grid) -> str:
    """The explorer without the other figures, which take long to draw."""
    return render_html("Explorer", [explorer_section(result, grid)])


def plain(text: str) -> str:
    return text.replace("\xa0", " ")


@pytest.mark.slow
def test_opens_as_asked_and_asks_for_nothing(desk: Opened, file: Path, grid: Grid) -> None:
    seen = desk
    assert seen.complaints == []
    assert seen.requests == [file.as_uri()]
    step = value_at(grid, grid.baseline, "step_time_s")
    assert step is not None
    assert seen.text("step") == plain(quantities.duration(step))
    assert seen.text("step-change") == "as asked"
    assert seen.text("speed") == plain(quantities.count(32 * 64 / step))
    assert seen.text("mark").startswith("Simulated")
    assert seen.text("cap-value") == "25 MiB"


@pytest.mark.slow
def test_every_point_shows_the_grids_numbers(desk: Opened, grid: Grid) -> None:
    seen = desk
    asked = value_at(grid, grid.baseline, "step_time_s")
    assert asked is not None
    for cap, rate, size in itertools.product(range(3), range(2), range(3)):
        seen.move("cap", 2 * cap)
        seen.move("bandwidth", 2 * rate)
        seen.move("gpus", size)
        place = (float(cap), float(rate), float(size))
        step, wait = (value_at(grid, place, c) for c in ("step_time_s", "exposed_comm_s"))
        assert step is not None
        assert wait is not None
        gpus = (1, 8, 64)[size]
        alone = value_at(grid, (*place[:2], 0.0), "step_time_s")
        assert alone is not None
        assert seen.text("step") == plain(quantities.duration(step))
        assert seen.text("exposed") == plain(quantities.duration(wait))
        assert seen.text("speed") == plain(quantities.count(32 * gpus / step))
        assert seen.text("share") == plain(quantities.percent_column(alone / step))
        assert seen.text("mark").startswith("Simulated")
        assert seen.text("limit") == ("compute" if size == 0 else "n0/nic0 -> leaf0 (ethernet)")
        assert seen.text("limit-change") == ("does not fit in GPU memory" if cap == 2 else "")
        low, high = (value_at(grid, place, column) for column in ("low_s", "high_s"))
        if low is None or high is None:
            assert seen.text("interval") == "no interval known"
        else:
            ends = f"80 % interval {quantities.duration(low)} to {quantities.duration(high)}"
            assert seen.text("interval") == plain(ends)
        off = 100 * (step / asked - 1)
        sign = "\N{MINUS SIGN}" if off < 0 else "+"
        changed = f"{sign}{quantities.count(abs(off))} % from what was asked"
        wanted = changed if abs(off) >= 0.05 else "as asked"
        assert seen.text("step-change") == ("if it did fit" if cap == 2 else wanted)


def test_what_does_not_fit_is_no_answer(desk: Opened) -> None:
    """Quicker or not, nothing is said to be better; the chart has a cross in place of a dot."""
    seen = desk
    seen.move("cap", 4)  # the largest of three, with dots for the other two
    bad = seen.page.locator("#explorer .tile.bad strong")
    assert bad.evaluate_all("all => all.map(one => one.id)") == [
        "explorer-step",
        "explorer-speed",
        "explorer-share",
        "explorer-limit",
    ]
    for name in ("step", "speed", "share"):
        assert seen.text(f"{name}-change") == "if it did fit"
    assert seen.page.locator("#explorer-chart path.unfit").count() == 1
    assert seen.page.locator("#explorer-chart circle.point").count() == 2
    assert "98 MiB" in (seen.page.locator("#explorer-chart").get_attribute("aria-label") or "")
    seen.page.locator("#explorer-reset").click()
    assert bad.count() == 0


def test_between_points_numbers_are_marked_and_equal_to_pythons(desk: Opened, grid: Grid) -> None:
    seen = desk
    seen.move("cap", 1)
    assert seen.text("mark").startswith("Interpolated")
    assert seen.page.locator("#explorer-mark").get_attribute("class") == "between"
    seen.move("bandwidth", 1)
    step = value_at(grid, (0.25, 0.25, 2.0), "step_time_s")
    wait = value_at(grid, (0.25, 0.25, 2.0), "exposed_comm_s")
    assert step is not None
    assert wait is not None
    assert seen.text("step") == f"\N{ALMOST EQUAL TO} {plain(quantities.duration(step))}"
    assert seen.text("exposed") == f"\N{ALMOST EQUAL TO} {plain(quantities.duration(wait))}"
    assert "between simulated points" in (
        seen.page.locator("#explorer-cap").get_attribute("aria-valuetext") or ""
    )
    seen.page.locator("#explorer-reset").click()
    assert seen.text("mark").startswith("Simulated")
    assert seen.text("step-change") == "as asked"


@pytest.mark.slow
def test_what_was_not_simulated_together_is_estimated_as_in_python(
    pages: Callable[..., Opened], result: Result, grid: Grid, tmp_path: Path
) -> None:
    pairs = in_pairs(grid)
    file = tmp_path / "pairs.html"
    file.write_text(page_of(result, pairs), encoding="utf-8")
    seen = pages(file)
    for cap, rate, size in ((0, 2, 1), (4, 2, 0), (1, 1, 1)):
        seen.move("cap", cap)
        seen.move("bandwidth", rate)
        seen.move("gpus", size)
        axes = zip(pairs.axes, (cap, rate, size), strict=True)
        place = tuple(axis.stops[stop].at for axis, stop in axes)
        step, wait = (value_at(pairs, place, c) for c in ("step_time_s", "exposed_comm_s"))
        assert step is not None
        assert wait is not None
        kind = "Estimated" if cap != 1 else "Interpolated"
        assert seen.text("mark").startswith(kind)
        assert seen.text("step") == f"\N{ALMOST EQUAL TO} {plain(quantities.duration(step))}"
        assert seen.text("exposed") == f"\N{ALMOST EQUAL TO} {plain(quantities.duration(wait))}"
    assert seen.complaints == []


def test_keyboard_moves_sliders_and_page_keys_go_to_points(desk: Opened) -> None:
    seen = desk
    slider = seen.page.locator("#explorer-cap")
    slider.focus()
    before = seen.text("step")
    seen.page.keyboard.press("ArrowRight")
    assert slider.input_value() == "3"
    assert seen.text("mark").startswith("Interpolated")
    seen.page.keyboard.press("PageUp")
    assert slider.input_value() == "4"
    assert seen.text("cap-value") == "98 MiB"
    assert seen.text("step") != before
    seen.page.keyboard.press("PageDown")
    assert slider.input_value() == "2"
    labels = seen.page.eval_on_selector_all(
        ".axis input", "all => all.map(one => one.labels.length)"
    )
    assert labels == [1, 1, 1]
    assert "Axis of cap" in seen.text("chart-title")
    seen.page.locator("#explorer-gpus").focus()
    seen.page.keyboard.press("ArrowLeft")
    assert "GPUs" in seen.text("chart-title")
    assert seen.page.locator("#explorer-chart circle.point").count() == 3
    # Nothing lies between the points of this slider: no line may join them.
    assert seen.page.locator("#explorer-chart polyline.curve").count() == 0
    assert seen.page.locator("#explorer-chart line.span").count() == 2  # one GPU has no interval
    seen.page.locator("#explorer-cap").press("ArrowLeft")
    assert seen.page.locator("#explorer-chart polyline.curve").count() == 1
    seen.page.locator("#explorer-reset").click()


@pytest.mark.slow
def test_fits_a_phone(pages: Callable[..., Opened], file: Path) -> None:
    seen = pages(file, viewport={"width": 390, "height": 844})
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    right = seen.page.eval_on_selector_all(
        "#What-if *, #what-if *",
        "all => Math.max(...all.map(one => one.getBoundingClientRect().right))",
    )
    assert right <= 390
    heights = seen.page.eval_on_selector_all(
        ".axis input", "all => all.map(one => one.getBoundingClientRect().height)"
    )
    assert min(heights) >= 24  # to be hit by a thumb
    assert seen.complaints == []


def test_on_paper_the_present_state_stays_and_sliders_go(desk: Opened) -> None:
    seen = desk
    seen.move("cap", 4)
    seen.page.emulate_media(media="print")
    assert not seen.page.locator("#explorer-cap").is_visible()
    assert not seen.page.locator("#explorer-reset").is_visible()
    assert seen.page.locator("#explorer-cap-value").is_visible()
    assert seen.text("cap-value") == "98 MiB"
    seen.page.emulate_media(media="screen")


@pytest.mark.slow
def test_hostile_names_stay_text(
    pages: Callable[..., Opened], result: Result, tmp_path: Path
) -> None:
    grid = build_grid(HOSTILE)
    named = replace(grid.axes[0], name=HOSTILE)
    stops = tuple(replace(stop, short=HOSTILE) for stop in grid.axes[1].stops)
    broken = replace(
        grid,
        design=Design((named, replace(grid.axes[1], stops=stops), grid.axes[2]), ((0, 1, 2),)),
        rows=(None, *grid.rows[1:]),
        failed=HOSTILE,
    )
    file = tmp_path / "hostile.html"
    file.write_text(page_of(result, broken), encoding="utf-8")
    seen = pages(file)
    for cap, rate, size in itertools.product(range(5), range(3), range(3)):
        seen.move("cap", cap)
        seen.move("bandwidth", rate)
        seen.move("gpus", size)
    assert seen.text("limit") == HOSTILE
    seen.move("cap", 0)
    seen.move("bandwidth", 0)
    seen.move("gpus", 0)
    assert seen.text("step") == "unknown"
    assert HOSTILE in seen.text("mark")
    assert seen.page.evaluate("window.pwned") is None
    assert seen.page.locator("img").count() == 0
    assert seen.complaints == []
    assert seen.requests == [file.as_uri()]
