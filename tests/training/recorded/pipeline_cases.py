"""Steps of PyTorch's pipeline schedules, for `run_cases`; each rank's messages go to rank 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from tests.training.recorded.recording_group import CALLS, enter_phase, take_calls

WIDTH, SAMPLES = 6, 3
"""Of a micro-batch."""

TORCH_CLASSES = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "looped_bfs": ("ScheduleLoopedBFS", 2),
    "zb_h1": ("ScheduleInterleavedZeroBubble", 1),
    "interleaved_zero_bubble": ("ScheduleInterleavedZeroBubble", 2),
    "zb_v": ("ScheduleZBVZeroBubble", 2),
    "dualpipe_v": ("ScheduleDualPipeV", 2),
}
"""Class, and chunks of a stage, of each schedule."""


def micro_batches_of(ranks: int) -> int:
    return 2 * ranks + 2 * (ranks == 2)


def case(kind: str) -> Callable[[], None]:
    """Two steps, of which the first exchanges shapes, too."""

    def run() -> None:
        name, chunks = TORCH_CLASSES[kind]
        rank, ranks = dist.get_rank(), dist.get_world_size()
        held = [chunk * ranks + rank for chunk in range(chunks)]
        if kind in ("zb_v", "dualpipe_v"):
            held = [rank, 2 * ranks - 1 - rank]
        stages = [
            PipelineStage(nn.Linear(WIDTH, WIDTH), index, chunks * ranks, torch.device("cpu"))
            for index in held
        ]
        count = micro_batches_of(ranks)
        make = getattr(schedules, name)
        several = issubclass(make, schedules.PipelineScheduleMulti)
        schedule = make(stages if several else stages[0], count, loss_fn=_loss)
        batch = torch.ones(count * SAMPLES, WIDTH)
        inputs = (batch,) if 0 in held else ()
        more: dict[str, Any] = {"target": batch} if chunks * ranks - 1 in held else {}
        for step in range(2):
            enter_phase(f"step {step}")
            schedule.step(*inputs, **more)
        enter_phase("end")
        _gather_calls(rank, ranks)

    return run


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).sum()


def _gather_calls(rank: int, ranks: int) -> None:
    """Leave what all ranks called in the second step, with rank and peer in its phase."""
    mine = [call for call in take_calls() if call["phase"] == "step 1"]
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, mine)
    take_calls()
    for source, calls in enumerate(everyone):
        for call in calls:
            CALLS.append({**call, "phase": f"rank {source} peer {call.get('peer')}"})


CASES = {kind: case(kind) for kind in TORCH_CLASSES}
