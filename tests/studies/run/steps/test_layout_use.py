"""What a parallel layout costs: bubbles by theory, bytes by published formulas, links placed."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from perfmodel.report.common.figures import new_figure
from perfmodel.report.run.parallelism import degrees, lines
from perfmodel.report.run.pipeline_figure import block_traces, pipeline_picture
from perfmodel.scenario import load_scenario
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.steps.one_size import simulate_size
from perfmodel.studies.run.steps.sized_job import size_job

STAGES, TENSOR, DATA, MICRO_BATCHES = 4, 2, 2, 6


@pytest.fixture(scope="module")
def point() -> SizeResult:
    scenario = load_scenario(
        "lost-nic-3d",
        [
            "events=[]",
            "cluster.nodes=2",
            "model.name=gpt3-125m",
            "model.sequence_length=512",
            f"strategy.accumulate={MICRO_BATCHES}",
            f"parallel.tensor={TENSOR}",
        ],
    )
    inputs = resolve_scenario(scenario, None, None)
    return simulate_size(size_job(inputs, inputs.sizes[-1]), with_first=False)


@pytest.mark.slow
def test_degrees_leave_data_parallelism(point: SizeResult) -> None:
    assert point.parallel_layout is not None
    assert (point.parallel_layout.data, point.parallel_layout.pipeline) == (DATA, STAGES)
    written = degrees(point.parallel_layout).replace("\N{NO-BREAK SPACE}", " ")
    assert written == "tensor 2 \N{MULTIPLICATION SIGN} pipeline 4 \N{MULTIPLICATION SIGN} data 2"
    assert len(lines(point)) == 2


def test_the_bubble_in_theory_is_the_published_one(point: SizeResult) -> None:
    """Narayanan et al. 2021, section 2.2.1; simulated, messages and uneven stages add to it."""
    assert point.parallel_layout is not None
    assert point.parallel_layout.bubble is not None
    theory = (STAGES - 1) / (MICRO_BATCHES + STAGES - 1)
    assert point.parallel_layout.bubble_in_theory == pytest.approx(theory, rel=1e-9)
    assert theory < point.parallel_layout.bubble < 1


def test_stages_send_their_activations_both_ways(point: SizeResult) -> None:
    """A stage between others sends b s h of bf16 twice per micro-batch, 1 / t of it each GPU.

    With sequence parallelism a GPU has its share of the tokens (Korthikanti et al. 2022).
    """
    assert point.parallel_layout is not None
    uses = {each.dimension: each for each in point.parallel_layout.dimensions}
    assert uses["pipeline"].sent_bytes >= 2 * MICRO_BATCHES * 512 * 768 * 2 / TENSOR
    assert uses["tensor"].between_hosts == 0
    assert uses["tensor"].links == ("nvlink",)
    assert 0 < uses["pipeline"].between_hosts < 1
    assert "infiniband" in uses["pipeline"].links


def test_a_stage_computes_communicates_or_waits(point: SizeResult) -> None:
    assert point.parallel_layout is not None
    assert len(point.parallel_layout.stages) == STAGES
    for stage in point.parallel_layout.stages:
        assert stage.busy_s + stage.exposed_s + stage.waits_s <= point.step_time_s * (1 + 1e-9)
    parts = point.breakdown_s
    assert parts["bubble"] > 0
    assert sum(parts.values()) == pytest.approx(point.step_time_s)


def test_what_is_exposed_is_told_apart_by_dimension(point: SizeResult) -> None:
    """Dimensions add up to what stages, of equally many GPUs each, wait for on average."""
    assert point.parallel_layout is not None
    uses, stages = point.parallel_layout.dimensions, point.parallel_layout.stages
    assert all(each.exposed_s > 0 for each in uses)
    mean_s = fmean(stage.exposed_s for stage in stages)
    assert sum(each.exposed_s for each in uses) == pytest.approx(mean_s, rel=1e-9)


def test_every_pass_is_drawn_once(point: SizeResult) -> None:
    picture = pipeline_picture(point)
    assert picture.stages == tuple(range(STAGES))
    passes = {(b.row, b.kind, b.micro_batch) for b in picture.blocks if b.micro_batch is not None}
    assert len(passes) == 2 * STAGES * MICRO_BATCHES
    for row in range(STAGES):
        busy = sorted(
            (b.start_s, b.end_s)
            for b in picture.blocks
            if b.row == row and b.kind in ("forward", "backward", "exposed collective of layers")
        )
        assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(busy))


def test_numbers_of_passes_stay_within_their_window(point: SizeResult) -> None:
    picture = pipeline_picture(point)
    drawn = next(b for b in picture.blocks if b.micro_batch == 1)
    length_s = drawn.end_s - drawn.start_s
    for share, number in ((0.4, ""), (0.6, "1")):
        window = (drawn.end_s - share * length_s, drawn.end_s + 1.0)
        (bar,) = new_figure(100, block_traces([drawn], window, "", ("s", 1.0))).data
        assert bar.base[0] == pytest.approx(window[0])
        assert list(bar.text) == [number]
