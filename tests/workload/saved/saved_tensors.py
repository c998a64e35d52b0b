"""Bytes that real PyTorch modules save for backward, on the meta device.

The meta device has neither autocast nor fused attention nor fused dropout; `CudaKernels` stands in
for them with what CUDA's kernels save.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

HALF = torch.bfloat16

NARROWED = frozenset(
    {
        functional.linear,
        functional.conv1d,
        functional.conv2d,
        torch.conv2d,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.addmm,
        torch.bmm,
        torch.baddbmm,
        torch.Tensor.baddbmm,
        functional.scaled_dot_product_attention,
    }
)
WIDENED = frozenset(
    {
        functional.layer_norm,
        functional.softmax,
        torch.softmax,
        functional.log_softmax,
        functional.cross_entropy,
        torch.pow,
        torch.Tensor.pow,
        torch.rsqrt,
        torch.Tensor.softmax,
        functional.nll_loss,
        functional.group_norm,
        functional.rms_norm,
        functional.mse_loss,
    }
)
"""What CUDA's autocast runs in half precision and what in fp32 (aten/src/ATen/autocast_mode.h)."""


def _is_fused(query: Any, key: Any, *_: Any, enable_gqa: bool = False, **__: Any) -> bool:
    """No fused kernel broadcasts heads (check_batch_size_and_num_heads_dense)."""
    return enable_gqa or query.shape[-3] == key.shape[-3]


class FusedAttention(torch.autograd.Function):
    """Saves query, key, value, a bias, result and the fp32 logarithm of each row's sum."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any) -> torch.Tensor:
        batch, heads, tokens, size = query.shape
        result = torch.empty_like(query)
        if value.shape[-1] != size:  # latent attention: as the kernel lays it, token by token
            result = query.new_empty(batch, tokens, heads, value.shape[-1]).transpose(1, 2)
        ctx.save_for_backward(
            query,
            key,
            value,
            result,
            bias,
            query.new_empty(batch, heads, tokens, dtype=torch.float32),
        )
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, _, bias, _ = ctx.saved_tensors
        own = None if bias is None else torch.empty_like(bias)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), own


class FusedNorm(torch.autograd.Function):
    """Saves what ``_fused_rms_norm`` does: its input and the scale of each row in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> torch.Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(*x.shape[:-1], 1, dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class CudaKernels(TorchFunctionMode):
    """Casts as autocast does, if asked to, and saves as CUDA's kernels do; `fused`: attention."""

    def __init__(self, *, autocast: bool, fused: bool = True) -> None:
        super().__init__()
        self.autocast, self.casts, self.fused = autocast, {}, fused

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._cast(each, dtype) for each in value)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if value.dtype == dtype:
            return value
        if not (value.is_leaf and value.requires_grad and dtype == HALF):
            return value.to(dtype)
        if id(value) not in self.casts:
            self.casts[id(value)] = value.to(dtype)
        return self.casts[id(value)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__bool__:
            return True  # "all positions count from zero": no packed sequences
        dtype = HALF if func in NARROWED else torch.float32 if func in WIDENED else None
        if self.autocast and dtype is not None:
            args = self._cast(args, dtype)
            kwargs = {name: self._cast(each, dtype) for name, each in kwargs.items()}
        if func is functional.multi_head_attention_forward:  # written in Python: go on inside of it
            with self, patch.object(functional, "has_torch_function", lambda _tensors: False):
                return func(*args, **kwargs)
        fused = self.fused and func is functional.scaled_dot_product_attention
        if fused and _is_fused(*args, **kwargs):
            mask = kwargs.get("attn_mask")
            bias = mask if mask is not None and mask.is_floating_point() else None
            named = [kwargs[name] for name in ("query", "key", "value")[len(args) :]]
            return FusedAttention.apply(*args[:3], *named, bias)
        if func is functional.rms_norm:
            return FusedNorm.apply(args[0], args[2] if len(args) > 2 else kwargs["weight"])
        if func is functional.dropout:
            rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            training = kwargs.get("training", args[2] if len(args) > 2 else True)
            return torch.native_dropout(args[0], rate, True)[0] if rate and training else args[0]
        return func(*args, **kwargs)


def saved_bytes(
    module: torch.nn.Module, loss: Callable[[torch.nn.Module], torch.Tensor], *, autocast: bool
) -> float:
    """Bytes of all storages that forward saves, without parameters and buffers."""
    own = {tensor.untyped_storage()._cdata for tensor in (*module.parameters(), *module.buffers())}
    held: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            held[storage._cdata] = storage
        return tensor

    kernels = CudaKernels(autocast=autocast)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), kernels:
        loss(module)
    return float(sum(storage.nbytes() for storage in held.values()))
