"""Collectives of layers that ranks share: of maps, norms, tables, the loss and attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from perfmodel.workload.shard import Shard

CallGroup = Literal["tensor", "context", "expert", "expert_rail", "expert_node"]
"""Ranks that share a layer: communicators of a plan have these names. "expert_rail", "expert_node":
those of an expert group that have the same place in their nodes, and those in one node."""

CALL_GROUPS: tuple[str, ...] = get_args(CallGroup)

CallOp = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
]
"""Operations; "send_recv": each rank sends to the next of a ring and receives from the one before.
"""

CallPhase = Literal["forward", "backward", "step"]
"""When: in each forward, in each backward, or once a step after the last backward."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A collective that a layer calls in one of its passes.

    Parameters
    ----------
    group : {"tensor", "context", "expert", "expert_rail", "expert_node"}
    op : str
    elements : float
        Of the whole buffer, per sample, as nccl-tests counts it: of all-reduce the buffer, of
        all-gather and reduce-scatter that of all ranks together, of all-to-all and send_recv what
        one rank puts in. In phase "step": of the step, whatever its samples.
    ranks : int
        Of the group.
    phase : {"forward", "backward", "step"}
    place : {"before", "after"}
        Of the layer's kernels in this pass; among calls of one place their order is that of
        `Layer.calls`. Backward runs them in the order in which they stand, too.
    times : int
        Alike calls in a row, each after the one before.
    overlap : float
        Share of the layer's matrix kernels of this pass that runs while the calls do; 0: none, the
        calls are exposed.
    dtype : str, optional
        Of the elements; None: that of the compute.
    joins_previous : bool
        Whether it begins with the exposed call before it; what follows waits for both.
    """

    group: CallGroup
    op: CallOp
    elements: float
    ranks: int
    phase: CallPhase
    place: Literal["before", "after"]
    times: int = 1
    overlap: float = 0.0
    dtype: str | None = None
    joins_previous: bool = False

    @property
    def gathers_input(self) -> bool:
        """Whether forward begins with it, of a map's input that the tensor group has in parts."""
        place = (self.group, self.phase, self.place)
        return self.op == "all_gather" and place == ("tensor", "forward", "before")


Calls = tuple[LayerCall, ...]

ONE_OF_TWO_PRODUCTS = 0.5
"""Backward of a map has two products, of its input's and of its weight's gradient."""


def column_calls(shard: Shard, elements: float, *, first: bool = True) -> Calls:
    """Calls of a map cut by columns.

    `elements`: of its whole input, per sample.
    `first`: whether it is the first of the maps of this input.
    """
    if not (first or shard.library == "torch"):
        return ()
    hidden = ONE_OF_TWO_PRODUCTS if shard.hides != "none" else 0.0
    if not shard.sequence_parallel:
        return (tensor_call(shard, "all_reduce", elements, "backward", overlap=hidden),)
    if not first:
        return ()
    calls = [
        tensor_call(shard, "all_gather", elements, "forward", "before", overlap=_chunked(shard))
    ]
    if shard.gathers_again:
        calls.append(
            tensor_call(shard, "all_gather", elements, "backward", "before", overlap=hidden)
        )
    elif shard.hides == "asynchronous":
        hidden = ONE_OF_TWO_PRODUCTS * _chunked(shard)  # cut with the product that it adds up
    return (*calls, tensor_call(shard, "reduce_scatter", elements, "backward", overlap=hidden))


def row_calls(shard: Shard, elements: float) -> Calls:
    """Calls of a map cut by rows.

    `elements`: of its whole result, per sample.
    """
    if not shard.sequence_parallel:
        return (tensor_call(shard, "all_reduce", elements, "forward"),)
    hidden = _chunked(shard)
    return (
        tensor_call(shard, "reduce_scatter", elements, "forward", overlap=hidden),
        tensor_call(
            shard,
            "all_gather",
            elements,
            "backward",
            "before",
            overlap=ONE_OF_TWO_PRODUCTS * hidden,
        ),
    )


def joined_calls(shard: Shard, elements: float) -> Calls:
    """Calls that make the result of a map cut by columns whole, and leave each rank its tokens.

    The gather's backward is a cut; that of the cut by tokens is a gather.

    `elements`: of its whole result, per sample.
    """
    gather = tensor_call(shard, "all_gather", elements, "forward")
    if not shard.sequence_parallel:
        return (gather,)
    return gather, tensor_call(shard, "all_gather", elements, "backward", "before")


def table_calls(shard: Shard, elements: float, *, whole_first: bool) -> Calls:
    """Calls of an embedding whose rows are shared.

    `elements`: of its whole result, per sample.
    `whole_first`: whether something else is added to the whole result before tokens are split.
    """
    if not shard.sequence_parallel:
        return (tensor_call(shard, "all_reduce", elements, "forward"),)
    op: CallOp = "all_reduce" if whole_first else "reduce_scatter"
    return (
        tensor_call(shard, op, elements, "forward"),
        tensor_call(shard, "all_gather", elements, "backward", "before"),
    )


def loss_calls(shard: Shard, tokens: float, vocabulary: int) -> Calls:
    """Calls of cross entropy over shared logits: of each token the greatest, its own, the sum.

    Or one gather of all logits, whose gradient each rank has.
    """
    if not shard.parallel_loss:
        return (tensor_call(shard, "all_gather", tokens * vocabulary, "forward"),)
    return (tensor_call(shard, "all_reduce", tokens, "forward", times=3, dtype="fp32"),)


def norm_calls(shard: Shard, tensors: Sequence[float], *, heads: bool = False) -> Calls:
    """Sums of the gradients of replicated tensors of which each rank saw some tokens only.

    Megatron sends those of all layers together after backward, torch each on its own.

    `tensors`: their elements.
    `heads`: whether each rank saw its own heads instead.
    """
    if not (shard.sequence_parallel or heads):
        return ()
    sizes: Iterable[float] = tensors if shard.library == "torch" else (sum(tensors),)
    return tuple(tensor_call(shard, "all_reduce", size, "step") for size in sizes if size)


def _chunked(shard: Shard) -> float:
    """Share of a product that runs beside its transfers: its own tokens need none."""
    return (shard.tensor - 1) / shard.tensor if shard.hides == "asynchronous" else 0.0


def tensor_call(
    shard: Shard,
    op: CallOp,
    elements: float,
    phase: CallPhase,
    place: Literal["before", "after"] = "after",
    *,
    times: int = 1,
    overlap: float = 0.0,
    dtype: str | None = None,
) -> LayerCall:
    """Return a call of the ranks that share a map; `elements`: of the whole buffer, per sample."""
    return LayerCall(
        "tensor", op, float(elements), shard.tensor, phase, place, times, overlap, dtype
    )


def attention_calls(shard: Shard, queries: float, pairs: float) -> Calls:
    """Calls of one layer's attention.

    `queries`: elements of a rank's queries, of its own tokens and heads, per sample.
    `pairs`: elements of its keys, as many as of its values.
    """
    if shard.context_kind == "ulysses":
        return head_calls(shard, (queries, pairs, pairs), queries)
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


def head_calls(shard: Shard, inputs: Sequence[float], output: float) -> Calls:
    """Calls of a layer that runs some heads over all tokens, of which each rank has a part.

    `inputs`, `output`: elements of a rank's own tokens and all heads, per sample.
    """
    return (
        *(_call(shard, "all_to_all", each, "forward", before=True) for each in inputs),
        _call(shard, "all_to_all", output, "forward"),
        _call(shard, "all_to_all", output, "backward", before=True),
        *(_call(shard, "all_to_all", each, "backward") for each in inputs),
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
    home = _call(shard, "send_recv", block, "backward", dtype="fp32")
    return (*inputs, _around(shard, block, "backward", c - 1, overlap=hidden, dtype="fp32"), home)


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
