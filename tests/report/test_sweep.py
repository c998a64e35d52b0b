"""The page of a sweep: which field is the axis, what it says, and how it opens in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perfmodel.report.collective import draw_busbw, write_collective
from perfmodel.report.collective import headline as collective_headline
from perfmodel.report.collective import sentences as collective_sentences
from perfmodel.report.sweep import (
    choose_axes,
    describe,
    draw_steps,
    draw_throughput,
    findings,
    headline,
    parts_s,
    sweep_html,
    variant_table,
    write_sweep,
)
from perfmodel.scenario import load_scenario
from perfmodel.studies.sweep import Answer, SweepResult
from perfmodel.studies.sweep.variants import Variant

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "<img src=x onerror=alert(1)> & <script>alert(2)</script>"
SPACE = "\N{NO-BREAK SPACE}"


def swept(*variants: tuple[dict[str, Any], dict[str, Any]]) -> SweepResult:
    """A sweep by what each variant sets and answers."""
    sets = tuple(Variant(at, fields, None, f"{at}") for at, (fields, _) in enumerate(variants))
    usual = {
        "step_time_s": 0.2,
        "compute_s": 0.1,
        "exposed_comm_s": 0.05,
        "gpus": 8,
        "fits": True,
        "samples_per_s": 100.0,
        "bottleneck": HOSTILE,
        "low_s": 0.1,
        "high_s": 0.3,
    }
    answers = tuple(
        Answer("failed", HOSTILE) if "message" in own else Answer("ok", **(usual | own))
        for _, own in variants
    )
    return SweepResult(sets, answers)


def pairs_of(sweep: SweepResult) -> list[tuple[Variant, Answer]]:
    return list(zip(sweep.variants, sweep.answers, strict=True))


CAPS = swept(
    *(
        ({"strategy.bucket_cap": cap, "strategy.hook": hook, "seed": 1}, {"samples_per_s": rate})
        for hook, more in (("none", 1.0), ("fp16", 1.5))
        for cap, rate in (("100 MiB", 90 * more), ("5 MiB", 80 * more), ("25 MiB", 99 * more))
    )
)


def test_numbers_with_units_are_the_axis_in_their_order() -> None:
    axes = choose_axes(CAPS.fields, pairs_of(CAPS))
    assert axes is not None
    assert axes.field == "strategy.bucket_cap"
    assert axes.places == {"5 MiB": 5 * 2**20, "25 MiB": 25 * 2**20, "100 MiB": 100 * 2**20}
    assert "strategy.hook" in axes.lines
    figure = draw_throughput(pairs_of(CAPS), axes)
    assert [trace.y for trace in figure.data] == [(120, 148.5, 135), (80, 99, 90)]


def test_what_does_not_fit_is_marked() -> None:
    sizes = ((8, True), (16, True), (32, False))
    sweep = swept(*(({"batch": b}, {"samples_per_s": b, "fits": fits}) for b, fits in sizes))
    axes = choose_axes(sweep.fields, pairs_of(sweep))
    assert axes is not None
    (line,) = draw_throughput(pairs_of(sweep), axes).data
    assert line.marker.symbol == ("circle", "circle", "circle-open")
    assert ["not fit" in text for text in line.hovertext] == [False, False, True]


def test_what_goes_along_with_the_axis_makes_no_lines() -> None:
    zipped = swept(*(({"nodes": n, "cap": f"{n} MiB", "kind": "a"}, {}) for n in (1, 2, 4)))
    axes = choose_axes(zipped.fields, pairs_of(zipped))
    assert axes is not None
    assert axes.lines == ("kind",)


def test_words_make_no_axis() -> None:
    words = swept(*(({"strategy": {"kind": kind}, "on": True}, {}) for kind in ("a", "b", "c")))
    assert choose_axes(words.fields, pairs_of(words)) is None


def test_the_quickest_fits_and_small_clusters_may_win_for_each_gpu() -> None:
    sweep = swept(
        ({"cluster.nodes": 1}, {"samples_per_s": 100.0, "gpus": 8}),
        ({"cluster.nodes": 2}, {"samples_per_s": 180.0, "gpus": 16}),
        ({"cluster.nodes": 3}, {"samples_per_s": 900.0, "gpus": 24, "fits": False}),
        ({"cluster.nodes": 4}, {"message": HOSTILE}),
    )
    assert headline(sweep) == "Quickest of 3: nodes=2, 180 samples/s"
    slowest, each, lacking, failed = findings(sweep)
    rate = "100 samples/s, 56\N{NO-BREAK SPACE}% of that."
    assert slowest == f"The slowest that fits (nodes=1) trains {rate}"
    assert each == "Most for each GPU: nodes=1, 12.5 samples/s per GPU."
    assert (lacking, failed) == ("1 (nodes=3) does not fit in memory.", "1 could not be answered.")


def test_values_are_written_for_people() -> None:
    assert describe({"strategy": {"kind": "zero", "stage": 1, "overlap": True}}) == (
        "zero, stage=1, overlap"
    )
    assert describe({"a.cap": None, "b.cap": 2, "c.hook": "fp16"}) == (
        "a.cap=default, b.cap=2, hook=fp16"
    )


def test_the_parts_add_up_to_the_step() -> None:
    for step_s, compute_s, exposed_s in ((1.0, 0.5, 0.2), (1.0, 0.9, 0.5), (1.0, 2.0, 3.0)):
        parts = parts_s(step_s, compute_s, exposed_s)
        assert sum(parts.values()) == pytest.approx(step_s)
        assert min(parts.values()) >= 0


def rows() -> list[dict[str, Any]]:
    """Times of 10 us and 100 GB/s, as a library with two protocols gives them."""
    times = {2**n: 1e-5 + 2**n / 1e11 for n in range(10, 31, 2)}
    return [
        {
            "nbytes": nbytes,
            "time_s": time_s,
            "algbw_Bps": nbytes / time_s,
            "busbw_Bps": nbytes / time_s,
            "algorithm": "ring",
            "protocol": "ll" if nbytes < 2**16 else HOSTILE,
            "interval_s": [time_s / 2, time_s * 3],
        }
        for nbytes, time_s in times.items()
    ]


def test_a_collective_says_its_bandwidth_latency_and_where_half_is_reached() -> None:
    best = 2**30 / (1e-5 + 2**30 / 1e11)
    assert collective_headline(rows()) == (
        f"{best / 1e9:.1f}{SPACE}GB/s bus bandwidth at 1{SPACE}GiB, 10.7{SPACE}ms"
    )
    first, half, chosen = collective_sentences(rows())
    assert first == f"1{SPACE}KiB takes 10.0{SPACE}\N{MICRO SIGN}s."
    assert half.endswith(f"1{SPACE}MiB.")  # half at 10 us times 100 GB/s, which is 1 MB
    assert f"ring ll from 1{SPACE}KiB" in chosen


def test_the_band_of_bandwidth_is_that_of_the_times() -> None:
    """Half and three times the time: twice and a third of the bandwidth."""
    band, line, *_ = draw_busbw(rows()).data
    count = len(line.y)
    assert band.y[:count] == pytest.approx([2 * busbw for busbw in line.y])
    assert band.y[: -count - 1 : -1] == pytest.approx([busbw / 3 for busbw in line.y])


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_the_pages_open_cleanly(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    scenario = load_scenario("bucket-size-slow-ethernet")
    failing = swept(({"strategy.bucket_cap": HOSTILE}, {"message": HOSTILE}))
    sweep = SweepResult(CAPS.variants + failing.variants, CAPS.answers + failing.answers)
    files = {
        write_sweep(scenario, sweep, tmp_path): 2,
        write_collective(HOSTILE, rows(), [HOSTILE], tmp_path): 2,
    }
    for path, figures in files.items():
        page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
        page.set_default_timeout(180_000)
        complaints: list[str] = []
        page.on("console", lambda message, into=complaints: into.append(message.text))
        page.on("pageerror", lambda error, into=complaints: into.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector(".js-plotly-plot .main-svg")
        assert complaints == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("img").count() == 0
        assert page.locator(".js-plotly-plot").count() == figures
        page.close()


def test_what_a_figure_leaves_out_is_said() -> None:
    page = sweep_html(CAPS)
    assert "no numbers" not in page
    assert "in colour" not in page  # two lines
    usual = {"strategy.hook": "none", "seed": 1}
    some = [({"strategy.bucket_cap": cap, **usual}, {}) for cap in ("1 MiB", "2 MiB", "3 MiB")]
    page = sweep_html(swept(*some, ({"strategy.bucket_cap": None, **usual}, {})))
    assert "Values of strategy.bucket_cap that are no numbers are in the table alone." in page


def test_parts_that_are_nothing_are_not_in_the_legend() -> None:
    names = [trace.name for trace in draw_steps(pairs_of(CAPS)).data]
    assert names == ["compute", "exposed communication", "the rest"]
    hidden = swept(({"seed": 1}, {"compute_s": 0.2, "exposed_comm_s": 0.0}))
    assert [trace.name for trace in draw_steps(pairs_of(hidden)).data] == ["compute"]


def test_the_table_of_variants_has_the_memory_of_each() -> None:
    table = variant_table(swept(({"seed": 1}, {"memory_bytes": 2.0**31})), 9)
    column = table.titles.index("memory")
    assert table.rows[0][column] == f"2.00{SPACE}GiB"
