"""Which run a run is counted against, and what is made of both; by hand."""

from __future__ import annotations

import pytest

from perfmodel.workload.compute_spread import gpu_speeds
from reports.validation.trainings.model import TrainingRun
from reports.validation.trainings.rows.parse import parse_row
from reports.validation.trainings.series import ParsedRow, base_of, network_of
from reports.validation.trainings.step_times import topology_of, training_step_s

ROW = {
    "dataset": "x",
    "model": "ResNet-50",
    "framework": "PyTorch 1.9",
    "gpu": "V100-SXM2-16GB",
    "nodes": "1",
    "gpus_per_node": "1",
    "batch_per_gpu": "64",
    "precision": "FP32",
    "interconnect": "NVLink2 hybrid cube mesh; 1x 100 Gb EDR InfiniBand per node",
    "sync_mode": "allreduce",
    "metric": "throughput",
    "value": "100",
}


def parsed(**cells: object) -> ParsedRow:
    row = ROW | {key: str(value) for key, value in cells.items()}
    return ParsedRow(row, parse_row(row))


def base_value(rows: list[ParsedRow], at: int) -> str | None:
    base = base_of(rows, at)
    return None if base is None else base.cells["value"]


def test_the_smallest_run_of_the_same_kind() -> None:
    rows = [
        parsed(value=1),
        parsed(gpus_per_node=4, value=2),
        parsed(nodes=2, gpus_per_node=4, value=3),
    ]
    assert [base_value(rows, at) for at in range(3)] == [None, "1", "1"]
    assert base_value(rows[1:], 1) == "2"


@pytest.mark.parametrize(
    "other",
    [
        {"model": "ResNet-101"},
        {"batch_per_gpu": 32},
        {"precision": "FP16"},
        {"gpu": "V100-SXM2-32GB"},
        {"framework": "PyTorch 1.4"},
    ],
)
def test_another_kind_is_no_base(other: dict[str, object]) -> None:
    rows = [parsed(**other), parsed(gpus_per_node=4)]
    assert base_of(rows, 1) is None


def test_of_several_the_one_that_agrees_in_most() -> None:
    """Two series of one configuration, told apart by what else stands in their rows."""
    rows = [
        parsed(value=1, note="DALI"),
        parsed(value=2, note="files"),
        parsed(gpus_per_node=8, value=3, note="DALI"),
    ]
    assert base_value(rows, 2) == "1"


def test_of_equals_the_last_one_before() -> None:
    rows = [
        parsed(value=1),
        parsed(gpus_per_node=8, value=2),
        parsed(value=3),
        parsed(gpus_per_node=8, value=4),
    ]
    assert base_value(rows, 1) == "1"
    assert base_value(rows, 3) == "3"
    assert base_value(rows[1:], 0) == "3", "a base after it is better than none"


def test_a_count_in_the_name_of_a_gpu_is_no_other_gpu() -> None:
    text = {"interconnect": "as in system name"}
    rows = [parsed(gpu="A100 SXM4", **text), parsed(gpu="4x A100 SXM4", gpus_per_node=4, **text)]
    assert base_of(rows, 1) is rows[0]


@pytest.mark.parametrize(
    ("cells", "network"),
    [
        ({}, "one GPU"),
        ({"gpus_per_node": 8}, "NVLink"),
        ({"gpus_per_node": 2, "gpu": "V100-PCIE-16GB", "interconnect": "PCIe3"}, "PCIe"),
        ({"gpus_per_node": 2, "gpu": "V100-SXM2-16GB", "interconnect": "NVLink unused"}, "PCIe"),
        ({"nodes": 2, "gpus_per_node": 8}, "InfiniBand"),
        ({"nodes": 2, "interconnect": "none; RoCE v2 25 GbE"}, "RoCE"),
        ({"nodes": 2, "interconnect": "none; 10GbE with TCP/IP"}, "TCP"),
        ({"nodes": 2, "interconnect": "none; Ethernet 25G in Azure"}, "cloud"),
        ({"nodes": 2, "interconnect": "none; AWS EFA"}, "cloud"),
        (
            {
                "nodes": 2,
                "gpu": "T4 (EC2 g4dn.12xlarge, 4 per node)",
                "interconnect": "PCIe inside node; 50 Gbps EC2 network",
            },
            "cloud",
        ),
        ({"nodes": 2, "interconnect": "none; InfiniBand EDR in a cloud"}, "InfiniBand"),
    ],
)
def test_what_gradients_cross(cells: dict[str, object], network: str) -> None:
    row = parsed(**cells)
    assert network_of(topology_of(row.row), row.cells, row.row) == network


# ---------------------------------------------------------------- arithmetic


def run(**fields: object) -> TrainingRun:
    usual = {
        "model": "m",
        "gpu": "g",
        "nodes": 1,
        "gpus": 8,
        "batch": 1,
        "precision": "fp32",
        "network": "NVLink",
        "published": 600.0,
        "predicted": 640.0,
        "base_gpus": 1,
        "base": (100.0, 90.0),
        "scaled": 700.0,
    }
    return TrainingRun(**(usual | fields))  # type: ignore[arg-type]


def test_efficiency_is_throughput_per_gpu_over_that_of_the_base() -> None:
    """600 of 8 x 100, and 640 of 8 x 90; against two GPUs of 100 together 600 of 4 x 100."""
    assert run().pair("efficiency") == pytest.approx((0.75, 640 / 720))
    assert run(base_gpus=2).pair("efficiency") == pytest.approx((1.5, 640 / 360))
    assert run(base=None, base_gpus=None).pair("efficiency") is None


def test_each_run_has_its_measures() -> None:
    assert run().pair("many_gpus") == (600.0, 640.0)
    assert run().pair("one_gpu") is None
    assert run().pair("scaled") == (600.0, 700.0)
    single = run(gpus=1, base=None, base_gpus=None, scaled=None)
    assert single.pair("one_gpu") == (600.0, 640.0)
    assert [single.pair(m) for m in ("many_gpus", "efficiency", "scaled")] == [None] * 3


def test_of_unlike_compute_only_the_scaled_one_is_compared() -> None:
    unlike = run(unlike="another head")
    assert unlike.pair("scaled") == (600.0, 700.0)
    assert unlike.pair("many_gpus") is None
    assert unlike.pair("efficiency") is None


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("factor", [0.5, 1.7, 30.0])
def test_scaled_compute_of_one_gpu_is_that_factor(factor: float) -> None:
    row = parsed().row
    assert training_step_s(row, factor) == pytest.approx(factor * training_step_s(row))


def test_with_slow_compute_communication_is_hidden() -> None:
    """A hundred times slower, 8 GPUs take as long as the slowest, but for the last bucket and
    copies."""
    one, eight = parsed().row, parsed(gpus_per_node=8).row
    slowest_s = 100 * training_step_s(one) * (1 + gpu_speeds() * 1.4236)
    assert training_step_s(eight, 100.0) == pytest.approx(slowest_s, rel=5e-3)
    assert training_step_s(eight) > training_step_s(one)


def test_nodes_that_give_unlike_numbers_of_gpus() -> None:
    """Five GPUs on two nodes: more than two ranks with a NIC of their own exchange, as many nodes
    as for two and for eight."""
    ec2 = {
        "gpu": "T4 (EC2 g4dn.12xlarge, 4 per node)",
        "nodes": 2,
        "precision": "FP32",
        "interconnect": "PCIe inside node; 50 Gbps EC2 network",
    }
    times = {
        shares: training_step_s(parsed(**ec2, gpus_per_node=shares).row)
        for shares in ("1+1", "1+4", "4+1", "4+4")
    }
    assert parsed(**ec2, gpus_per_node="1+4").row.gpus == 5
    assert times["1+1"] < times["1+4"] <= 1.02 * times["4+4"]
    assert times["1+4"] == pytest.approx(times["4+1"], rel=1e-6)


def test_runs_on_another_kind_of_host_are_no_base() -> None:
    """PaddlePaddle/Perf measured 8 GPUs and 32 on machines with other CPUs and drivers."""
    rows = [parsed(host="80 threads"), parsed(host="48 threads", nodes=4, gpus_per_node=8)]
    assert base_of(rows, 1) is None
    rows.append(parsed(host="80 threads", gpus_per_node=8))
    assert base_of(rows, 2) is rows[0]


def test_micro_steps_share_an_all_reduce() -> None:
    """A hundred micro-steps: what all-reduce and optimizer take is shared out to them."""
    cells = {"model": "BERT-base", "batch_per_gpu": 8, "sync_mode": "allreduce after backward"}
    single, many = (
        [parsed(**cells, gpus_per_node=gpus, accumulate=times).row for gpus in (1, 8)]
        for times in (1, 100)
    )
    slowest = 1 + gpu_speeds() * 1.4236
    lost = [
        training_step_s(row[1]) / training_step_s(row[0]) / slowest - 1 for row in (single, many)
    ]
    assert lost[0] > 0.1
    assert 0 <= lost[1] < 0.02 * lost[0] + 0.002
    assert training_step_s(many[0]) < training_step_s(single[0])
