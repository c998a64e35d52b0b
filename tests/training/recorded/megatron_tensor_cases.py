"""Megatron-Core's tensor parallelism, for `run_cases`; needs ``megatron-core``, runs on the CPU."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tests.training.recorded.megatron_cases import OnCpu, parallel_state
from tests.training.recorded.recording_group import CALLS, enter_phase

from megatron.core import tensor_parallel  # isort: skip
from megatron.core.distributed import (  # isort: skip
    DistributedDataParallel,
    DistributedDataParallelConfig,
)
from megatron.core.distributed.finalize_model_grads import finalize_model_grads  # isort: skip
from megatron.core.models.gpt import GPTModel  # isort: skip
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # isort: skip
from megatron.core.tensor_parallel import random  # isort: skip
from megatron.core.transformer import TransformerConfig, torch_norm  # isort: skip

LAYERS, WIDTH, HEADS, WORDS, TOKENS, BATCH = 2, 32, 8, 64, 12, 3
STEPS = 3


def make_norm(_: Any, config: Any, hidden_size: int, eps: float = 1e-5, **__: Any) -> Any:
    """A norm whose tensors say that each rank sees some tokens only, as Apex's do."""
    norm = torch.nn.LayerNorm(hidden_size, eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


torch_norm.WrappedTorchNorm.__new__ = make_norm
random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
random.CudaRNGStatesTracker.fork = lambda *_, **__: nullcontext()
random._set_cuda_rng_state = lambda *_, **__: None


def settings(**fields: Any) -> dict[str, Any]:
    """Fields of ``TransformerConfig``."""
    return {"accumulate": 1, "dtype": "fp32", "fields": fields}


def train(case: dict[str, Any]) -> None:
    """Train some steps with a tensor group of all ranks."""
    with OnCpu():
        _train(case["fields"])


def _train(fields: dict[str, Any]) -> None:
    ranks = dist.get_world_size()
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    tensor_parallel.random.initialize_rng_tracker(force_reset=True)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        use_cpu_initialization=True,
        tensor_model_parallel_size=ranks,
        perform_initialization=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        pipeline_dtype=torch.float32,
        **fields,
    )
    config.finalize_model_grads_func = finalize_model_grads
    net = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        WORDS,
        TOKENS,
        share_embeddings_and_output_weights=True,
        position_embedding_type="learned_absolute",
    )
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), net)
    words = torch.arange(BATCH * TOKENS).reshape(BATCH, TOKENS) % WORDS
    places = torch.arange(TOKENS).expand(BATCH, TOKENS)
    mask = torch.ones(TOKENS, TOKENS).triu(1).bool()[None, None]
    for step in range(STEPS):
        model.zero_grad_buffer()
        enter_phase(f"step {step} forward 0")
        loss = model(words, places, mask, labels=words).mean()
        enter_phase(f"step {step} backward 0")
        loss.backward()
        enter_phase(f"step {step} optimizer")
        finalize_model_grads([model])
    for name, parameter in net.named_parameters():
        CALLS.append(
            {
                "op": f"{name} {json.dumps(list(parameter.shape))}",
                "bytes": parameter.nbytes,
                "dtype": "",
                "tensors": 1,
                "group": [],
                "phase": "memory",
            }
        )


FULL: dict[str, Any] = {
    "recompute_granularity": "full",
    "recompute_method": "block",
    "recompute_num_layers": LAYERS,
}
SETTINGS = {
    "tensor": settings(),
    "sequence": settings(sequence_parallel=True),
    "tensor, recompute": settings(**FULL),
    "sequence, recompute": settings(sequence_parallel=True, **FULL),
}
CASES = {name: partial(train, case) for name, case in SETTINGS.items()}
