"""A small decoder under torch's tensor parallelism, for `run_cases`."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable import checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from tests.training.recorded.recording_group import CALLS, enter_phase

LAYERS, WIDTH, HEADS, KV_HEADS, INNER, WORDS, TOKENS, BATCH = 2, 32, 8, 4, 48, 64, 12, 3
HEAD = WIDTH // HEADS


class Attention(nn.Module):
    """Grouped-query attention of as many heads as its maps have."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each(x).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """Gated."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, INNER, bias=False)
        self.up_proj = nn.Linear(WIDTH, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), FeedForward()
        self.input_layernorm = nn.RMSNorm(WIDTH)
        self.post_attention_layernorm = nn.RMSNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, blocks, last norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(words)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Net(nn.Module):
    """The decoder and its head."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Decoder()
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.model(words))


def split(net: Net, mesh: DeviceMesh, *, sequence: bool, parallel_loss: bool) -> None:
    """Share maps and tables among the ranks of a mesh, as torchtitan does."""
    tokens = Shard(1) if sequence else Replicate()
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=tokens)
    parallelize_module(
        net,
        mesh,
        {
            "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
            "lm_head": ColwiseParallel(
                input_layouts=tokens,
                output_layouts=Shard(-1) if parallel_loss else Replicate(),
                use_local_output=not parallel_loss,
            ),
            **({"model.norm": SequenceParallel()} if sequence else {}),
        },
    )
    for block in net.model.layers:
        plan = {
            "self_attn.q_proj": column,
            "self_attn.k_proj": column,
            "self_attn.v_proj": column,
            "self_attn.o_proj": row,
            "mlp.gate_proj": column,
            "mlp.up_proj": column,
            "mlp.down_proj": row,
        }
        if sequence:
            whole = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
            plan |= {
                "input_layernorm": SequenceParallel(),
                "self_attn": whole,
                "post_attention_layernorm": SequenceParallel(),
                "mlp": whole,
            }
        parallelize_module(block, mesh, plan)


def train(net: nn.Module, *, parallel_loss: bool) -> None:
    """Train two steps, calls noted under ``step I forward``, ``backward``, ``optimizer``."""
    optimizer = torch.optim.AdamW(net.parameters(), 0.1)
    words = torch.arange(BATCH * TOKENS).reshape(BATCH, TOKENS) % WORDS
    for number in range(2):
        enter_phase(f"step {number} forward")
        logits = net(words)
        if parallel_loss:
            with loss_parallel():
                loss = functional.cross_entropy(logits.flatten(0, 1), words.flatten())
                enter_phase(f"step {number} backward")
                loss.backward()
        else:
            loss = functional.cross_entropy(logits.flatten(0, 1), words.flatten())
            enter_phase(f"step {number} backward")
            loss.backward()
        enter_phase(f"step {number} optimizer")
        optimizer.step()
        optimizer.zero_grad()


def case(
    *, sequence: bool = False, parallel_loss: bool = True, recompute: bool = False, data: int = 1
) -> Callable[[], None]:
    """Train with a tensor group of all ranks, or of all in each of `data` shards."""

    def run() -> None:
        ranks = dist.get_world_size()
        mesh = init_device_mesh("cpu", (data, ranks // data), mesh_dim_names=("data", "tensor"))
        net = Net()
        split(net, mesh["tensor"], sequence=sequence, parallel_loss=parallel_loss)
        if recompute:
            for block in net.model.layers:
                checkpoint(block)
        if data > 1:
            for block in net.model.layers:
                fully_shard(block, mesh=mesh["data"])
            fully_shard(net, mesh=mesh["data"])
        train(net, parallel_loss=parallel_loss)
        note_tensors(net)

    return run


def note_tensors(net: nn.Module) -> None:
    """Note the shapes that rank 0 keeps."""
    for name, parameter in net.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        CALLS.append(
            {
                "op": f"{name} {json.dumps(list(local.shape))}",
                "bytes": local.nbytes,
                "dtype": "",
                "tensors": 1,
                "group": [],
                "phase": "memory",
            }
        )


CASES = {
    "tensor": case(),
    "tensor, gathered loss": case(parallel_loss=False),
    "sequence": case(sequence=True),
    "sequence, gathered loss": case(sequence=True, parallel_loss=False),
    "sequence, recompute": case(sequence=True, recompute=True),
}
if dist.is_initialized() and dist.get_world_size() == 4:
    CASES = {"fsdp, sequence": case(sequence=True, data=2), "fsdp, tensor": case(data=2)}
