"""Functions whose kernels on a GPU differ from those on a CPU, replaced while a step is recorded.

Fake tensors here are those of a CPU, so that no GPU is needed. There, attention with dropout is
not fused, dropout draws its mask as a tensor of numbers, and autocast widens other functions; the
mode below gives what CUDA's kernels do.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.torch_modules.operators import OPERATOR_NAMES, map_tensors
from perfmodel.workload.kernels.shapes import Attention

AttentionRecord = Callable[[Attention, float, bool, bool], None]
"""Shape, bytes moved, whether scores are dropped out, and whether it has a gradient."""


def device_kernels(
    record: AttentionRecord, own_cast: Callable[[Any], None], *, autocast: bool
) -> Any:
    """Make the mode, in which a step runs.

    `record`: called for each fused attention.
    `own_cast`: called for each copy of a parameter in half precision.
    `autocast`: whether matrix functions run in half precision.
    """
    import torch
    from torch.nn import functional

    copies: dict[int, Any] = {}
    narrow, wide = _functions("half_functions"), _functions("wide_functions")
    replaced = {
        functional.scaled_dot_product_attention: _make_fused_attention(record),
        functional.dropout: _dropout,
    }

    def cast(dtype: Any, tensor: Any) -> Any:
        """Cast as autocast does, and trained parameters once per step."""
        if not tensor.is_floating_point() or tensor.dtype in {dtype, torch.float64}:
            return tensor
        if not isinstance(tensor, torch.nn.Parameter) or dtype != torch.bfloat16:
            return tensor.to(dtype)
        if id(tensor) in copies:
            return copies[id(tensor)]
        copied = tensor.to(dtype)
        own_cast(copied)
        if tensor.requires_grad:  # autocast keeps copies of trained ones alone
            copies[id(tensor)] = copied
        return copied

    def run(func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.Tensor.__bool__ and _asks_for_packed_sequences():
            return True
        dtype = torch.bfloat16 if func in narrow else torch.float32 if func in wide else None
        if autocast and dtype is not None:
            args, kwargs = map_tensors((args, kwargs), partial(cast, dtype))
        return replaced.get(func, func)(*args, **kwargs)

    return _replacing(run)


def _replacing(run: Callable[[Any, Any, Any], Any]) -> Any:
    """Make a mode in which `run` calls each function of torch, also those that call others."""
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    class Replacing(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
        """See the function."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is functional.multi_head_attention_forward:
                return _run_inside(self, func, args, kwargs or {})
            return run(func, args, kwargs or {})

    return Replacing()


def _functions(kind: str) -> frozenset[Any]:
    import torch

    whole: Any = torch

    def found(name: str) -> Any:
        """Return the function of a dotted name, or None where this version of torch lacks it."""
        return reduce(lambda home, part: getattr(home, part, None), name.split("."), whole)

    return frozenset(map(found, OPERATOR_NAMES[kind])) - {None}


def _asks_for_packed_sequences() -> bool:
    """Whether a mask of transformers asks whether positions begin anew within a sequence."""
    frame = sys._getframe(3)  # of what called the function of torch
    return str(frame.f_globals.get("__name__", "")).startswith("transformers.masking_utils")


def _run_inside(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Go on inside of a function that is written in Python."""
    from unittest.mock import patch

    from torch.nn import functional

    with mode, patch.object(functional, "has_torch_function", lambda _tensors: False):
        return func(*args, **kwargs)


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002, ARG001
    """Dropout that keeps a mask of one byte an element, as the fused kernel does."""
    import torch

    return torch.native_dropout(input, p, True)[0] if p and training else input


def _make_fused_attention(record: AttentionRecord) -> Callable[..., Any]:
    import torch
    from torch.nn import functional

    class FusedAttention(torch.autograd.Function):
        """Keeps query, key, value, result and a learned bias; sums of rows follow from scores."""

        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any, is_flash: bool) -> Any:
            lead, size = query.shape[:-2], value.shape[-1]
            if size == query.shape[-1] and is_flash:  # laid out as its query (mha_fwd)
                result = torch.empty_like(query)
            else:  # token by token (_efficient_attention_forward)
                result = query.new_empty(*lead[:-1], query.shape[-2], lead[-1], size).transpose(
                    -3, -2
                )
            ctx.save_for_backward(query, key, value, result, bias)
            return result

        @staticmethod
        def backward(ctx: Any, _gradient: Any) -> Any:
            query, key, value, _, bias = ctx.saved_tensors
            of_bias = None if bias is None else torch.empty_like(bias)
            return *map(torch.empty_like, (query, key, value)), of_bias, None

    def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if query.dim() < 3:
            query, key, value = (each.unsqueeze(0) for each in (query, key, value))
        if key.shape[-3] != query.shape[-3] and not kwargs.get("enable_gqa"):
            # no fused kernel broadcasts heads (check_batch_size_and_num_heads_dense)
            return functional.scaled_dot_product_attention(query, key, value, *args, **kwargs)
        record(*describe_attention(query, key, value, *args, **kwargs))
        attend: Callable[..., Any] = FusedAttention.apply
        mask = args[0] if args else kwargs.get("attn_mask")
        is_learned = isinstance(mask, torch.Tensor) and mask.requires_grad
        return attend(query, key, value, mask if is_learned else None, mask is None)

    return attention


def describe_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> tuple[Attention, float, bool, bool]:
    """Shape of ``scaled_dot_product_attention``, bytes, whether it drops out and has a gradient."""
    sequences, heads = _lead(query)
    shape = Attention(
        tokens=query.shape[-2],
        heads=heads,
        kv_heads=_lead(key)[1],
        head_size=query.shape[-1],
        causal=is_causal or _is_square_mask(attn_mask, query, key),
        sequences=sequences,
        keys=None if key.shape[-2] == query.shape[-2] else key.shape[-2],
        value_head_size=None if value.shape[-1] == query.shape[-1] else value.shape[-1],
    )
    needs_gradient = any(each.requires_grad for each in (query, key, value))
    return shape, query.element_size() * shape.elements, bool(dropout_p), needs_gradient


def _lead(tensor: Any) -> tuple[int, int]:
    """Sequences and heads."""
    *first, heads = tensor.shape[:-2]
    return int(math.prod(first)), int(heads)


def _is_square_mask(mask: Any, query: Any, key: Any) -> bool:
    """Whether masks of transformers' decoders are meant: of all tokens by all tokens.

    A mask on fake tensors has no values; one that has a row of its own for each query is causal, as
    those that hide padding alone are the same for all queries.
    """
    if mask is None or mask.dim() < 2 or mask.is_floating_point():  # the last: a bias of positions
        return False
    return bool(mask.shape[-2] == query.shape[-2] == key.shape[-2] and mask.stride(-2) != 0)


def data_fault(field: str, reason: str) -> InputError:
    """Control flow that depends on data, which fake tensors do not have."""
    return InputError(
        Fault(
            field,
            reason,
            "a module whose control flow needs no values of tensors; or capture(..., real=True), "
            "--real, which runs forward and backward once on real tensors where the module is",
        )
    )


def real_kernels(attention_call: Callable[..., Any]) -> Any:
    """Make the mode of a step on real tensors: attention runs as it is, and is noted as one kernel.

    `attention_call`: makes the context in which an attention with these arguments runs.
    """
    from torch.nn import functional

    def run(func: Any, args: Any, kwargs: Any) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        with attention_call(*args, **kwargs):
            return func(*args, **kwargs)

    return _replacing(run)
