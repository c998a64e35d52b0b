"""Collectives of maps, tables, norms and losses that the ranks of a tensor group share.

A map is cut by columns or by rows. By columns each rank needs the whole input and has a part of the
result; the parts of the input's gradient are added up. By rows it is the other way round (Shoeybi
et al. 2019, arXiv 1909.08053, section 3). With sequence parallelism the whole is gathered from, and
the sum scattered to, the ranks' tokens (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2).

Sources: Megatron-Core 0.16 ``tensor_parallel/layers.py`` and ``cross_entropy.py``; torch 2.13
``torch.distributed.tensor.parallel``, whose calls the tests record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfmodel.workload.shards.calls import CallOp, CallPhase, LayerCall
from perfmodel.workload.shards.shard import Shard

Calls = tuple[LayerCall, ...]

HALF = 0.5
"""Backward of a map has two products, of its input's and of its weight's gradient."""


def column_calls(shard: Shard, elements: float, *, first: bool = True) -> Calls:
    """Calls of a map cut by columns.

    `elements`: of its whole input, per sample.
    `first`: whether it is the first of the maps of this input.
    """
    if shard.tensor == 1 or not (first or shard.library == "torch"):
        return ()
    hidden = HALF if shard.hides != "none" else 0.0
    if not shard.sequence_parallel:
        return (_tensor_call(shard, "all_reduce", elements, "backward", overlap=hidden),)
    if not first:
        return ()
    calls = [_before(shard, "all_gather", elements, "forward", _chunked(shard))]
    if shard.gathers_again:
        calls.append(_before(shard, "all_gather", elements, "backward", hidden))
    elif shard.hides == "asynchronous":
        hidden = HALF * _chunked(shard)  # cut with the product that it adds up
    return (*calls, _tensor_call(shard, "reduce_scatter", elements, "backward", overlap=hidden))


def row_calls(shard: Shard, elements: float) -> Calls:
    """Calls of a map cut by rows.

    `elements`: of its whole result, per sample.
    """
    if shard.tensor == 1:
        return ()
    if not shard.sequence_parallel:
        return (_tensor_call(shard, "all_reduce", elements, "forward"),)
    hidden = _chunked(shard)
    return (
        _tensor_call(shard, "reduce_scatter", elements, "forward", overlap=hidden),
        _before(shard, "all_gather", elements, "backward", HALF * hidden),
    )


def joined_calls(shard: Shard, elements: float) -> Calls:
    """Calls that make the result of a map cut by columns whole, and leave each rank its tokens.

    The gather's backward is a cut; that of the cut by tokens is a gather.

    `elements`: of its whole result, per sample.
    """
    if shard.tensor == 1:
        return ()
    gather = _tensor_call(shard, "all_gather", elements, "forward")
    if not shard.sequence_parallel:
        return (gather,)
    return gather, _before(shard, "all_gather", elements, "backward")


def table_calls(shard: Shard, elements: float, *, whole_first: bool) -> Calls:
    """Calls of an embedding whose rows are shared.

    `elements`: of its whole result, per sample.
    `whole_first`: whether something else is added to the whole result before tokens are split.
    """
    if shard.tensor == 1:
        return ()
    if not shard.sequence_parallel:
        return (_tensor_call(shard, "all_reduce", elements, "forward"),)
    op: CallOp = "all_reduce" if whole_first else "reduce_scatter"
    return (
        _tensor_call(shard, op, elements, "forward"),
        _before(shard, "all_gather", elements, "backward"),
    )


def loss_calls(shard: Shard, tokens: float, vocabulary: int) -> Calls:
    """Calls of cross entropy over shared logits: of each token the greatest, its own, the sum.

    Or one gather of all logits, whose gradient each rank has.
    """
    if shard.tensor == 1:
        return ()
    if not shard.parallel_loss:
        return (_tensor_call(shard, "all_gather", tokens * vocabulary, "forward"),)
    return (_tensor_call(shard, "all_reduce", tokens, "forward", times=3, dtype="fp32"),)


def norm_calls(shard: Shard, tensors: Sequence[float], *, heads: bool = False) -> Calls:
    """Sums of the gradients of replicated tensors of which each rank saw some tokens only.

    Megatron sends those of all layers together after backward, torch each on its own.

    `tensors`: their elements.
    `heads`: whether each rank saw its own heads instead.
    """
    if not (shard.sequence_parallel or (heads and shard.tensor > 1)):
        return ()
    sizes: Iterable[float] = tensors if shard.library == "torch" else (sum(tensors),)
    return tuple(_tensor_call(shard, "all_reduce", size, "step") for size in sizes if size)


def _chunked(shard: Shard) -> float:
    """Share of a product that runs beside its transfers: its own tokens need none."""
    return (shard.tensor - 1) / shard.tensor if shard.hides == "asynchronous" else 0.0


def _before(
    shard: Shard, op: CallOp, elements: float, phase: CallPhase, overlap: float = 0.0
) -> LayerCall:
    return LayerCall("tensor", op, float(elements), shard.tensor, phase, "before", overlap=overlap)


def _tensor_call(
    shard: Shard,
    op: CallOp,
    elements: float,
    phase: CallPhase,
    *,
    times: int = 1,
    overlap: float = 0.0,
    dtype: str | None = None,
) -> LayerCall:
    return LayerCall(
        "tensor", op, float(elements), shard.tensor, phase, "after", times, overlap, dtype
    )
