"""What compiled layers keep, against torch's own partition of forward and backward.

Graphs are traced and partitioned as for torch.compile's Inductor, on fake tensors: nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="the partitioner is torch's, of the extra 'torch'")

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from perfmodel.workload import Workload
from perfmodel.workload.memory.activations import stored_bytes
from perfmodel.workload.memory.blocks import only_blocks_fuse
from perfmodel.workload.memory.recompute import Recompute
from perfmodel.workload.zoo.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.llama import llama
from perfmodel.workload.zoo.text_decoder import gpt, gpt_shape
from tests.activations import activation_bytes

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations

BATCH, TOKENS, WIDTH, HEADS, WIDE, WORDS, LAYERS = 2, 1024, 512, 8, 1536, 8000, 2


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * normed.type_as(x)


def mapped(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def attend(*projected: Any) -> Any:
    heads = (each.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2) for each in projected)
    result = functional.scaled_dot_product_attention(*heads, is_causal=True)
    return result.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH)


def rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = torch.ones(TOKENS, x.shape[-1], dtype=x.dtype)
    return x * angles + torch.cat((-x[..., half:], x[..., :half]), -1) * angles


class Gated(nn.Module):
    """A block of Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm() for _ in range(2))
        self.maps = nn.ModuleList(mapped(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up, self.down = (
            mapped(WIDTH, WIDE),
            mapped(WIDTH, WIDE),
            mapped(WIDE, WIDTH),
        )

    def forward(self, x: Any) -> Any:
        q, k, v, o = self.maps
        y = self.norms[0](x)
        x = x + o(attend(rotated(q(y)), rotated(k(y)), v(y)))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Plain(nn.Module):
    """A block of GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        x = x + self.out(attend(*self.qkv(self.first(x)).split(WIDTH, -1)))
        return x + self.narrow(functional.gelu(self.widen(self.second(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, block: Callable[[], nn.Module], norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(block() for _ in range(LAYERS)))
        self.norm, self.head = norm(), mapped(WIDTH, WORDS)

    def forward(self, words: Any) -> Any:
        logits = self.head(self.norm(self.blocks(self.table(words))))
        return functional.cross_entropy(logits.float().flatten(0, 1), words.flatten())


def partitioned_bytes(make: Callable[[], nn.Module]) -> float:
    """Bytes that the compiled forward hands to backward, without parameters and inputs."""
    saved: dict[Any, float] = {}

    def partition(joint: Any, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **more
        )
        for node in forward.graph.output_node().args[0][num_fwd_outputs:]:
            source = node
            while any(word in str(source.target) for word in ("view", "permute", "alias")):
                source = source.args[0]
            value = source.meta.get("val")
            if source.op != "placeholder" and isinstance(value, torch.Tensor):
                saved[source] = float(value.numel() * value.element_size())
        return forward, backward

    def keep(graph: Any, _inputs: Any) -> Any:
        return graph

    backend = aot_autograd(
        fw_compiler=keep,
        bw_compiler=keep,
        decompositions=select_decomp_table(),
        partition_fn=partition,
    )
    torch._dynamo.reset()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode():
            words = torch.zeros(BATCH, TOKENS, dtype=torch.long)
            torch.compile(make(), backend=backend, fullgraph=True)(words)
    finally:
        torch.set_default_dtype(torch.float32)
    return sum(saved.values())


LLAMA = DecoderShape(LAYERS, WIDTH, HEADS, HEADS, WIDE, WORDS, TOKENS)


def llama_of(**changes: Any) -> Workload:
    return llama("small", dtype="bf16", sequence_length=TOKENS, shape=LLAMA, **changes)


def gpt_of() -> Workload:
    shape = gpt_shape(LAYERS, WIDTH, HEADS, TOKENS, WORDS)
    return gpt("small", dtype="bf16", sequence_length=TOKENS, shape=shape, dropout=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "counted"),
    [
        (lambda: Model(Gated, Norm), llama_of()),
        (lambda: Model(Plain, lambda: nn.LayerNorm(WIDTH)), gpt_of()),
    ],
    ids=["llama", "gpt"],
)
def test_compiled_layers_keep_what_torch_hands_to_backward(
    make: Callable[[], nn.Module], counted: Workload
) -> None:
    ours = activation_bytes(counted, BATCH, "bf16", compiled=True)
    assert ours == pytest.approx(partitioned_bytes(make), rel=1e-3)


def test_what_compiled_blocks_keep_is_less_but_for_the_head() -> None:
    eager = activation_bytes(llama_of(), BATCH, "bf16")
    blocks = activation_bytes(only_blocks_fuse(llama_of()), BATCH, "bf16", compiled=True)
    whole = activation_bytes(llama_of(), BATCH, "bf16", compiled=True)
    assert whole < blocks < eager
    logits = BATCH * TOKENS * WORDS
    norm = BATCH * TOKENS * WIDTH
    scales = BATCH * TOKENS
    # softmax, norm and scales of its rows in fp32
    assert blocks - whole == pytest.approx(2 * logits + 4 * norm + 4 * scales)


def test_compiled_operations_drop_a_result_that_backward_does_not_read() -> None:
    """What ``down_proj`` puts out is only added to the stream."""
    by_operation = Recompute("operations")
    kept = [
        stored_bytes(
            only_blocks_fuse(llama_of()),
            BATCH,
            "bf16",
            recompute=by_operation,
            compiled=compiled,
        )
        for compiled in (False, True)
    ]
    assert kept[0] - kept[1] == pytest.approx(2 * LAYERS * BATCH * TOKENS * WIDTH)
