"""The page: self-contained, safe with hostile names, complete, and the same on every run."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.report.common import figures
from perfmodel.report.run.page import report_html, write_report
from perfmodel.report.run.scaling import draw_efficiency, draw_step_time, draw_throughput
from perfmodel.report.run.timeline import draw_timeline
from perfmodel.report.topology_figure import draw_topology
from perfmodel.scenario import change_scenario, load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import BucketTime, DisturbanceCost, LinkUse, Result
from perfmodel.timeline import Timeline
from perfmodel.workload.model import Sample

HOSTILE = '<script>alert("1")</script>'


class Loads(HTMLParser):
    """Collects what a browser would fetch, and the tags that stand outside scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            loads = name in {"src", "srcset", "poster", "data"} or (name == "href" and tag != "a")
            if loads and value and not value.startswith("data:"):
                self.fetched.append(value)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(page: str) -> Loads:
    reader = Loads()
    reader.feed(page)
    return reader


@pytest.fixture(scope="module")
def page(result: Result) -> str:
    return report_html(result)


@pytest.fixture(scope="module")
def hostile(result: Result) -> Result:
    """Return a result in which every text of a user is an attack."""
    main = result.main
    span = main.timeline.spans[0]._replace(name=HOSTILE, rank_class=HOSTILE)
    bad = replace(
        main,
        bottleneck=HOSTILE,
        mode=HOSTILE,
        memory=replace(main.memory, advice=(HOSTILE,)),
        breakdown_s={**main.breakdown_s, HOSTILE: 0.01},
        buckets=(BucketTime(0, 1, 0.0, 0.0, 1.0, (HOSTILE, HOSTILE)),),
        links=(LinkUse(HOSTILE, HOSTILE, HOSTILE, 1.0, 0.99),),
        timeline=Timeline((span, *main.timeline.spans[1:])),
    )
    return replace(
        result,
        points=(*result.points[:-1], bad),
        scenario=HOSTILE,
        question=HOSTILE,
        workload=HOSTILE,
        strategy=HOSTILE,
        machine=HOSTILE,
        samples=Sample(HOSTILE, HOSTILE),
        assumptions=(HOSTILE, f"https://example.com/{HOSTILE}"),
        sources={HOSTILE: HOSTILE},
        provenance={HOSTILE: HOSTILE},
        topology=replace(result.topology, name=HOSTILE),
    )


@pytest.mark.slow
def test_page_fetches_nothing(page: str) -> None:
    reader = parsed(page)
    assert reader.fetched == []
    assert not {"iframe", "img", "link", "object", "embed"} & set(reader.tags)
    assert "default-src 'none'" in page
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_plotly_is_embedded_once(page: str) -> None:
    assert page.count("* plotly.js (basic") == 1
    assert len(page) < 2e6


def test_page_shows_every_section_and_figure(page: str) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "Scaling",
        "Where the time goes",
        "One step",
        "Gradient buckets",
        "Machine and links",
        "Memory",
        "What this rests on",
    ]
    names = re.findall(r'<div id="(figure-\w+)"', page)
    assert names == [
        "figure-scaling",
        "figure-efficiency",
        "figure-steptime",
        "figure-breakdown",
        "figure-timeline",
        "figure-topology",
        "figure-memory",
    ]


def test_page_says_what_it_rests_on(page: str, result: Result) -> None:
    text = " ".join(parsed(page).text)
    assert "Data loading keeps up with training." in text
    assert (
        "no interval yet: the spread of collectives on this machine has not been measured" in text
    )
    assert "sha256:0123abcd" in text
    assert '<a rel="noopener noreferrer" href="https://example.com/gpu.pdf">' in page
    assert "weak scaling" in page
    assert str(result.main.memory.capacity_bytes) not in text


@pytest.mark.slow
def test_page_says_how_much_of_the_peak_is_used(with_main: Callable[..., Result]) -> None:
    for mfu, words in ((0.25, "MFU 25 %: matrix products of the model"), (None, "")):
        text = " ".join(parsed(report_html(with_main(mfu=mfu))).text).replace(
            "\N{NO-BREAK SPACE}", " "
        )
        assert words in text
        assert ("MFU" in text) == bool(words)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 20])
def test_of_several_counted_steps_page_says_that_one_is_drawn(
    with_main: Callable[..., Result], count: int
) -> None:
    steps = DisturbanceCost((0.1,) * count, 0.1, None, (), ())
    text = " ".join(parsed(report_html(with_main(disturbance=steps))).text)
    assert (f"(means of {count} steps; the longest of them is drawn)" in text) == (count > 1)


@pytest.mark.slow
def test_same_result_gives_the_same_bytes(page: str, result: Result) -> None:
    assert report_html(result) == page


def test_hostile_names_are_only_text(hostile: Result, page: str) -> None:
    attacked = report_html(hostile)
    assert "<script>alert" not in attacked
    assert parsed(attacked).tags.count("script") == parsed(page).tags.count("script")
    assert any("<script>alert" in text for text in parsed(attacked).text)


def test_hostile_names_are_only_text_inside_figures(hostile: Result) -> None:
    drawn = [
        figures.draw_breakdown(hostile),
        draw_timeline(hostile.main),
        draw_topology(hostile.topology, hostile.main),
        draw_throughput(hostile),
        draw_efficiency(hostile),
        draw_step_time(hostile),
    ]
    for figure in drawn:
        shown = figure.to_plotly_json()
        for trace in shown["data"]:
            trace.pop("name")  # becomes the legend, which the page writes and escapes
        assert "<script>" not in json.dumps(shown, default=str)


@pytest.mark.slow
def test_odd_results_are_drawn_too(result: Result, with_main: Callable[..., Result]) -> None:
    alone = replace(result, points=result.points[:1])
    assert "Only one size was asked for" in report_html(alone)
    bare = with_main(buckets=(), links=(), timeline=Timeline(()), comm_s=0.0, exposed_comm_s=0.0)
    assert "Gradient buckets" not in report_html(bare)
    strong = replace(result, scaling="strong", efficiency_base=8, points=result.points[1:])
    assert "relative to 8" in report_html(strong)


@pytest.mark.slow
def test_folder_holds_page_data_and_timeline(result: Result, tmp_path: Path) -> None:
    page = write_report(result, tmp_path / "new" / "folder")
    assert page == tmp_path / "new" / "folder" / "report.html"
    names = sorted(path.name for path in page.parent.iterdir())
    assert names == [
        "buckets.csv",
        "report.html",
        "report.md",
        "result.json",
        "result.xlsx",
        "sizes.csv",
        "summary.csv",
        "timeline.json",
    ]
    header, *rows = (page.parent / "summary.csv").read_text().splitlines()
    assert len(rows) == 6
    assert not header.startswith(","), "no column of row numbers"
    assert json.loads((page.parent / "result.json").read_text())["gpus"] == 256
    assert json.loads((page.parent / "timeline.json").read_text())["traceEvents"]


@pytest.mark.slow
def test_ranks_that_differ_have_a_trace_each(tmp_path: Path) -> None:
    """Stages of a pipeline, by the numbers of their first ranks."""
    scenario = load_scenario("pipeline-straggler")
    result = run_scenario(change_scenario(scenario, {"strategy.accumulate": 2, "cluster.nodes": 8}))
    write_report(result, tmp_path)
    stages = len(result.timeline.first_rank)
    assert stages > 1
    use, step_s = result.main.parallel_layout, result.main.step_time_s
    assert use is not None
    longer = any(e.busy_s + e.exposed_s + e.waits_s > 1.005 * step_s for e in use.stages)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ("Stages begin a step while others" in page) == longer
    slower = replace(result.main, step_time_s=0.5 * step_s)
    assert "Stages begin a step while others" in report_html(replace(result, points=(slower,)))
    names = {path.name for path in (tmp_path / "ranks").iterdir()}
    assert names == {f"rank{rank}.json.gz" for rank in result.timeline.first_rank.values()}
    assert "rank0.json.gz" in names
    for path in (tmp_path / "ranks").iterdir():
        document = json.loads(gzip.decompress(path.read_bytes()))
        assert f"rank{document['distributedInfo']['rank']}.json.gz" == path.name
        sent = [e for e in document["traceEvents"] if e["name"] == "ncclDevKernel_SendRecv"]
        assert {event["args"]["Group size"] for event in sent} == {2}


def test_a_number_that_is_not_finite_stops_the_page(with_main: Callable[..., Result]) -> None:
    with pytest.raises(InputError, match="step_time_s"):
        report_html(with_main(step_time_s=float("nan")))


@pytest.mark.slow
def test_who_is_meant_stands_beside_a_bottleneck_that_is_an_event(
    with_main: Callable[..., Result],
) -> None:
    page = report_html(with_main(bottleneck="n5/gpu0 2 times slower", limit="event"))
    assert "n5 is host 5, gpu0 its GPU 0: all are counted from 0." in page
