"""Collectives of attention whose tokens the ranks of a context group share.

Sources: TransformerEngine 2, ``pytorch/attention/dot_product_attention/context_parallel.py``, whose
"p2p", "a2a" and "all_gather" these are; torch 2.13
``torch.distributed.tensor.experimental._context_parallel``.
"""

from __future__ import annotations

from perfmodel.workload.shards.calls import CallOp, CallPhase, LayerCall
from perfmodel.workload.shards.map_calls import Calls
from perfmodel.workload.shards.shard import Shard


def attention_calls(shard: Shard, queries: float, pairs: float) -> Calls:
    """Calls of one layer's attention.

    `queries`: elements of a rank's queries, of its own tokens and heads, per sample.
    `pairs`: elements of its keys, as many as of its values.
    """
    if shard.context == 1:
        return ()
    if shard.context_kind == "ulysses":
        inputs = (queries, pairs, pairs)
        return (
            *(_call(shard, "all_to_all", each, "forward", before=True) for each in inputs),
            _call(shard, "all_to_all", queries, "forward"),
            _call(shard, "all_to_all", queries, "backward", before=True),
            *(_call(shard, "all_to_all", each, "backward") for each in inputs),
        )
    if shard.library == "torch":
        return _torch_calls(shard, 2 * pairs)
    if shard.context_kind == "ring":
        return _ring_calls(shard, 2 * pairs)
    whole = shard.context * pairs
    return (
        _call(shard, "all_gather", whole, "forward", before=True, times=2),
        _call(shard, "all_gather", whole, "backward", before=True, times=2),
        _call(shard, "reduce_scatter", whole, "backward", times=2),
    )


def _ring_calls(shard: Shard, block: float) -> Calls:
    """Keys and values go around beside the blocks' kernels; in backward their gradients do, too.

    Backward begins with the block that forward ended with: a block is sent while the first to the
    last but one are worked on, its gradient while the second to the last are, both in one message
    where both are. The last of the c kernels of forward has nothing to send.
    """
    c = shard.context
    calls = (_around(shard, block, "forward", c - 1), _around(shard, block, "backward", 2))
    return (*calls, _around(shard, 2 * block, "backward", c - 2)) if c > 2 else calls


def _torch_calls(shard: Shard, block: float) -> Calls:
    """Keys and values in one buffer, and their gradients around a ring in fp32.

    The gather runs beside the first of the c kernels. The last gradient goes home with nothing to
    run beside; where blocks of half precision travel with gradients, these take two thirds of what
    both run beside, as of the bytes.
    """
    c = shard.context
    if shard.context_kind == "all_gather":
        phases: tuple[CallPhase, ...] = ("forward", "backward")
        inputs = [
            _call(shard, "all_gather", c * block, phase, before=True, overlap=1 / c)
            for phase in phases
        ]
        hidden = (c - 1) / c
    else:
        inputs = [
            _around(shard, block, "forward", c - 1),
            _around(shard, block, "backward", c - 1, overlap=(1 + (c - 2) / 3) / c),
        ]
        hidden = (1 + (c - 2) * 2 / 3) / c
    gradients = _around(shard, block, "backward", c - 1, overlap=hidden, dtype="fp32")
    home = _call(shard, "send_recv", block, "backward", dtype="fp32")
    return (*inputs, gradients, home)


def _around(
    shard: Shard,
    elements: float,
    phase: CallPhase,
    times: int,
    *,
    overlap: float | None = None,
    dtype: str | None = None,
) -> LayerCall:
    """So many transfers around the ring, each beside one of the kernels unless stated."""
    hidden = times / shard.context if overlap is None else overlap
    return _call(
        shard, "send_recv", elements, phase, before=True, times=times, overlap=hidden, dtype=dtype
    )


def _call(
    shard: Shard,
    op: CallOp,
    elements: float,
    phase: CallPhase,
    *,
    before: bool = False,
    times: int = 1,
    overlap: float = 0.0,
    dtype: str | None = None,
) -> LayerCall:
    return LayerCall(
        "context",
        op,
        float(elements),
        shard.context,
        phase,
        "before" if before else "after",
        times,
        overlap,
        dtype,
    )
