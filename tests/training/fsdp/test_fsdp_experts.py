"""Experts under FSDP: what each rank keeps and updates, and what does not go with them.

Which collectives a step has is compared with real PyTorch in `tests/training/recorded`.
"""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.fsdp.sharded_step import SHARDS
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.fsdp.strategy import fsdp_memory
from perfmodel.training.fsdp.units import split_rows
from perfmodel.training.memory_use import Setup
from perfmodel.training.plan.builder import EXPERT_COPIES
from perfmodel.training.plan.step_plan import Collective, Compute
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import LayerTimes, ParameterTensor, Workload
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo import build_model

RANKS, EXPERT = 16, 4
BLOCKS, WIDTH, NARROW, WIDE = 32, 4096, 1024, 14336
OPTIMIZER_S = 1.0
DENSE = (
    2 * 32000 * WIDTH
    + WIDTH
    + BLOCKS * (2 * WIDTH * WIDTH + 2 * WIDTH * NARROW + 2 * WIDTH + 8 * WIDTH)
)
"""Mixtral 8x7B: embedding and head, norms, attention, routers (all divide by 8 or more)."""
OWN = BLOCKS * (8 // EXPERT) * 3 * WIDTH * WIDE
"""Experts of a rank."""


@pytest.fixture(scope="module")
def share() -> Workload:
    return build_model(
        "mixtral-8x7b",
        dtype="bf16",
        sequence_length=512,
        shard=Shard(expert=EXPERT, library="torch"),
    )


def request(share: Workload, ranks: int = RANKS) -> StepRequest:
    layers = len(share.layers)
    none, nothing = np.zeros(layers), np.zeros(layers, dtype=np.int64)
    times = LayerTimes(none, none, nothing, nothing, 0.0, OPTIMIZER_S, 1, 1e12, "none")
    return StepRequest(share, times, ranks, 1, expert_copies=ranks // EXPERT)


def test_a_rank_keeps_less_of_what_more_ranks_share(share: Workload) -> None:
    """Routers of 8 rows are padded to 16; two experts of each layer are split by columns."""
    setup = Setup(
        share, "bf16", "adamw", RANKS, 1, FsdpStrategy(kind="fsdp"), expert_copies=RANKS // EXPERT
    )
    use = fsdp_memory(setup)
    padded = DENSE + BLOCKS * 8 * WIDTH
    kept = 2 * (padded / RANKS + OWN / (RANKS // EXPERT))
    assert use.gradients_bytes == kept
    assert use.parameters_bytes == kept + share.buffer_bytes
    counts = 4 * len(share.ready_order)  # Adam's steps
    assert use.optimizer_bytes == 2 * kept + counts


def test_bytes_by_communicator(share: Workload) -> None:
    """ZeRO-3's formula for both groups: two gathers and a reduce-scatter of each parameter."""
    moved: dict[tuple[str, str], int] = {}
    plan = fsdp_plan(request(share), FsdpStrategy(kind="fsdp"))
    for work in (task.work for task in plan.tasks if isinstance(task.work, Collective)):
        key = work.communicator, work.op
        moved[key] = moved.get(key, 0) + work.nbytes
    root = 2 * 32000 * WIDTH + WIDTH  # stays whole between its passes
    padded = DENSE + BLOCKS * 8 * WIDTH
    assert moved == {
        (SHARDS, "all_gather"): 2 * (2 * padded - root),
        (SHARDS, "reduce_scatter"): 2 * padded,
        (EXPERT_COPIES, "all_gather"): 2 * 2 * OWN,
        (EXPERT_COPIES, "reduce_scatter"): 2 * OWN,
    }


@pytest.mark.parametrize("ranks", [RANKS, EXPERT])
def test_a_rank_updates_its_shards(share: Workload, ranks: int) -> None:
    plan = fsdp_plan(request(share, ranks), FsdpStrategy(kind="fsdp"))
    (optimizer,) = [task.work for task in plan.tasks if task.kind == "optimizer"]
    assert isinstance(optimizer, Compute)
    whole = DENSE + OWN
    own = DENSE / ranks + OWN / (ranks // EXPERT)
    assert optimizer.duration_s == pytest.approx(OPTIMIZER_S * own / whole, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FsdpStrategy(kind="fsdp", version=1), "version: found 1; allowed: 2 with parallel.expert"),
        (
            FsdpStrategy(kind="fsdp", shard_gpus=8),
            "shard_gpus: found 8; allowed: nothing with parallel.expert",
        ),
        (
            FsdpStrategy(kind="fsdp", reshard_after_forward=8),
            "reshard_after_forward: found 8; allowed: true or",
        ),
    ],
)
def test_what_does_not_go_with_shared_experts(
    share: Workload, options: FsdpStrategy, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fsdp_plan(request(share), options)


def test_experts_are_cut_only_where_ranks_are_more() -> None:
    """``Shard(1)`` where ``fsdp_mesh.size() > num_experts`` (torchtitan's ``apply_fsdp``)."""
    experts = ParameterTensor("experts", (8, 6, 5), of_experts=True)
    assert [split_rows(experts, ranks) for ranks in (4, 8, 16)] == [8, 8, 6]
