"""Ring attention of torch's context parallelism, for `run_cases`.

``context_parallel`` itself needs kernels that only accelerators have; its rings are run with those
of the CPU in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental._context_parallel import _attention

from tests.training.recorded.recording_group import enter_phase

BATCH, HEADS, KV_HEADS, TOKENS, HEAD = 3, 4, 4, 16, 8

ATEN = torch.ops.aten


def forward_kernel(q: Any, k: Any, v: Any, is_causal: bool = False, **_: Any) -> Any:
    return ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)


def backward_kernel(
    grad_out: Any = None,
    query: Any = None,
    key: Any = None,
    value: Any = None,
    out: Any = None,
    logsumexp: Any = None,
    is_causal: bool = False,
    **_: Any,
) -> Any:
    return ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, 0.0, is_causal
    )


def case(method: str) -> Callable[[], None]:
    """One layer's attention forward and backward."""

    def run() -> None:
        _attention.set_rotate_method(method)
        own = TOKENS // dist.get_world_size()
        group = dist.distributed_c10d._get_default_group()
        q, k, v = (torch.rand(BATCH, HEADS, own, HEAD) for _ in range(3))
        enter_phase("step 1 forward")
        out, sums, *_ = _attention._templated_ring_attention(
            group, 2, forward_kernel, q, k, v, is_causal=True
        )
        enter_phase("step 1 backward")
        _attention._templated_ring_attention_backward(
            group,
            2,
            backward_kernel,
            torch.ones_like(out),
            "grad_out",
            q,
            k,
            v,
            out,
            sums,
            is_causal=True,
        )

    return run


CASES = {"ring": case("alltoall"), "all_gather": case("allgather")}
