"""Whether what a model has divides by the degrees that it is to be cut with."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import Fault, InputError
from perfmodel.workload.shards.shard import Shard, divisor_faults, shard_faults


@dataclass(frozen=True, slots=True)
class SharedSizes:
    """What the ranks of a model share.

    `others`: other numbers of tokens that layers see: targets of a decoder.
    `context_limit`: why tokens are not split; empty: they may be.
    `causal`: whether a token sees those before it alone.
    `window`: whether attention slides in some layers.
    `experts`: of a layer.
    """

    model: str
    heads: int
    kv_heads: int
    mlp_width: int
    vocabulary: int
    tokens: int
    causal: bool = True
    window: bool = False
    others: tuple[int, ...] = ()
    context_limit: str = ""
    experts: int = 0


def check_shard(shard: Shard, sizes: SharedSizes) -> None:
    """Raise InputError, with all faults, unless each rank gets an equal share."""
    faults = shard_faults(shard)
    if not faults:
        faults = [
            *_tensor_faults(shard, sizes),
            *_context_faults(shard, sizes),
            *_expert_faults(shard, sizes),
        ]
    if faults:
        raise InputError(faults)


def _tensor_faults(shard: Shard, sizes: SharedSizes) -> list[Fault]:
    shared = [(sizes.heads, "heads"), (sizes.mlp_width, "columns of the feed-forward part")]
    repeats = shard.library == "megatron" and shard.tensor % sizes.kv_heads == 0
    if not repeats:
        shared.append((sizes.kv_heads, "heads of keys and values"))
    faults = divisor_faults("tensor", shard.tensor, shared)
    tokens = [(shard.padded(sizes.vocabulary), "words of the vocabulary")]
    return faults + divisor_faults(
        "tensor", shard.tensor, tokens, ", or vocabulary_multiple, which pads them"
    )


def _expert_faults(shard: Shard, sizes: SharedSizes) -> list[Fault]:
    if sizes.experts:
        return divisor_faults("expert", shard.expert, [(sizes.experts, "experts of a layer")])
    if shard.expert == 1:
        return []
    return [Fault("expert", str(shard.expert), f"1 for {sizes.model!r}, which has no experts")]


def _context_faults(shard: Shard, sizes: SharedSizes) -> list[Fault]:
    if shard.context == 1:
        tokens = [(number, "tokens of a sample") for number in (sizes.tokens, *sizes.others)]
        return divisor_faults("tensor", shard.tensor, tokens * shard.sequence_parallel)
    if sizes.context_limit:
        allowed = f"1 for {sizes.model!r}: {sizes.context_limit}"
        return [Fault("context", str(shard.context), allowed)]
    chunks = 2 if is_balanced(shard, causal=sizes.causal) else 1
    parts = shard.context * chunks * shard.sequence_ranks
    faults = []
    if sizes.tokens % parts:
        split = f"context {shard.context}" + " x 2 chunks" * (chunks == 2)
        split += f" x tensor {shard.tensor}" * shard.sequence_parallel
        text = f"{sizes.tokens} tokens of a sample, for {split}"
        faults.append(Fault("sequence_length", text, f"a multiple of {parts}"))
    if shard.context_kind == "ulysses":
        ranks = shard.context * shard.tensor
        heads = [(sizes.heads, "heads"), (sizes.kv_heads, "heads of keys and values")]
        faults += [
            Fault(
                "context",
                str(shard.context),
                f"with ulysses context x tensor = {ranks} a divisor of the {number} {name}",
            )
            for number, name in heads
            if number % ranks
        ]
    if shard.context_kind == "ring" and sizes.window:
        allowed = f"'ulysses' or 'all_gather' for {sizes.model!r}, whose attention slides"
        faults.append(Fault("context_kind", "'ring'", allowed))
    return faults


def is_balanced(shard: Shard, *, causal: bool) -> bool:
    """Whether each rank has an early and a late chunk of a causal sequence."""
    return causal and shard.context_balanced and shard.context_kind != "ulysses"
