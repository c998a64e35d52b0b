"""Into how many parts a model is cut, and how: the degrees that one rank's share follows from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from perfmodel.arrays import round_up
from perfmodel.errors import Fault, failed, raise_faults

ContextKind = Literal["ring", "ulysses", "all_gather"]
"""Ring attention (keys and values go around), all-to-all from tokens to heads and back (Jacobs et
al. 2023, arXiv 2309.14509), or all keys and values gathered (Grattafiori et al. 2024, section
3.3.2)."""
Overlap = Literal["none", "gradients", "asynchronous"]
Library = Literal["megatron", "torch"]


TableSharding = Literal["table", "row", "column", "remote"]


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
        Ranks that share the experts of a layer, or the embedding tables of a model of rows.
    tables : {"table", "row", "column", "remote"}, optional
        What of these tables a rank has: whole ones, or rows or columns of each, or none.
    servers : int
        Processes that hold remote tables.
    colocated : bool
        Whether these are on hosts of the ranks, one on each.
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
    vocabulary : int
        Stages of a pipeline that share tables and heads among them, beside tensor groups (Yeung et
        al. 2024, arXiv 2411.05288).
    """

    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    context_kind: ContextKind = "ring"
    context_balanced: bool = True
    expert: int = 1
    tables: TableSharding | None = None
    servers: int = 1
    colocated: bool = False
    library: Library = "megatron"
    overlap: Overlap | None = None
    parallel_loss: bool = True
    vocabulary_multiple: int | None = None
    vocabulary: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether one rank holds the whole model."""
        is_one = self.tensor == self.context == self.expert == self.vocabulary == 1
        return is_one and self.vocabulary_multiple is None and self.tables is None

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
        return round_up(vocabulary, self.vocabulary_multiple * self.tensor)

    def words(self, vocabulary: int) -> int:
        """Words of the vocabulary, with its padding, that a rank has."""
        return self.padded(vocabulary) // (self.tensor * self.vocabulary)


WHOLE = Shard()
"""All of a model on one rank."""


def shard_faults(shard: Shard) -> list[Fault]:
    """Degrees below 1, and settings that the degrees leave without effect or that exclude others.

    Fields are named as in `Shard`.
    """
    counts = {
        "tensor": shard.tensor,
        "context": shard.context,
        "expert": shard.expert,
        "vocabulary_multiple": 1
        if shard.vocabulary_multiple is None
        else shard.vocabulary_multiple,
    }
    faults = [
        Fault(field, repr(value), "a whole number above zero")
        for field, value in counts.items()
        if isinstance(value, bool) or not isinstance(value, int) or value < 1
    ]
    return faults or failed(
        (
            shard.sequence_parallel and shard.tensor == 1,
            "sequence_parallel",
            "true",
            "false with tensor: 1",
        ),
        (
            shard.overlap == "asynchronous" and not shard.sequence_parallel,
            "overlap",
            "'asynchronous'",
            "'none' or 'gradients' without sequence_parallel",
        ),
        (
            shard.vocabulary > 1 and not shard.parallel_loss,
            "parallel_loss",
            "false",
            "true where all stages have a share of the vocabulary",
        ),
        (
            shard.overlap == "gradients" and shard.library == "torch",
            "overlap",
            "'gradients'",
            "'none' or 'asynchronous' with library: torch",
        ),
    )


def whole_faults(shard: Shard, model: str, reason: str) -> list[Fault]:
    """Degrees above 1 of a model that is not split, with why it is not."""
    degrees = (("tensor", shard.tensor), ("context", shard.context), ("expert", shard.expert))
    multiple, why = shard.vocabulary_multiple, f"for {model!r}: {reason}"
    return failed(
        *((degree > 1, field, str(degree), f"1 {why}") for field, degree in degrees),
        (multiple is not None, "vocabulary_multiple", str(multiple), f"nothing {why}"),
        (
            shard.vocabulary > 1,
            "vocabulary",
            f"{shard.vocabulary} with a share of the vocabulary each",
            f"a schedule without these {why}",
        ),
    )


def divisor_faults(
    field: str, degree: int, numbers: Iterable[tuple[int, str]], unless: str = ""
) -> list[Fault]:
    """Degrees that do not divide what they share.

    `numbers`: what is shared, each with its name.
    `unless`: another setting with which it would be allowed.
    """
    return failed(
        *(
            (number % degree, field, str(degree), f"a divisor of the {number} {name}{unless}")
            for number, name in numbers
        )
    )


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
    raise_faults(
        shard_faults(shard)
        or [
            *_tensor_faults(shard, sizes),
            *_context_faults(shard, sizes),
            *_expert_faults(shard, sizes),
        ]
    )


def _tensor_faults(shard: Shard, sizes: SharedSizes) -> list[Fault]:
    repeats = shard.library == "megatron" and shard.tensor % sizes.kv_heads == 0
    shared = [
        (sizes.heads, "heads"),
        (sizes.mlp_width, "columns of the feed-forward part"),
        *[(sizes.kv_heads, "heads of keys and values")] * (not repeats),
    ]
    return [
        *divisor_faults("tensor", shard.tensor, shared),
        *divisor_faults(
            "tensor" if shard.vocabulary == 1 else "vocabulary",
            shard.tensor * shard.vocabulary,
            [(shard.padded(sizes.vocabulary), "words of the vocabulary")],
            ", or vocabulary_multiple, which pads them",
        ),
    ]


def _expert_faults(shard: Shard, sizes: SharedSizes) -> list[Fault]:
    if sizes.experts:
        return divisor_faults("expert", shard.expert, [(sizes.experts, "experts of a layer")])
    return failed(
        (
            shard.expert > 1,
            "expert",
            str(shard.expert),
            f"1 for {sizes.model!r}, which has no experts",
        )
    )


def _context_faults(shard: Shard, sizes: SharedSizes) -> list[Fault]:
    if shard.context == 1:
        tokens = [(number, "tokens of a sample") for number in (sizes.tokens, *sizes.others)]
        return divisor_faults("tensor", shard.tensor, tokens * shard.sequence_parallel)
    if sizes.context_limit:
        return [
            Fault("context", str(shard.context), f"1 for {sizes.model!r}: {sizes.context_limit}")
        ]
    chunks = 2 if is_balanced(shard, causal=sizes.causal) else 1
    parts, ranks = shard.context * chunks * shard.sequence_ranks, shard.context * shard.tensor
    split = f"context {shard.context}" + " x 2 chunks" * (chunks == 2)
    split += f" x tensor {shard.tensor}" * shard.sequence_parallel
    return failed(
        (
            sizes.tokens % parts,
            "sequence_length",
            f"{sizes.tokens} tokens of a sample, for {split}",
            f"a multiple of {parts}",
        ),
        *(
            (
                shard.context_kind == "ulysses" and number % ranks,
                "context",
                str(shard.context),
                f"with ulysses context x tensor = {ranks} a divisor of the {number} {name}",
            )
            for number, name in (
                (sizes.heads, "heads"),
                (sizes.kv_heads, "heads of keys and values"),
            )
        ),
        (
            shard.context_kind == "ring" and sizes.window,
            "context_kind",
            "'ring'",
            f"'ulysses' or 'all_gather' for {sizes.model!r}, whose attention slides",
        ),
    )


def is_balanced(shard: Shard, *, causal: bool) -> bool:
    """Whether each rank has an early and a late chunk of a causal sequence."""
    return causal and shard.context_balanced and shard.context_kind != "ulysses"
