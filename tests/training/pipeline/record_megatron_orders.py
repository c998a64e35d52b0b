"""Write down what Megatron-Core does in a pipeline: the order of its passes, layers of its stages.

``python -P -m tests.training.pipeline.record_megatron_orders`` where ``megatron-core`` is
installed; writes ``megatron_orders.json``: "orders" by case, for each stage the passes as [kind,
chunk, micro-batch], of its own loops with empty passes; "layers" by case, for each chunk of each
stage.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

FILE = Path(__file__).with_name("megatron_orders.json")

CASES = [
    *((stages, micro_batches, 1, None) for stages, micro_batches in ((2, 4), (4, 2), (4, 9))),
    *((2, 4, 2, None), (4, 8, 2, None), (4, 8, 3, 4), (4, 12, 2, 6), (4, 10, 2, 6), (3, 9, 4, 5)),
]
"""Stages, micro-batches, chunks, ``microbatch_group_size_per_vp_stage`` (None: the stages)."""


LAYER_CASES = [
    (8, 4, 1, None, None, False, False),
    (16, 4, 2, None, None, False, False),
    (10, 4, 1, 1, None, False, False),
    (10, 4, 1, 2, 2, False, False),
    (14, 4, 2, 2, None, False, False),
    (20, 4, 2, 4, 8, False, False),
    (7, 4, 1, None, None, False, True),
    (15, 4, 2, None, None, True, False),
    (30, 4, 4, None, None, True, True),
    (6, 4, 2, None, None, True, True),
]
"""Layers, stages, chunks, those of the first and of the last stage, whether embedding and loss
count."""


def layers_of(
    layers: int,
    stages: int,
    chunks: int,
    first: int | None,
    last: int | None,
    embed: bool,
    loss: bool,
) -> list[list[int]]:
    """Layers of each chunk of each stage."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    config = SimpleNamespace(
        pipeline_model_parallel_layout=None,
        num_layers=layers,
        num_layers_in_first_pipeline_stage=first,
        num_layers_in_last_pipeline_stage=last,
        account_for_embedding_in_pipeline_split=embed,
        account_for_loss_in_pipeline_split=loss,
        pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
    )
    return [
        [
            get_num_layers_to_build(config, chunk if chunks > 1 else None, stage)
            for chunk in range(chunks)
        ]
        for stage in range(stages)
    ]


def name_of(case: tuple[int | None, ...]) -> str:
    return " ".join(map(str, case))


def record(stages: int, micro_batches: int, chunks: int, group: int | None) -> list[Any]:
    """Passes of each stage."""
    return [_stage(stages, micro_batches, chunks, group or stages, s) for s in range(stages)]


def _stage(stages: int, micro_batches: int, chunks: int, group: int, stage: int) -> list[Any]:
    import torch
    from megatron.core.pipeline_parallel import schedules

    passes: list[Any] = []

    def forward_step(*_: Any, **named: Any) -> Any:
        chunk = named.get("vp_stage") or 0
        passes.append(["forward", chunk, named["current_microbatch"]])
        output = torch.zeros(1)
        output.passed = (chunk, named["current_microbatch"])  # type: ignore[attr-defined]
        return ([output] if chunks == 1 else output), torch.zeros([], dtype=torch.int)

    def backward_step(_: Any, output: Any, *__: Any) -> Any:
        passed = (output[0] if chunks == 1 else output).passed
        passes.append(["backward", *passed])
        return torch.zeros(1)

    class Communicator:
        pp_group = SimpleNamespace(size=lambda: stages, rank=lambda: stage)
        virtual_pipeline_model_parallel_size = chunks if chunks > 1 else None
        config = None

        def __getattr__(self, name: str) -> Any:
            several = {"send_forward_backward_recv_forward_backward"}
            return lambda *_, **__: (torch.zeros(1),) * 2 if name in several else torch.zeros(1)

    size_one = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    groups = SimpleNamespace(
        tp=size_one, cp=size_one, embd=None, pos_embd=None, dp_cp=size_one, pp=Communicator.pp_group
    )
    values = dict.fromkeys(
        (
            "finalize_model_grads_func",
            "timers",
            "no_sync_func",
            "grad_sync_func",
            "param_sync_func",
            "num_microbatches_with_partial_activation_checkpoints",
        )
    )
    config = SimpleNamespace(
        **values,
        overlap_p2p_comm=False,
        batch_p2p_comm=True,
        hidden_size=1,
        overlap_p2p_comm_warmup_flush=False,
        sequence_parallel=False,
        microbatch_group_size_per_vp_stage=group,
        deallocate_pipeline_outputs=False,
        overlap_moe_expert_parallel_comm=False,
        fine_grained_activation_offloading=False,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        cuda_graph_impl="none",
        variable_seq_lengths=False,
        delay_wgrad_compute=False,
    )
    Communicator.config = config  # type: ignore[assignment]
    model = [torch.nn.Identity() for _ in range(chunks)]
    run = schedules.forward_backward_pipelining_with_interleaving
    if chunks == 1:
        run = schedules.forward_backward_pipelining_without_interleaving
    zeros = torch.zeros

    def on_cpu(*shape: Any, **named: Any) -> Any:
        named.pop("device", None)
        return zeros(*shape, **named)

    with contextlib.ExitStack() as patches:
        for name, value in (
            ("forward_step", forward_step),
            ("backward_step", backward_step),
            ("get_model_config", lambda _: config),
            ("get_model_type", lambda _: None),
            ("get_tensor_shapes", lambda **_: [(1,)]),
            ("deallocate_output_tensor", lambda *_: None),
        ):
            patches.enter_context(mock.patch.object(schedules, name, value))
        patches.enter_context(mock.patch.object(torch, "zeros", on_cpu))
        run(
            forward_step_func=None,
            data_iterator=[None] * chunks,
            model=model if chunks > 1 else model[0],
            num_microbatches=micro_batches,
            seq_length=1,
            micro_batch_size=1,
            p2p_communicator=Communicator(),
            pg_collection=groups,
        )
    return passes


if __name__ == "__main__":
    recorded = {
        "orders": {name_of(case): record(*case) for case in CASES},
        "layers": {name_of(case): layers_of(*case) for case in LAYER_CASES},
    }
    FILE.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")
