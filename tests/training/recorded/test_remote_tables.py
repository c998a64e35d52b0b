"""Tables at servers: ranks send what torch.distributed.rpc was recorded to send, and share a NIC.

Recorded once (record_remote_tables.py): bytes of loopback belong to whoever else uses it, too.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import perfmodel as pm
from perfmodel.errors import InputError
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan
from perfmodel.training.server_rates import rpc_s
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.dlrm import dlrm
from tests.training.recorded.toy_workload import request

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("remote_tables.json").read_text(encoding="utf-8")
)
TABLES, WIDTH, SAMPLES = len(RECORDED["rows"]), RECORDED["width"], RECORDED["samples"]
ROW_BYTES = 4 * WIDTH


def plan(ranks: int, accumulate: int = 1, **shard: Any) -> StepPlan:
    model = dlrm(
        "recorded",
        dtype="fp32",
        rows=RECORDED["rows"],
        bottom=(13, WIDTH),
        top=(1,),
        shard=Shard(tables="remote", **shard),
    )
    asked = replace(request(ranks, model, ranks_per_host=2), batch_per_gpu=SAMPLES)
    return ddp_plan(asked, DdpOptions(accumulate=accumulate))


def sent_bytes(step: StepPlan, name: str) -> float:
    """Bytes that all ranks and one server exchange, its own part left out."""
    (work,) = (task.work for task in step.tasks if task.name == name)
    assert isinstance(work, Collective)
    members = step.groups_of[work.communicator][0]
    return work.nbytes * (len(members) - 1) / len(members)


@pytest.mark.parametrize("trainers", [1, 2])
def test_passes_send_what_was_recorded(trainers: int) -> None:
    """All but headers of TCP and what comes with a call: 3 % of so few bytes."""
    step, recorded = plan(trainers), RECORDED["trainers"][str(trainers)]
    asked, home, back = (
        sent_bytes(step, name) for name in ("indices of rows", "rows", "gradients of rows")
    )
    assert asked == trainers * TABLES * SAMPLES * 2 * 8  # an index and an offset
    assert home == back == trainers * TABLES * SAMPLES * ROW_BYTES
    assert asked + home == pytest.approx(recorded["forward_bytes"], rel=0.03)
    assert back == pytest.approx(recorded["backward_bytes"], rel=0.03)
    assert recorded["update_bytes"] < 0.01 * back


def test_a_call_takes_what_was_recorded() -> None:
    assert rpc_s() == pytest.approx(RECORDED["trainers"]["1"]["update_s"], rel=0.05)


def test_the_host_waits_for_rows_and_not_for_sent_gradients() -> None:
    """Forward of what follows, and its launch, wait; backward of what precedes does not."""
    step = plan(2)
    at = {task.name: place for place, task in enumerate(step.tasks)}
    assert at["copy rows up"] in step.tasks[at["forward emb_l"]].after
    assert step.tasks[at["forward interaction"]].stream == step.tasks[at["copy rows up"]].stream
    sent = at["gradients of rows"]
    before = [task for task in step.tasks if task.name.startswith("backward bot_l")]
    assert before
    assert not any(sent in task.after for task in before)
    assert at["gradients at servers"] in step.tasks[at["optimizer"]].after


@pytest.mark.parametrize(("servers", "fullest"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_servers_hold_whole_tables_and_read_and_write_rows(servers: int, fullest: int) -> None:
    """Looked up: read and written, at 190 GB/s of memory; twice 1.8 ms for gradients and update."""
    step = plan(4, servers=servers)
    works = {task.name: task.work for task in step.tasks}
    found, updated = works["look-up at servers"], works["gradients at servers"]
    assert isinstance(found, Compute)
    assert isinstance(updated, Compute)
    moved_s = 4 * fullest * SAMPLES * ROW_BYTES / 190e9
    assert found.duration_s == pytest.approx(1.8e-3 + 2 * moved_s)
    assert updated.duration_s == pytest.approx(2 * 1.8e-3 + (2 + 3) * moved_s)
    assert sent_bytes(step, "rows") == 4 * fullest * SAMPLES * ROW_BYTES
    groups = step.groups_of["servers of tables"]
    assert [group[0] for group in groups] == list(range(4, 4 + servers))


def test_colocated_servers_are_on_the_first_hosts() -> None:
    step = plan(4, servers=3, colocated=True)  # two hosts of two ranks
    assert step.groups_of["servers of tables"] == ((0, 1, 2, 3), (2, 0, 1, 3))


def test_each_micro_batch_asks_for_its_rows() -> None:
    names = [task.name for task in plan(2, accumulate=3).tasks]
    assert names.count("rows") == names.count("gradients of rows") == 3


SCENARIO: dict[str, Any] = {
    "perfmodel": 1,
    "model": {"name": "dlrm-criteo-1tb"},
    "compute": {"precision": "fp32", "optimizer": "sgd"},
    "strategy": {"kind": "ddp"},
    "parallel": {"tables": "remote"},
    "cluster": {"node": "dgx-a100", "nodes": 2, "fabric": "rail-optimised"},
    "training": {"batch_per_gpu": 2048},
    "scale": {"gpus": [16]},
}
NIC_BPS, RANKS, ROWS = 200e9 / 8, 16, 16 * 2048 * 26


def spans_s(answer: Any, name: str) -> float:
    spans = [span for span in answer.main.timeline.spans if span.name == name]
    return float(spans[-1].end_s - spans[-1].start_s)


@pytest.mark.parametrize("servers", [1, 2])
def test_all_ranks_share_the_nic_of_a_server(servers: int) -> None:
    """No sooner than its wire allows, and not much later: NCCL's rates are 0.85 of it and more."""
    answer = pm.run(SCENARIO, {"parallel.servers": servers})
    bound_s = ROWS / servers * 4 * 128 / NIC_BPS
    for name in ("rows", "gradients of rows"):
        assert bound_s < spans_s(answer, name) < 1.25 * bound_s
    assert answer.main.step_time_s > 2 * bound_s


def test_a_gpu_holds_no_tables_and_reduces_dense_gradients_alone() -> None:
    """2.4 million weights of perceptrons: 90 GiB of tables fit on no GPU."""
    answer = pm.run(SCENARIO)
    dense = 4 * 2_400_000
    assert answer.main.memory.parameters_bytes == pytest.approx(dense, rel=0.05)
    uses = answer.main.parallel_layout.dimensions
    assert [use.ranks for use in uses] == [RANKS, RANKS]
    sent = {use.dimension: use.sent_bytes for use in uses}
    assert sent["data"] == pytest.approx(2 * 15 / 16 * dense, rel=0.05)
    assert sent["servers"] == pytest.approx(ROWS / RANKS * (2 * 4 * 128 + 2 * 8))


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel.server_placement": "colocated", "parallel.servers": 2},
        {"events": [{"slow": {"nodes": [1], "by": 1.2}}]},
        {"fidelity": "message", "training.batch_per_gpu": 64},
        {"scale": {"gpus": [1, 16]}},
    ],
)
def test_steps_of_all_kinds_end(changes: dict[str, Any]) -> None:
    assert pm.run(SCENARIO, changes).main.step_time_s > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parallel": {"tables": "remote", "expert": 8}}, "but for 'remote', with 1"),
        ({"parallel": {"expert": 8, "tables": "row", "servers": 2}}, "'servers' with 'tables: rem"),
        ({"strategy": "fsdp"}, "nothing with .*fsdp"),
        ({"strategy": {"kind": "ddp", "join": True}}, "asks for no rows"),
        ({"model": {"name": "gpt2"}}, "no tables of"),
        ({"cluster.pool": 2}, "at least 3"),
    ],
)
def test_tables_that_no_server_can_hold_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pm.run(SCENARIO, changes)
