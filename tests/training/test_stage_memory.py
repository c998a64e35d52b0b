"""Memory of stages against the formulas of Korthikanti et al. 2022 (arXiv 2205.05198)."""

from __future__ import annotations

import pytest

from perfmodel.scenario.strategies.sharded import MegatronStrategy
from perfmodel.training.megatron import MEGATRON
from perfmodel.training.memory_use import Setup
from perfmodel.training.parallel_layout import ParallelLayout, stage_memory
from perfmodel.workload import load_workload
from perfmodel.workload.model import Workload
from perfmodel.workload.shard import Shard

TOKENS, WIDTH, BLOCKS, TENSOR = 2048, 4096, 32, 4
SHARD = Shard(tensor=TENSOR, sequence_parallel=True, vocabulary_multiple=128)


@pytest.fixture(scope="module")
def share() -> Workload:
    return load_workload("gpt3-6.7b", dtype="bf16", sequence_length=TOKENS, shard=SHARD)


def activations(
    share: Workload, parallel_layout: ParallelLayout, micro_batches: int
) -> list[float]:
    setup = Setup(
        share,
        "bf16",
        "adam",
        ranks=2,
        batch_per_gpu=1,
        options=MegatronStrategy(kind="megatron", accumulate=micro_batches),
    )
    return [use.activations_bytes for use in stage_memory(setup, MEGATRON.memory, parallel_layout)]


@pytest.mark.parametrize(
    ("schedule", "chunks", "in_flight"),
    [
        # micro-batches of a block that wait for backward: all of them; as many as stages follow;
        # ZB-H1 as 1F1B's first stage has on none of its stages more
        ("gpipe", None, [12, 12, 12, 12]),
        ("1f1b", None, [4, 3, 2, 1]),
    ],
)
def test_micro_batches_in_flight(
    share: Workload, schedule: str, chunks: int | None, in_flight: list[int]
) -> None:
    """34 s b h / t bytes a block with sequence parallelism and fused attention (section 4.2.2)."""
    parallel_layout = ParallelLayout(SHARD, 4, schedule, chunks)
    block_bytes = 34 * TOKENS * WIDTH / TENSOR
    wanted = [n * BLOCKS / 4 * block_bytes for n in in_flight]
    for stage in (1, 2):  # neither with the embedding's dropout nor with the loss
        in_hand = activations(share, parallel_layout, 12)[stage] - wanted[stage]
        assert 0 < in_hand < block_bytes  # gradients of the layer whose backward runs


def test_interleaving_keeps_more(share: Workload) -> None:
    """1F1B's first stage keeps p, interleaved p (1 + (p - 1) / (p m)) micro-batches (appendix)."""
    plain = activations(share, ParallelLayout(SHARD, 4), 12)[0]
    several = activations(share, ParallelLayout(SHARD, 4, "interleaved", 2), 12)[0]
    assert several / plain == pytest.approx(1 + (4 - 1) / (4 * 2), rel=0.02)


def test_zero_bubble_keeps_no_more_than_1f1b(share: Workload) -> None:
    """ZB-H1 (Qi et al. 2024, table 1): the same peak as 1F1B on its fullest stage."""
    plain = activations(share, ParallelLayout(SHARD, 4), 12)
    zero = activations(share, ParallelLayout(SHARD, 4, "zb_h1"), 12)
    assert max(zero[:-1]) == pytest.approx(plain[0], rel=0.05)


def test_a_single_stage_is_the_plain_strategy(share: Workload) -> None:
    setup = Setup(
        share, "bf16", "adam", ranks=2, batch_per_gpu=1, options=MegatronStrategy(kind="megatron")
    )
    assert stage_memory(setup, MEGATRON.memory, ParallelLayout(SHARD)) == (MEGATRON.memory(setup),)


def test_parts_hold_all_parameters_once(share: Workload) -> None:
    """Parameters of all stages are those of the model, and the tied embedding once more."""
    setup = Setup(
        share,
        "bf16",
        "adam",
        ranks=2,
        batch_per_gpu=1,
        options=MegatronStrategy(kind="megatron", accumulate=8),
    )
    whole = MEGATRON.memory(setup).parameters_bytes
    stages = stage_memory(setup, MEGATRON.memory, ParallelLayout(SHARD, 4))
    table = next(tensor for tensor in share.tensors if tensor.name == "wte.weight")
    assert sum(use.parameters_bytes for use in stages) == pytest.approx(whole + table.nbytes)
