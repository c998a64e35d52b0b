"""Gradients of experts are averaged by those that hold the same ones, all others by everyone."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.training.memory.use import Setup
from perfmodel.training.parallel.mixture import Mixture, Reduction, mix_step
from perfmodel.training.plan.builder import EXPERT_COPIES
from perfmodel.training.plan.step_plan import Collective
from perfmodel.training.sharded.megatron.options import MegatronOptions
from perfmodel.training.sharded.megatron.strategy import megatron_memory, megatron_plan
from perfmodel.training.sharded.zero.zero_passes import EVERYONE
from perfmodel.training.strategy import StepRequest
from perfmodel.workload import load_workload
from perfmodel.workload.memory.recompute import NO_RECOMPUTE
from perfmodel.workload.model import LayerTimes, Workload
from perfmodel.workload.shards.shard import Shard

REPLICAS, EXPERT = 16, 8


@pytest.fixture(scope="module")
def share() -> Workload:
    return load_workload(
        "mixtral-8x7b", dtype="bf16", sequence_length=512, shard=Shard(expert=EXPERT)
    )


def trained(share: Workload, *, of_experts: bool) -> int:
    tensors = (share.tensors[index] for index in share.ready_order)
    return sum(tensor.numel for tensor in tensors if tensor.of_experts == of_experts)


def request(share: Workload) -> StepRequest:
    layers = len(share.layers)
    none, nothing = np.zeros(layers), np.zeros(layers, dtype=np.int64)
    times = LayerTimes(none, none, nothing, nothing, 0.0, 0.0, 1, 1e12, 0.0, "none")
    return StepRequest(share, times, REPLICAS, 1, expert_copies=REPLICAS // EXPERT)


@pytest.mark.parametrize("splits", [False, True])
def test_bytes_by_communicator(share: Workload, splits: bool) -> None:
    """A reduction moves each gradient once, in bf16, but for padding; so does the gather."""
    options = MegatronOptions(use_distributed_optimizer=splits, overlap_grad_reduce=True)
    plan = megatron_plan(request(share), options)
    moved: dict[tuple[str, str], int] = {}
    for work in (task.work for task in plan.tasks if isinstance(task.work, Collective)):
        if work.nbytes > 64:
            key = work.communicator, work.op
            moved[key] = moved.get(key, 0) + work.nbytes
    ops = ["reduce_scatter", "all_gather"] if splits else ["all_reduce"]
    wanted = {
        (communicator, op): 2 * trained(share, of_experts=of_experts)
        for communicator, of_experts in ((EVERYONE, False), (EXPERT_COPIES, True))
        for op in ops
    }
    assert moved == pytest.approx(wanted, rel=1e-4)


def test_optimizer_states_are_split_among_those_that_hold_the_same(share: Workload) -> None:
    """12 bytes a parameter (two states and an fp32 copy) over the ranks that share it."""
    setup = Setup(
        share, "bf16", "adam", REPLICAS, 1, MegatronOptions(use_distributed_optimizer=True),
        expert_copies=REPLICAS // EXPERT,
    )  # fmt: skip
    dense = trained(share, of_experts=False) / REPLICAS
    experts = trained(share, of_experts=True) / (REPLICAS // EXPERT)
    assert megatron_memory(setup).optimizer_bytes == pytest.approx(12 * (dense + experts), rel=1e-3)


def test_experts_that_two_stages_would_hold_are_refused(share: Workload) -> None:
    """DualPipe keeps each part twice; no plan says who averages such experts' gradients."""
    mixture = Mixture(Shard(expert=EXPERT), 2, "dualpipe")
    with pytest.raises(InputError, match=r"parallel\.pipeline\.schedule: found 'dualpipe'"):
        mix_step(
            mixture, request(share), lambda part, _: megatron_plan(part, MegatronOptions()), 4,
            Reduction(), "bf16", NO_RECOMPUTE, None,
        )  # fmt: skip
