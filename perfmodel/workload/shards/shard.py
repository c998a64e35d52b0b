"""Into how many parts a model is cut, and how: the degrees that one rank's share follows from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import Fault, InputError

ContextKind = Literal["ring", "ulysses", "all_gather"]
"""Ring attention (keys and values go around), all-to-all from tokens to heads and back (Jacobs et
al. 2023, arXiv 2309.14509), or all keys and values gathered (Grattafiori et al. 2024, section
3.3.2)."""
Overlap = Literal["none", "gradients", "asynchronous"]
Library = Literal["megatron", "torch"]


@dataclass(frozen=True, slots=True)
class Shard:
    """Degrees of tensor, context and expert parallelism, and how a library carries them out.

    Gradients are averaged over the ranks of a context group, too: the data-parallel strategy has
    data x context ranks.

    Parameters
    ----------
    tensor : int
        Ranks that share every map, table and head (Shoeybi et al. 2019, arXiv 1909.08053).
    sequence_parallel : bool
        Whether norms, dropouts and additions run on s / tensor tokens (Korthikanti et al. 2022,
        arXiv 2205.05198).
    context : int
        Ranks that share the tokens of a sample.
    context_kind : {"ring", "ulysses", "all_gather"}
    context_balanced : bool
        Whether each rank has two chunks of a causal sequence, an early and a late one, so that all
        have the same work; otherwise the rank with the last tokens, which all wait for, is taken.
        Heads (ulysses) are always balanced.
    expert : int
        Ranks that share the experts of a layer.
    library : {"megatron", "torch"}
        "megatron": query, key and value are one map, as are the two of a gated feed-forward part;
        the gathered input of a map is gathered again in backward instead of kept; fewer heads of
        keys and values than ranks are repeated. "torch": ``parallelize_module`` of modules as they
        are, whose gathered inputs are kept.
    overlap : {"none", "gradients", "asynchronous"}, optional
        "gradients": the reduction of an input's gradient runs beside the weight's gradient, and
        the repeated gather beside the input's (Megatron's default). "asynchronous": gathers and
        reduce-scatters are cut and run beside the products that they belong to (torch's async TP,
        Megatron's ``tp_comm_overlap``). None: what the library does by default: "gradients", in
        torch "none".
    parallel_loss : bool
        Whether cross entropy works on a share of the vocabulary; otherwise logits are gathered.
    vocabulary_multiple : int, optional
        The vocabulary is padded to a multiple of this times `tensor`
        (``make_vocab_size_divisible_by``, 128 in Megatron-LM); None: it is not padded.
    """

    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    context_kind: ContextKind = "ring"
    context_balanced: bool = True
    expert: int = 1
    library: Library = "megatron"
    overlap: Overlap | None = None
    parallel_loss: bool = True
    vocabulary_multiple: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether one rank holds the whole model."""
        return self.tensor == self.context == self.expert == 1 and self.vocabulary_multiple is None

    @property
    def hides(self) -> Overlap:
        """What runs beside kernels."""
        if self.overlap is not None:
            return self.overlap
        return "gradients" if self.library == "megatron" else "none"

    @property
    def joins_maps(self) -> bool:
        """Whether maps of one input are one product."""
        return self.tensor > 1 and (self.library == "megatron" or self.hides == "asynchronous")

    @property
    def gathers_again(self) -> bool:
        """Whether backward gathers inputs of maps again instead of keeping them."""
        return self.library == "megatron"

    @property
    def sequence_ranks(self) -> int:
        """Ranks of the tensor group among which tokens between maps are split."""
        return self.tensor if self.sequence_parallel else 1

    def map_tokens(self, tokens: int) -> int:
        """Tokens that a map sees, of those of a sample."""
        return tokens // self.context

    def stream_tokens(self, tokens: int) -> int:
        """Tokens that a norm, a dropout or an addition between maps sees."""
        return tokens // (self.context * self.sequence_ranks)

    def kept_tokens(self, tokens: int) -> int:
        """Tokens of the input of a map that are kept for backward."""
        return self.stream_tokens(tokens) if self.gathers_again else self.map_tokens(tokens)

    def padded(self, vocabulary: int) -> int:
        """Words of the vocabulary with its padding."""
        if self.vocabulary_multiple is None:
            return vocabulary
        multiple = self.vocabulary_multiple * self.tensor
        return -(-vocabulary // multiple) * multiple


WHOLE = Shard()
"""All of a model on one rank."""


def shard_faults(shard: Shard) -> list[Fault]:
    """Degrees below 1, and settings that the degrees leave without effect or that exclude others.

    Fields are named as in `Shard`.
    """
    faults = [
        Fault(field, repr(value), "a whole number above zero")
        for field, value in _counts(shard)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1
    ]
    if faults:
        return faults
    if shard.sequence_parallel and shard.tensor == 1:
        faults.append(Fault("sequence_parallel", "true", "false with tensor: 1"))
    if shard.overlap == "asynchronous" and not shard.sequence_parallel:
        allowed = "'none' or 'gradients' without sequence_parallel"
        faults.append(Fault("overlap", "'asynchronous'", allowed))
    if shard.overlap == "gradients" and shard.library == "torch":
        allowed = "'none' or 'asynchronous' with library: torch"
        faults.append(Fault("overlap", "'gradients'", allowed))
    return faults


def _counts(shard: Shard) -> Iterable[tuple[str, object]]:
    yield from (("tensor", shard.tensor), ("context", shard.context), ("expert", shard.expert))
    if shard.vocabulary_multiple is not None:
        yield "vocabulary_multiple", shard.vocabulary_multiple


def whole_faults(shard: Shard, model: str, reason: str) -> list[Fault]:
    """Degrees above 1 of a model that is not split, with why it is not."""
    allowed = f"1 for {model!r}: {reason}"
    degrees = (("tensor", shard.tensor), ("context", shard.context), ("expert", shard.expert))
    faults = [Fault(field, str(degree), allowed) for field, degree in degrees if degree > 1]
    if shard.vocabulary_multiple is not None:
        nothing = f"nothing for {model!r}: {reason}"
        faults.append(Fault("vocabulary_multiple", str(shard.vocabulary_multiple), nothing))
    return faults


def divisor_faults(
    field: str, degree: int, numbers: Iterable[tuple[int, str]], unless: str = ""
) -> list[Fault]:
    """Degrees that do not divide what they share.

    `numbers`: what is shared, each with its name.
    `unless`: another setting with which it would be allowed.
    """
    return [
        Fault(field, str(degree), f"a divisor of the {number} {name}{unless}")
        for number, name in numbers
        if number % degree
    ]


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
