"""Timelines and routes that pages draw are those of the run and of the library."""

from __future__ import annotations

import itertools

import pytest
import yaml

import perfmodel as pm
from docs.extensions import drawn, routes
from docs.extensions.step_timelines import bars_of, figure_of
from tests.docs.pages import DOCS, pages


@pytest.fixture(scope="module")
def main() -> pm.Result:
    return pm.run("bucket-size-slow-ethernet", scale=None, cluster__nodes=2).main


def test_bars_of_communication_are_the_buckets(main) -> None:
    bars = [bar for bar in bars_of(main) if bar.kind == "communication" and bar.label]
    assert [bar.label for bar in bars] == [str(bucket.index) for bucket in main.buckets]
    for bar, bucket in zip(bars, main.buckets, strict=True):
        assert bar.end_s - bar.start_s == pytest.approx(bucket.end_s - bucket.start_s)


def test_bars_of_a_stream_do_not_overlap(main) -> None:
    compute = [bar for bar in bars_of(main) if bar.row == "compute"]
    assert {"forward", "backward", "optimizer"} <= {bar.kind for bar in compute}
    for one, other in itertools.pairwise(compute):
        assert one.end_s <= other.start_s + 1e-9
    assert compute[-1].end_s <= main.step_time_s * (1 + 1e-9)


def test_copies_after_backward_are_not_drawn_as_backward() -> None:
    """What nothing hides must not lie below a bar of kernels: DataParallel reduces after it."""
    main = pm.run("dataparallel-against-ddp").main
    bars = [bar for bar in bars_of(main) if bar.row.startswith("gpu 0: ")]
    (backward,) = (bar for bar in bars if bar.kind == "backward")
    _, reduced = (bar for bar in bars if bar.kind == "communication")
    assert backward.end_s <= reduced.start_s + 1e-9
    busy_s = sum(bar.busy_s for bar in bars if bar.kind == "communication")
    assert busy_s == pytest.approx(main.exposed_comm_s, rel=5e-3)  # tiny ones are not drawn


def test_the_axis_has_round_numbers(main) -> None:
    figure = figure_of([("a step", bars_of(main))])
    assert ">0 ms<" in figure
    assert figure.count('class="tick" x=') >= 4


@pytest.mark.parametrize(
    ("machine", "to", "devices", "staged"),
    [
        ("dgx-a100", "nic0", ("gpu0", "pcie0", "nic0"), False),
        ("rtx4090-x4", "gpu1", ("gpu0", "cpu0", "mem0", "cpu0", "gpu1"), True),
    ],
)
def test_routes_pass_host_memory_where_they_must(machine, to, devices, staged) -> None:
    """NCCL's rules (src/graph/paths.cc): a switch lets a NIC reach a GPU; GeForce is staged."""
    found = routes.route_of("a way", {"machine": machine, "from": "gpu0", "to": to})
    assert (found.devices, found.staged) == (devices, staged)
    assert ("host memory" in routes.markdown_of([found])) == staged


def test_every_directive_of_a_page_is_known() -> None:
    text = "\n".join((DOCS / page).read_text("utf-8") for page in pages())
    for name in drawn.DRAWN:
        assert name == "eval-rst" or f"{{{name}}}" in text, f"no page has {name}"


def test_tables_of_accuracy_are_those_of_the_ledger() -> None:
    assert "steps on one GPU" in drawn.DRAWN["accuracy"]("newest", "").markdown
    worst = drawn.DRAWN["accuracy"]("worst", "").markdown.splitlines()[2:]
    medians = [float(row.split("|")[4].split("%")[0].strip()) for row in worst]
    assert medians == sorted(medians, reverse=True)
    assert "](" not in drawn.DRAWN["accuracy"]("published-trainings", "").markdown.replace(
        "](http", ""
    )


def test_a_timeline_has_a_picture_for_each_scenario() -> None:
    fields = {"scenario": "bucket-size-slow-ethernet", "scale": None, "cluster.nodes": 2}
    body = yaml.safe_dump({"one": fields, "other": {**fields, "strategy.bucket_cap": "1 MiB"}})
    shown = drawn.DRAWN["step-timeline"]("", body)
    assert shown.html.count('class="title"') == 2
    assert shown.markdown.startswith("one:\n\n| stream |")
