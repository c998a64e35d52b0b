"""Scenarios with parameter servers: modes, placements, stragglers, bounds, what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from perfmodel.errors import InputError
from perfmodel.library.corrections import spread_factors
from perfmodel.report.common.plain_text import render_terminal
from perfmodel.report.run.page import report_html
from perfmodel.report.run.text import result_lines, run_markdown, to_json
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result, SizeResult, Uncertainty
from perfmodel.studies.run.steps.uncertainty import scaled_ends
from perfmodel.studies.run.usage import ServerUse

TEXT = """# How many updates do four workers make?
perfmodel: 1
model: {file: small.yaml}
compute: {precision: fp32, gpu_spread: 0.0}
strategy: {kind: parameter_server}
cluster: {node: ethernet-10g, nodes: 4, gpus_per_node: 1, fabric: one-switch}
training: {batch_per_gpu: 8}
"""


def answered(tmp_path: Path, *overrides: str) -> Result:
    path = tmp_path / "question.yaml"
    path.write_text(TEXT)
    model = {
        "parameters": [{"name": f"w{size}", "shape": [size // 100, 100]} for size in SIZES],
        "layers": [
            {
                "name": f"l{size}",
                "parameters": [f"w{size}"],
                "kernels": 3,
                "matmul_flops": 500.0 * size,
                "vector": "2 MB",
            }
            for size in SIZES
        ],
    }
    (tmp_path / "small.yaml").write_text(json.dumps(model))
    return run_scenario(load_scenario(str(path), overrides))


def shown(result: Result) -> str:
    console = Console(width=400, file=io.StringIO())
    render_terminal(result_lines(result), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def use_of(result: Result) -> ServerUse:
    assert result.main.server_use is not None
    return result.main.server_use


SIZES = (300_000, 2_000_000, 500_000, 1_000_000, 1_500_000)
"""Elements of the parameters of a small model, one tensor a layer."""
BYTES = 4 * sum(SIZES)


@pytest.mark.usefixtures("steps_alone")
def test_parts_add_up_and_figures_agree(tmp_path: Path) -> None:
    result = answered(tmp_path, "strategy.mode=asynchronous")
    point, use = result.main, use_of(result)
    assert sum(point.breakdown_s.values()) == pytest.approx(point.step_time_s)
    assert min(point.breakdown_s.values()) >= 0
    assert point.exposed_comm_s <= point.comm_s <= point.step_time_s
    assert point.samples_per_s == pytest.approx(8 * use.updates_per_s)
    assert use.updates_per_s <= use.most_updates_per_s * (1 + 1e-9)
    assert sum(share for *_, share in use.staleness.histogram) == pytest.approx(1.0)
    assert use.staleness.mean == pytest.approx(3.0, abs=0.1)
    sent = {each.op: each.nbytes for each in point.communication}
    assert sent == {"push": pytest.approx(BYTES), "pull": pytest.approx(BYTES)}


@pytest.mark.slow
def test_a_synchronous_step_is_bound_by_the_link_of_its_servers(tmp_path: Path) -> None:
    """Four workers, one server at 10 Gbit/s: 4 S / B into it and as much out of it."""
    result = answered(tmp_path, "strategy.overlap=false", "what_if.compute=1000")
    (link,) = [each for each in result.main.links if each.dst.startswith("n4/nic")]
    rate_Bps = link.nbytes / (link.utilisation * result.main.step_time_s)
    least_s = 4 * BYTES / rate_Bps
    assert least_s < result.main.step_time_s < 2 * least_s + 0.05
    assert link.nbytes == pytest.approx(4 * BYTES, rel=0.05)
    assert result.main.bottleneck == "host 4's NIC"
    assert result.main.server_use is not None
    assert result.main.server_use.bound_by == "host 4's NIC"
    assert "n4/nic" in result.main.bottleneck_path
    halved = answered(
        tmp_path, "strategy.overlap=false", "what_if.compute=1000", "strategy.gradient_dtype=bf16"
    )
    assert halved.main.step_time_s < 0.85 * result.main.step_time_s
    twice = answered(tmp_path, "strategy.servers=2", "what_if.compute=1000")
    assert twice.main.step_time_s < 0.7 * result.main.step_time_s


def test_an_interval_is_that_of_what_bounds_the_step(tmp_path: Path) -> None:
    """Of the network alone where computing takes no time, of computing where messages do not."""
    result = answered(tmp_path, "strategy.overlap=false", "what_if.compute=1000")
    spread = spread_factors(result.topology, "all_reduce", 8_000_000)
    point = result.main
    assert point.interval_s is not None
    shares = [end_s / point.step_time_s for end_s in point.interval_s]
    assert shares == pytest.approx(spread, rel=0.1)
    rates = use_of_point(point).updates_interval_per_s
    assert rates == pytest.approx(
        tuple(use_of_point(point).updates_per_s / share for share in reversed(shares))
    )
    free = answered(tmp_path, "what_if.communication=false", "strategy.mode=asynchronous").main
    assert free.uncertainties is not None
    origins = [each.origin for each in free.uncertainties]
    assert not any(origin.startswith("network") for origin in origins)
    assert any(origin.startswith("compute") for origin in origins)
    assert free.interval_s is not None
    low_s, high_s = free.interval_s
    assert 0.5 * free.step_time_s < low_s < free.step_time_s < high_s < 2 * free.step_time_s


def test_ends_are_as_far_from_a_step_that_varies_as_from_one_that_does_not() -> None:
    """Ends are simulated without what varies; what is reported is the step with it."""
    assert scaled_ends("network", 3.0, (0.5, 2.0)) == Uncertainty("network", 1.5, 6.0)


def use_of_point(point: SizeResult) -> ServerUse:
    assert point.server_use is not None
    return point.server_use


@pytest.mark.slow
def test_a_straggler_holds_up_synchronous_workers_and_not_the_others(tmp_path: Path) -> None:
    slow = ("events=[{slow: {ranks: [2], by: 3}}]", "strategy.servers=4", "what_if.compute=0.1")
    together = answered(tmp_path, *slow)
    apart = answered(tmp_path, *slow, "strategy.mode=asynchronous")
    bounded = answered(tmp_path, *slow, "strategy.mode=bounded", "strategy.staleness=2")
    assert apart.main.step_time_s < 0.6 * together.main.step_time_s
    assert bounded.main.step_time_s == pytest.approx(together.main.step_time_s, rel=0.05)
    assert use_of(bounded).staleness.most_ahead == 2
    assert use_of(apart).slowest_s > 2 * use_of(apart).fastest_s
    assert use_of(together).staleness.mean == 0
    assert together.main.bottleneck == "n2/gpu0 3 times slower"
    (event,) = apart.main.disturbance.events  # type: ignore[union-attr]
    assert 0 < event.costs_s < 0.5 * event.without_s


@pytest.mark.usefixtures("steps_alone")
def test_no_staleness_allowed_is_nearly_synchronous(tmp_path: Path) -> None:
    """What differs is the servers' work: an update for each gradient instead of one for all."""
    quick = ("strategy.threads=1000", "strategy.memory_bandwidth=1000 TB/s")
    together = answered(tmp_path, *quick)
    bounded = answered(tmp_path, *quick, "strategy.mode=bounded", "strategy.staleness=0")
    assert bounded.main.step_time_s == pytest.approx(together.main.step_time_s, rel=0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_servers_beside_workers_and_on_gpus(tmp_path: Path) -> None:
    beside = answered(tmp_path, "strategy.placement=colocated")
    assert [name.split(": ")[1] for name in use_of(beside).servers] == [
        f"n{host}/cpu0" for host in range(4)
    ]
    assert beside.topology.hosts == 4
    apart = answered(tmp_path, "strategy.servers=2")
    assert [name.split(": ")[1] for name in use_of(apart).servers] == ["n4/cpu0", "n5/cpu0"]
    assert apart.topology.hosts == 6
    gpu = answered(tmp_path, "strategy.servers=2", "strategy.device=gpu")
    assert [name.split(": ")[1] for name in use_of(gpu).servers] == ["n4/gpu0", "n5/gpu0"]
    assert max(use_of(gpu).server_busy) < max(use_of(apart).server_busy)
    own = answered(
        tmp_path, "strategy.servers=4", "strategy.device=gpu", "strategy.placement=colocated"
    )
    # three tensors of 4 MB and more are cut over all four, 0.5 million elements are on one
    assert own.main.memory.optimizer_bytes == 4 * (4_500_000 / 4 + 500_000)
    assert gpu.main.memory.optimizer_bytes == 0


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_nodes_that_add_up_first_push_once(tmp_path: Path) -> None:
    several = ("cluster.node=v100-x8-25g", "cluster.gpus_per_node=4", "cluster.nodes=2")
    each = answered(tmp_path, *several)
    once = answered(tmp_path, *several, "strategy.local_reduce=true")
    assert (use_of(each).workers, use_of(once).workers) == (8, 2)
    into = {
        name: max(link.nbytes for link in result.main.links if link.dst.startswith("n2/nic"))
        for name, result in (("each", each), ("once", once))
    }
    assert into["each"] == pytest.approx(4 * into["once"], rel=0.05)
    assert once.main.step_time_s < each.main.step_time_s
    assert once.main.global_batch == each.main.global_batch


@pytest.mark.usefixtures("steps_alone")
def test_accumulating_pushes_once_for_several_micro_batches(tmp_path: Path) -> None:
    once, twice = answered(tmp_path), answered(tmp_path, "strategy.accumulate=2")
    assert twice.main.global_batch == 2 * once.main.global_batch
    assert twice.main.communication[0].nbytes == once.main.communication[0].nbytes
    assert twice.main.compute_s > 1.9 * once.main.compute_s


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_jitter_makes_asynchronous_workers_lose_less(tmp_path: Path) -> None:
    jitter = ("events=[{jitter: {cv: 0.1}}]", "strategy.servers=4", "training.batch_per_gpu=64")
    together = answered(tmp_path, *jitter)
    apart = answered(tmp_path, *jitter, "strategy.mode=asynchronous")
    costs = [result.main.disturbance for result in (together, apart)]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[0].costs_s > 3 * abs(costs[1].costs_s)
    low, high = costs[0].mean_interval_s or (0.0, 0.0)
    assert low < together.main.step_time_s < high
    again = answered(tmp_path, *jitter)
    assert again.main.step_time_s == together.main.step_time_s


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_links_that_fail_and_unlike_gpus_count(tmp_path: Path) -> None:
    usual = answered(tmp_path)
    slow = answered(tmp_path, "events=[{degrade: {link: 'n4/nic0', by: 4}}]")
    assert slow.main.step_time_s > 2 * usual.main.step_time_s
    late = answered(tmp_path, "events=[{degrade: {link: 'n4/nic0', by: 4, at: '50 ms'}}]")
    assert usual.main.step_time_s < late.main.step_time_s <= slow.main.step_time_s * 1.05
    mixed = answered(
        tmp_path,
        "cluster.mixed=[{nodes: [1], gpu: p100-pcie-16gb}]",
        "strategy.servers=4",
        "strategy.mode=asynchronous",
        "what_if.compute=0.1",
    )
    assert use_of(mixed).slowest_s > 1.2 * use_of(mixed).fastest_s


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_one_worker_of_a_curve_has_its_server_too(tmp_path: Path) -> None:
    result = answered(tmp_path, "scale={gpus: [1, 2]}", "strategy.placement=colocated")
    assert [point.gpus for point in result.points] == [1, 2, 4]
    assert [len(p.server_use.servers) for p in result.points if p.server_use] == [1, 2, 4]
    assert result.points[0].server_use is not None
    assert result.points[0].server_use.staleness.mean == 0


@pytest.mark.parametrize(
    ("overrides", "field", "allowed"),
    [
        (["strategy.mode=bounded"], "strategy", "'staleness' together with 'mode: bounded'"),
        (["strategy.staleness=3"], "strategy", "'staleness' together with 'mode: bounded'"),
        (["strategy.slice=1 MB", "strategy.split_above=1 MB"], "strategy", "not both"),
        (["fidelity=message"], "fidelity", "'flow'"),
        (["library.name=gloo"], "library", "unless local_reduce"),
        (["compute.optimizer_kernels=fused"], "compute.optimizer_kernels", "in one pass"),
        (["compute.overlap_slowdown=1.2"], "compute.overlap_slowdown", "nothing with"),
        (["strategy.placement=colocated", "strategy.servers=5"], "strategy.servers", "at most 4"),
        (["strategy.placement=colocated", "strategy.device=gpu"], "strategy", "how many"),
        (["cluster.pool=4"], "cluster.pool", "at least 5"),
        (["strategy.servers=5000"], "strategy.servers", "fewer servers or workers"),
        (
            ["jobs=[{model: {name: resnet18}, batch_per_gpu: 8, nodes: 1}]"],
            "jobs",
            "collectives beside its messages",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, overrides: list[str], field: str, allowed: str
) -> None:
    with pytest.raises(InputError) as error:
        answered(tmp_path, *overrides)
    assert any(field in fault.field and allowed in fault.allowed for fault in error.value.faults)


@pytest.mark.slow
def test_reports_tell_updates_and_staleness(tmp_path: Path) -> None:
    result = answered(tmp_path, "strategy.mode=asynchronous", "strategy.servers=2")
    text = shown(result)
    assert "updates/s of the parameters" in text
    assert "updates late on average" in text
    assert "parameters (80 % interval " in text.replace(chr(160), " ")
    assert "80 % interval" in text.replace(chr(160), " ").partition("Step time: ")[2]
    page, markdown = report_html(result), run_markdown(result)
    assert "How late gradients are" in page
    assert "Parameter servers" in markdown
    assert "statistical efficiency" in page
    document = json.loads(json.dumps(to_json(result)))
    use = document["server_use"]
    assert use["updates_per_s"] == use_of(result).updates_per_s
    low, high = use["updates_interval_per_s"]
    assert low < use["updates_per_s"] < high
    assert len(use["staleness"]["histogram"]) >= 3
    other = answered(tmp_path, "strategy={kind: ddp}")
    assert to_json(other)["server_use"] is None
    assert "updates/s" not in shown(other)


def test_unlike_gpus_are_spoken_of_where_there_are_some(tmp_path: Path) -> None:
    for spread in (0.0, 0.02):
        lines = answered(tmp_path, f"compute.gpu_spread={spread}").assumptions
        assert any("differ in speed" in line for line in lines) == (spread > 0)


def test_servers_that_a_lost_nic_cuts_off_are_refused() -> None:
    events = "events=[{lose: {nic: n0/nic0}}, {jitter: {cv: 0.5, kind: exponential}}]"
    flags = ["strategy.kind=parameter_server", "scale=null", "model.name=resnet18", events]
    with pytest.raises(InputError, match=r"events\.0: found n0/nic0 lost"):
        run_scenario(load_scenario("bucket-size-slow-ethernet", flags))
