"""ZeRO as DeepSpeed has it, for `run_cases`; needs ``deepspeed`` (DS_ACCELERATOR=cpu)."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # products of Muon are compiled, which changes no call

import deepspeed
import torch
import torch.distributed as dist

from tests.training.recorded.recording_group import CALLS, enter_phase
from tests.training.recorded.toy import Net
from tests.training.recorded.toy_workload import INPUTS

STEPS = 4
"""Stage 3 traces modules in the second step, and prefetches from the third on."""


def settings(
    stage: int,
    *,
    accumulate: int = 1,
    dtype: str = "fp32",
    sent: str = "",
    optimizer: str = "adamw",
    **fields: Any,
) -> dict[str, Any]:
    """Fields of ``zero_optimization``, and what stands beside it."""
    return {
        "accumulate": accumulate,
        "dtype": dtype,
        "sent": sent,
        **({} if optimizer == "adamw" else {"optimizer": optimizer}),
        "fields": {"stage": stage, **fields},
    }


def train(case: dict[str, Any]) -> None:
    """Train some steps."""
    deepspeed.init_distributed(dist_init_required=False)
    accumulate, bf16 = case["accumulate"], case["dtype"] == "bf16"
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulate,
        "zero_optimization": case["fields"],
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": bf16},
        **({"communication_data_type": case["sent"]} if case["sent"] else {}),
    }
    if muon := case.get("optimizer") == "muon":
        config["optimizer"] = {"type": "Muon", "params": {"lr": 1e-3}}
    model = Net()
    engine, *_ = deepspeed.initialize(
        model=model,
        config=config,
        model_parameters=model.parameters(),
        optimizer=None if muon else torch.optim.AdamW(model.parameters(), 1e-3),
    )
    inputs = torch.ones(2, INPUTS, dtype=torch.bfloat16 if bf16 else torch.float32)
    for step in range(STEPS):
        for micro in range(accumulate):
            enter_phase(f"step {step} forward {micro}")
            loss = engine(inputs).sum()
            enter_phase(f"step {step} backward {micro}")
            engine.backward(loss)
            enter_phase(f"step {step} optimizer")
            engine.step()
    note_bytes(engine.optimizer, case["fields"]["stage"])


def note_bytes(optimizer: Any, stage: int) -> None:
    """Note what a rank keeps between steps, the most that one of them does."""
    if stage == 3:
        kept = {
            "parameters": [p.ds_tensor for group in optimizer.fp16_groups for p in group],
            "whole parameters": [p.data for p in optimizer.persistent_parameters],
            "gradients": [optimizer.grad_partitions_flat_buffer],
            "master": optimizer.fp32_partitioned_groups_flat,
        }
    else:
        kept = {
            "parameters": optimizer.bit16_groups_flat,
            "master": optimizer.single_partition_of_fp32_groups,
        }
    states = [each for state in optimizer.optimizer.state.values() for each in state.values()]
    # those of Muon that are kept until it is known that no gradient overflowed
    states += [staged for staged, _ in getattr(optimizer, "_muon_pending_momentum", {}).values()]
    kept["optimizer"] = [each for each in states if torch.is_tensor(each) and each.numel() > 1]
    for name, tensors in kept.items():
        most = torch.tensor(sum(each.numel() * each.element_size() for each in tensors))
        enter_phase("agreement on the most")
        dist.all_reduce(most, dist.ReduceOp.MAX)
        CALLS.append(
            {
                "op": name,
                "bytes": int(most),
                "dtype": "",
                "group": [],
                "phase": "memory",
                "tensors": 1,
            }
        )


SETTINGS: dict[str, dict[str, Any]] = {
    "stage 1": settings(1),
    "stage 1 bf16": settings(1, dtype="bf16"),
    "stage 1, buckets": settings(1, reduce_bucket_size=1200),
    "stage 1, overlap": settings(1, reduce_bucket_size=1200, overlap_comm=True),
    "stage 1, accumulate": settings(1, reduce_bucket_size=1200, accumulate=3),
    "stage 1, other buckets": settings(1, reduce_bucket_size=1000),
    "stage 1, overlap, other buckets": settings(1, reduce_bucket_size=1000, overlap_comm=True),
    "stage 2, sent in fp32": settings(2, dtype="bf16", sent="fp32", reduce_bucket_size=1000),
    "stage 2, sent in bf16": settings(2, sent="bf16", reduce_bucket_size=1000),
    "stage 2, to owners, small buckets": settings(
        2, reduce_bucket_size=300, use_multi_rank_bucket_allreduce=False
    ),
    "stage 2, smaller buckets": settings(2, reduce_bucket_size=300),
    "stage 1, overlap, accumulate": settings(
        1, reduce_bucket_size=1200, overlap_comm=True, accumulate=3
    ),
    "stage 2": settings(2),
    "stage 2 bf16": settings(2, dtype="bf16"),
    "stage 2, buckets": settings(2, reduce_bucket_size=1200),
    "stage 2, overlap": settings(2, reduce_bucket_size=1200, overlap_comm=True),
    "stage 2, small buckets": settings(2, reduce_bucket_size=500),
    "stage 2, accumulate": settings(2, reduce_bucket_size=1200, accumulate=3),
    "stage 2, to owners": settings(
        2, reduce_bucket_size=1200, use_multi_rank_bucket_allreduce=False
    ),
    "stage 2, to owners, round robin": settings(
        2,
        reduce_bucket_size=1200,
        use_multi_rank_bucket_allreduce=False,
        round_robin_gradients=True,
    ),
    "stage 2, round robin": settings(2, reduce_bucket_size=1200, round_robin_gradients=True),
    "stage 2, all-reduce": settings(2, reduce_bucket_size=1200, reduce_scatter=False),
    "stage 2, not contiguous": settings(2, reduce_bucket_size=1200, contiguous_gradients=False),
    "stage 2, gather buckets": settings(2, allgather_bucket_size=600, allgather_partitions=False),
    "stage 1, muon": settings(1, optimizer="muon"),
    "stage 1, muon bf16": settings(1, optimizer="muon", dtype="bf16"),
    "stage 1, muon, accumulate": settings(
        1, optimizer="muon", reduce_bucket_size=1200, accumulate=3
    ),
    "stage 1, muon, overlap": settings(
        1, optimizer="muon", reduce_bucket_size=1200, overlap_comm=True
    ),
    "stage 2, muon": settings(2, optimizer="muon"),
    "stage 2, muon bf16": settings(2, optimizer="muon", dtype="bf16"),
    "stage 2, muon, small buckets": settings(2, optimizer="muon", reduce_bucket_size=500),
    "stage 2, muon, to owners": settings(
        2, optimizer="muon", reduce_bucket_size=2000, use_multi_rank_bucket_allreduce=False
    ),
    "stage 2, muon, to owners, small buckets": settings(
        2, optimizer="muon", reduce_bucket_size=300, use_multi_rank_bucket_allreduce=False
    ),
    "stage 2, muon, round robin": settings(
        2,
        optimizer="muon",
        reduce_bucket_size=1200,
        use_multi_rank_bucket_allreduce=False,
        round_robin_gradients=True,
    ),
    "stage 2, muon, accumulate": settings(
        2, optimizer="muon", reduce_bucket_size=1200, accumulate=3
    ),
    "stage 2, muon, all-reduce": settings(
        2, optimizer="muon", reduce_bucket_size=1200, reduce_scatter=False
    ),
    "stage 2, muon, not contiguous": settings(
        2, optimizer="muon", reduce_bucket_size=1200, contiguous_gradients=False
    ),
    "stage 3, sent in fp32": settings(3, dtype="bf16", sent="fp32", reduce_bucket_size=1000),
    "stage 3, live, accumulate": settings(
        3,
        stage3_param_persistence_threshold=60,
        stage3_prefetch_bucket_size=500,
        accumulate=2,
        stage3_max_live_parameters=2000,
        stage3_max_reuse_distance=1000,
    ),
    "stage 3, live, more": settings(
        3,
        stage3_param_persistence_threshold=20,
        stage3_prefetch_bucket_size=2000,
        stage3_max_live_parameters=3000,
        stage3_max_reuse_distance=1500,
    ),
    "stage 3, no overlap": settings(3, overlap_comm=False, stage3_param_persistence_threshold=100),
    "stage 3": settings(3),
    "stage 3 bf16": settings(3, dtype="bf16"),
    "stage 3, all sharded": settings(3, stage3_param_persistence_threshold=0),
    "stage 3, persistent": settings(3, stage3_param_persistence_threshold=100),
    "stage 3, no prefetch": settings(
        3, stage3_param_persistence_threshold=0, stage3_prefetch_bucket_size=0
    ),
    "stage 3, prefetch": settings(
        3,
        stage3_param_persistence_threshold=60,
        stage3_prefetch_bucket_size=1000,
        stage3_max_reuse_distance=0,
    ),
    "stage 3, prefetch, reuse": settings(
        3,
        stage3_param_persistence_threshold=60,
        stage3_prefetch_bucket_size=1000,
        stage3_max_reuse_distance=2000,
    ),
    "stage 3, live": settings(
        3,
        stage3_param_persistence_threshold=0,
        stage3_prefetch_bucket_size=1000,
        stage3_max_live_parameters=1500,
        stage3_max_reuse_distance=0,
    ),
    "stage 3, buckets": settings(
        3, reduce_bucket_size=1200, stage3_param_persistence_threshold=100
    ),
    "stage 3, all-reduce": settings(
        3, reduce_bucket_size=1200, stage3_param_persistence_threshold=100, reduce_scatter=False
    ),
    "stage 3, accumulate": settings(
        3,
        accumulate=2,
        stage3_param_persistence_threshold=100,
        stage3_prefetch_bucket_size=1000,
        stage3_max_reuse_distance=0,
    ),
    "stage 3, sequential": settings(
        3, stage3_param_persistence_threshold=0, stage3_allgather_sequential=True
    ),
    "stage 3, groups": settings(3, stage3_param_persistence_threshold=100, sub_group_size=600),
    "stage 3, muon": settings(3, optimizer="muon", reduce_scatter=False),
    "stage 3, muon bf16": settings(3, optimizer="muon", dtype="bf16", reduce_scatter=False),
    "stage 3, muon, sent in fp32": settings(
        3, optimizer="muon", dtype="bf16", sent="fp32", reduce_scatter=False
    ),
    "stage 3, muon, buckets": settings(
        3,
        optimizer="muon",
        reduce_bucket_size=2000,
        reduce_scatter=False,
        stage3_param_persistence_threshold=100,
    ),
    "stage 3, muon, accumulate": settings(
        3,
        optimizer="muon",
        accumulate=2,
        reduce_scatter=False,
        stage3_param_persistence_threshold=100,
        stage3_prefetch_bucket_size=1000,
        stage3_max_reuse_distance=0,
    ),
    "stage 3, muon, groups": settings(
        3,
        optimizer="muon",
        reduce_scatter=False,
        stage3_param_persistence_threshold=100,
        sub_group_size=600,
    ),
    "stage 3, hpz, live": settings(
        3,
        stage3_param_persistence_threshold=0,
        stage3_prefetch_bucket_size=1000,
        accumulate=2,
        stage3_max_live_parameters=1500,
        stage3_max_reuse_distance=0,
        zero_hpz_partition_size=2,
    ),
    "stage 3, hpz": settings(3, stage3_param_persistence_threshold=100, zero_hpz_partition_size=2),
}
"""Those of stage 3 last, as it replaces ``torch.nn.functional.linear`` for good, and second copies
last of all, as their groups stay."""

CASES: dict[str, Callable[[], None]] = {
    name: partial(train, case) for name, case in SETTINGS.items()
}
