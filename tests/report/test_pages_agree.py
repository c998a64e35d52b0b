"""No page contradicts its own numbers: text, tables and figures beside the JSON of the same answer.

Every time and size that a page prints has to be a number of its JSON to the printed digits, or
follow from numbers of it as said here. Tiles, sizes and figures have to be those of their names.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import unescape
from typing import Any

import pytest

from perfmodel.files import list_shipped
from perfmodel.report import advice, comparison, plan, sweep, tuning, tuning_text
from perfmodel.report.common import html
from perfmodel.report.common.document import Figure
from perfmodel.report.run.page import report_html
from perfmodel.report.run.text import run_markdown, to_json
from perfmodel.report.run.timeline import device_window, step_picture
from perfmodel.scenario import load_scenario
from perfmodel.studies.advise.model import to_json as advice_json
from perfmodel.studies.advise.run import advise_scenario
from perfmodel.studies.compare import compare
from perfmodel.studies.comparison import to_json as comparison_json
from perfmodel.studies.plan import plan_scenario
from perfmodel.studies.plan.export import to_json as plan_json
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result
from perfmodel.studies.sweep import run_sweep, variants
from perfmodel.studies.sweep.run import to_json as sweep_json
from perfmodel.studies.tune.run import tune_scenario

pytestmark = pytest.mark.slow

LARGE = {
    "auto-llama3-70b-512",
    "deepseek-v3-2048-h800",
    "gpt3-175b-1024-a100",
    "llama3-405b-16384-h100",
    "lost-nic-3d",
    "mixtral-8x7b-fabrics",
    "parameter-server-straggler",
}
"""Scenarios that take more than three seconds of CPU."""

SMALLER = {
    "pipeline-straggler": ("strategy.accumulate=4", "cluster.nodes=8"),
    "plan-gpt2-xl": (
        "plan.candidates.0.nodes=[2]",
        "plan.candidates.1.nodes=[1, 2]",
        "plan.candidates.2.nodes=[2, 4]",
    ),
}
"""What shortens some others: with all else that their pages show."""

ASKED_OTHERWISE = (
    ("bucket-size-slow-ethernet", "strategy={kind: onebit}"),
    ("bucket-size-slow-ethernet", "strategy={kind: ddp, hook: {kind: powersgd, rank: 4}}"),
    ("llama2-7b-fsdp-h100", "strategy={kind: zero, stage: 3}"),
)

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
UNITS |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_PRINTED = re.compile(r"(?<![\w.,=:/-])(\d[\d,]*(?:\.\d+)?) (s|ms|µs|ns|[KMGT]iB)(?![\w/])")
_GROUNDS = re.compile(r'<section id="what-(?:this-rests|the-numbers-rest)-on">.*', re.DOTALL)

Page = tuple[str, dict[str, Any]]
"""A page's HTML without its figures, and these by name."""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], str]], Page]:
    """Build a page and keep its figures as they are drawn."""

    def build(make: Callable[[], str]) -> Page:
        figures: dict[str, Any] = {}

        def keep(block: Figure) -> str:
            figures[block.name] = block.figure
            return ""

        monkeypatch.setattr(html, "_figure", keep)
        return make(), figures

    return build


# ---------------------------------------------------------------- what is printed


def seen(page: str) -> str:
    """Text of a page, cells apart; without the sources of numbers, which are none of its own."""
    without = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    without = re.sub(r"<h3>Who waits for whom.*?</section>", "", without, flags=re.DOTALL)  # sums
    return plain(re.sub(r"<[^>]+>", "|", _GROUNDS.sub("", without)))


def plain(text: str) -> str:
    return unescape(text).replace("\N{NO-BREAK SPACE}", " ")


def spread(number: str) -> float:
    """Half of the last digit that a printed number has: three digits, or more places."""
    digits = number.replace(",", "")
    places = len(digits.partition(".")[2])
    return 0.51 * 10.0 ** (-places if places else max(0, len(digits) - 3))


def is_printed(text: str, value: float, unit: float = 1.0) -> bool:
    """Whether a text begins with a number that is a value in some unit."""
    match = re.match(r"\W?(\d[\d,]*(?:\.\d+)?)(?: (\w+))?", plain(text))
    if match is None:
        return False
    scale = UNITS.get(match[2] or "", unit)
    return abs(float(match[1].replace(",", "")) * scale - value) <= spread(match[1]) * scale


def leaves(value: Any) -> Iterator[float]:
    """Every number of a document."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield abs(value)


def contradictions(text: str, document: Any, derived: Iterable[float] = ()) -> list[str]:
    """Printed times and sizes that are no number of the document, with what stands around."""
    known, found = sorted([*leaves(document), *derived]), list[str]()
    for match in _PRINTED.finditer(text):
        scale = UNITS[match[2]]
        value, half = float(match[1].replace(",", "")) * scale, spread(match[1]) * scale
        at = bisect.bisect_left(known, value - half)
        if at == len(known) or known[at] > value + half:
            found.append(text[max(0, match.start() - 60) : match.end() + 20])
    return found


def tables(page: str) -> Iterator[list[dict[str, str]]]:
    """Rows of each table of a page, or of Markdown, by the titles of its columns."""
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table.split("<tr")[1:]]
        cells = [[plain(re.sub(r"<[^>]+>", "", cell)) for cell in row] for row in rows]
        yield [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in table.splitlines()]
        cells = [[plain(cell.strip()) for cell in row] for row in rows]
        yield [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


# ---------------------------------------------------------------- run


COLUMNS = {
    "Step": "step_time_s",
    "Exposed": "exposed_comm_s",
    "Memory per GPU": "memory_bytes",
    "Bottleneck": "bottleneck",
    "Efficiency": "scaling_efficiency",
}
"""Columns of the table of sizes, and what they are in the JSON."""


def check_sizes(page: str, document: Mapping[str, Any]) -> None:
    """Compare the table of sizes, in HTML and in Markdown, with the curve of the JSON."""
    curve = {f"{size['gpus']:,}": size for size in document["curve"]}
    listed = [rows for rows in tables(page) if rows and {"Nodes", "Step"} <= rows[0].keys()]
    for row in listed[0] if listed else []:
        size = curve[row["GPUs"] if "GPUs" in row else row["Processes"]]
        for title, name in COLUMNS.items():
            cell, value = row.get(title, ""), size[name]
            if isinstance(value, str):
                assert cell.replace("\\", "") == value
            elif cell and value is not None:
                percent = 0.01 if cell.endswith("%") else 1.0
                assert is_printed(cell, value, percent), (title, cell, value)


def check_tiles(page: str, document: Mapping[str, Any]) -> None:
    tiles = dict(
        re.findall(r'<div class="tile[^"]*"><span>(.*?)</span><strong>(.*?)</strong>', page)
    )
    assert is_printed(tiles["Step time"], document["step_time_s"])
    assert is_printed(tiles["Waiting for communication"], document["exposed_comm_s"])
    assert is_printed(tiles["Throughput"], document["samples_per_s"])
    if len(document["curve"]) > 1:
        assert is_printed(tiles["Scaling efficiency"], document["scaling_efficiency"], 0.01)
    if (memory := tiles.get("Memory per GPU")) and document["memory_bytes"]:
        assert is_printed(memory, document["memory_bytes"])


def check_figures(result: Result, figures: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    """Compare curves, the bars of a step and the memory with the JSON."""
    curve = document["curve"]
    columns = {"scaling": "samples_per_s", "efficiency": "scaling_efficiency"}
    columns["steptime"] = "step_time_s"
    for name in columns.keys() & figures.keys():
        (trace,) = [each for each in figures[name].data if each.name == "predicted"]
        unit = {"efficiency": 0.01, "steptime": axis_unit(figures[name].layout.yaxis)}.get(name, 1)
        wanted = [size[columns[name]] for size in curve]
        assert [y * unit for y in trace.y] == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    breakdown = figures["breakdown"]
    lies = len(curve) == 1
    unit = axis_unit(breakdown.layout.xaxis if lies else breakdown.layout.yaxis)
    for trace in breakdown.data:
        values = trace.x if lies else trace.y
        for value, size in zip(values, curve, strict=True):
            of = size["step_time_s"] if unit == 0.01 else 1.0
            part_s = size["breakdown_s"].get(trace.name, 0.0)
            assert value * unit * of == pytest.approx(part_s, rel=1e-6, abs=1e-12)
    for trace in figures["memory"].data if "memory" in figures else ():
        size = re.search(r"[\d.,]+ \w+$", plain(trace.name or ""))
        if size is not None and trace.type == "bar":
            assert is_printed(size[0], sum(trace.x) * UNITS["GiB"]), trace.name
    stretches = [tail.end_s - tail.start_s for tail in step_picture(result.main).tails]
    labels = [plain(note.text) for note in figures["timeline"].layout.annotations]
    for label in (label for label in labels if label.endswith(" exposed</b>")):
        drawn_s = label.removeprefix("<b>").rpartition(" of ")[2]  # as long as what is shaded
        assert any(is_printed(drawn_s, stretch_s) for stretch_s in stretches), label


def axis_unit(axis: Any) -> float:
    """Unit of an axis: that in the brackets of its title, or per cent of a step."""
    named = re.search(r"\((\w+)\)", axis.title.text)
    return UNITS[named[1]] if named else 0.01


def derived(result: Result) -> Iterator[float]:
    """What follows from numbers of the JSON: hidden communication, waits of buckets, the window.

    Memory of stages, too, of which the JSON has the fullest.
    """
    main = result.main
    yield from main.memory.stages_bytes or ()
    yield main.comm_s - main.exposed_comm_s
    begin_s, end_s = device_window(main)
    yield end_s - begin_s
    if main.disturbance is not None:
        count = len(main.disturbance.steps_s)
        for event in main.disturbance.events:
            yield count * abs(main.step_time_s - event.without_s)
        yield count * abs(main.step_time_s - main.disturbance.undisturbed_s)
    for bucket in main.buckets:
        yield bucket.start_s - bucket.ready_s
        yield bucket.end_s - bucket.start_s


def asked() -> list[tuple[str, str]]:
    """Shipped scenarios at one size, two whole curves, and what people changed."""
    plans = {name for name in list_shipped("scenarios") if name.startswith("plan-")}
    names = sorted(set(list_shipped("scenarios")) - LARGE - plans)
    curves = [(name, "seed=0") for name in ("bucket-size-slow-ethernet", "gpt2-xl-pcie-no-p2p")]
    return [*((name, "scale=null") for name in names), *curves, *ASKED_OTHERWISE]


@pytest.mark.parametrize(("name", "flag"), asked())
def test_pages_of_runs_agree(
    name: str, flag: str, drawn: Callable[[Callable[[], str]], Page]
) -> None:
    alone = ["scale=null"] if (name, flag) in ASKED_OTHERWISE else []
    result = run_scenario(load_scenario(name, [flag, *alone, *SMALLER.get(name, ())]))
    document = to_json(result)
    page, figures = drawn(lambda: report_html(result))
    markdown = run_markdown(result).partition("## What this rests on")[0]
    for text in (seen(page), plain(markdown)):
        assert contradictions(text, document, derived(result)) == []
    for each in (page, markdown):
        check_sizes(each, document)
    check_tiles(page, document)
    check_figures(result, figures, document)
    communication = document["communication"]
    if communication:
        total_s = sum(use["exposed_s"] for use in communication)
        assert total_s == pytest.approx(document["exposed_comm_s"], rel=1e-6, abs=1e-9)
    if name != "seed=0" and flag.startswith("strategy="):
        assert f"Changed: {flag.partition('=')[0]}=" in plain(page)


# ---------------------------------------------------------------- other pages


def test_pages_of_comparisons_agree(drawn: Callable[[Callable[[], str]], Page]) -> None:
    flags = ("scale=null", "strategy.hook=fp16", "training.batch_per_gpu=128")
    sides = {f: load_scenario("bucket-size-slow-ethernet", ["scale=null", f]) for f in flags}
    found = compare(sides, jobs=1)
    page, figures = drawn(lambda: comparison.comparison_html(found))
    document = comparison_json(found)
    samples_s = [1 / side.point.samples_per_s for side in found.sides]
    differences_s = [abs(s) for each in found.differences for s in each.parts_s.values()]
    assert contradictions(seen(page), document, [*samples_s, *differences_s]) == []
    unit = axis_unit(figures["steps"].layout.xaxis)
    for trace in figures["steps"].data:
        for value, side in zip(trace.x, found.sides, strict=True):
            part_s = side.point.breakdown_s.get(trace.name, 0.0)
            assert value * unit == pytest.approx(part_s, rel=1e-6, abs=1e-12)


def test_pages_of_tuned_buckets_agree(drawn: Callable[[Callable[[], str]], Page]) -> None:
    tuned = tune_scenario(load_scenario("gpt2-xl-pcie-no-p2p"))
    page, figures = drawn(lambda: tuning.tuned_html(tuned))
    text = re.sub(r"(?:then|Best cap:|allows:|safest one,) [\d.]+ MiB", "", seen(page))  # caps
    saved_s = tuned.default.step_time_s - tuned.best_list.step_time_s
    assert contradictions(text, tuning_text.tuned_json(tuned), [saved_s, 2.0**20]) == []
    assert all(
        point.step_time_s >= (tuned.lower_bound_s or 0.0) * (1 - 1e-9) for point in tuned.curve
    )
    assert {"curve", "exposed", "buckets"} <= figures.keys()


def test_pages_of_advice_agree(drawn: Callable[[Callable[[], str]], Page]) -> None:
    found = advise_scenario(load_scenario("bucket-size-slow-ethernet", ["scale=null"]), jobs=1)
    page, _ = drawn(lambda: advice.advice_html(found))
    assert contradictions(seen(page), advice_json(found)) == []


def test_pages_of_sweeps_agree(drawn: Callable[[Callable[[], str]], Page]) -> None:
    grid = "sweep.grid={strategy.bucket_cap: [5 MiB, 25 MiB], cluster.nodes: [2, 8]}"
    asked = load_scenario("sweep-buckets-and-nodes", [grid])
    swept = run_sweep(variants(asked), jobs=1)
    page, _ = drawn(lambda: sweep.sweep_html(swept))
    caps = [2.0**20 * cap for cap in (5, 25)]
    text = re.sub(r"bucket_cap=\d+ MiB", "", seen(page))
    assert contradictions(text, sweep_json(asked.name, asked.question, swept), caps) == []


def test_pages_of_plans_agree(drawn: Callable[[Callable[[], str]], Page]) -> None:
    found = plan_scenario(load_scenario("plan-gpt2-xl", SMALLER["plan-gpt2-xl"]), jobs=1)
    page, _ = drawn(lambda: plan.plan_html(found))
    document = plan_json(found)
    text = re.sub(r"<p[^>]*>[^<]*NCCL_ALGO.*?</p>", "", page)  # of what NCCL might do instead
    assert contradictions(seen(text), document) == []
    options = {(o["candidate"], o["nodes"]): o for o in document["options"]}
    listed = next(rows for rows in tables(page) if rows and "cost, USD (80 %)" in rows[0])
    assert len(listed) == len(options)
    for row in listed:
        option = options[row["candidate"], int(row["nodes"])]
        assert is_printed(row["cost, USD (80 %)"], option["cost"]["total"]), row
        assert is_printed(row["step"], option["step"]["step_time_s"]), row


def test_a_contradiction_is_found() -> None:
    """What an issue named: 23.1 beside 23.2 ms, 440 for 545 ms, a step below its bound."""
    text = "Communication takes 23.2 ms; 23.1 ms exposed; 1,234 MiB; caps=25 MiB; 440 ms"
    found = contradictions(text, {"comm_s": 0.0232, "size": [1233.6 * 2.0**20], "wait_s": 0.545})
    assert len(found) == 2
    assert "23.1 ms" in found[0]
    assert "440 ms" in found[1]
    assert is_printed("84.9 ms", 0.0849)
    assert not is_printed("84.9 ms", 0.0957)
