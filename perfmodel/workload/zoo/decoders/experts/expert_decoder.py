"""Decoders of experts with Hugging Face's tensors: Mixtral, Qwen, DeepSeek, Kimi, Llama 4."""

from __future__ import annotations

from itertools import chain

from perfmodel.workload.model import Buffers, Workload
from perfmodel.workload.zoo.decoders.decoder_block import (
    BlockPlace,
    attention_part,
    feed_forward_part,
)
from perfmodel.workload.zoo.decoders.decoder_ends import (
    head_and_loss,
    rotary_buffers,
    token_embedding,
)
from perfmodel.workload.zoo.decoders.experts.expert_settings import ExpertSettings, check_settings
from perfmodel.workload.zoo.decoders.experts.expert_sizes import (
    EXPERT_SHAPES,
    ExpertShape,
    expert_family,
)
from perfmodel.workload.zoo.decoders.experts.latent_attention import latent_attention_part
from perfmodel.workload.zoo.decoders.experts.routed_part import RoutedPlace, routed_part
from perfmodel.workload.zoo.layers import Module, Parameter, assemble

CHUNK = 8192
"""Tokens within which most layers of Llama 4 attend."""

_ATTENTION = (
    *(f"self_attn.{part}_proj" for part in "qkvo"), "self_attn.q_norm", "self_attn.k_norm",
)  # fmt: skip
_LATENT = (
    "self_attn.q_proj", "self_attn.q_a_proj", "self_attn.q_a_layernorm", "self_attn.q_b_proj",
    "self_attn.kv_a_proj_with_mqa", "self_attn.kv_a_layernorm", "self_attn.kv_b_proj",
    "self_attn.o_proj",
)  # fmt: skip
_MAPS = ("gate_proj", "up_proj", "down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_ROUTER_FIRST = frozenset({"MixtralForCausalLM", "Qwen2MoeForCausalLM"})
"""Families that register their router before the experts."""


def expert_decoder(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    shape: ExpertShape | None = None,
    family: str | None = None,
    settings: ExpertSettings | None = None,
) -> Workload:
    """Decoder-only transformer whose feed-forward parts are experts.

    `shape`, `family`: of a model that is not in the zoo; `family` is Hugging Face's class.
    `settings`: how experts are run; as `ExpertSettings` has it if not given.
    Raises `InputError`: settings that the model's experts cannot have.
    """
    shape, s = shape or EXPERT_SHAPES[name], sequence_length
    family, settings = family or expert_family(name), settings or ExpertSettings()
    check_settings(settings, shape.routed, 1, 1)
    decoder, routed = shape.decoder, shape.routed
    blocks = [_block(i, s, shape, family, settings, dtype) for i in range(decoder.layers)]
    first, last = token_embedding(decoder, s), head_and_loss(decoder, s)
    registered = [
        *first.parameters,
        *chain.from_iterable(_registered(block, family) for block in blocks),
        *last.parameters,
    ]
    routed_blocks = sum(routed.is_routed(i) for i in range(decoder.layers))
    bias = Buffers("fp32", routed_blocks, 4 * routed.experts * routed_blocks)
    chunked = family == "Llama4ForCausalLM" and s > CHUNK
    chunk_note = f"Attention within chunks of {CHUNK} tokens is counted as full attention."
    return assemble(
        name,
        [first, *chain.from_iterable(blocks), last],
        dtype=dtype,
        sample=f"sequence of {s} tokens",
        source=f"Hugging Face {family}, experts as grouped products",
        input_elements=s,
        output_elements=s * decoder.vocabulary,
        registered=registered,
        buffers=(*rotary_buffers(decoder), *(bias,) * routed.score_bias),
        notes=(chunk_note,) * chunked,
        routed_share=routed.top_k / routed.experts,
    )  # fmt: skip


def _block(
    number: int, s: int, shape: ExpertShape, family: str, settings: ExpertSettings, dtype: str
) -> list[Module]:
    """Attention part, then experts or a dense feed-forward part."""
    place = BlockPlace(f"model.layers.{number}", s, shape.decoder)
    path = "feed_forward" if family == "Llama4ForCausalLM" else "mlp"
    if shape.latent is None:
        attention = attention_part(place, shape.decoder.window_of(number))
    else:
        attention = latent_attention_part(place, shape.latent)
    if not shape.routed.is_routed(number):
        return [*attention, *feed_forward_part(place, path=path)]
    return [*attention, *routed_part(RoutedPlace(place, shape.routed, settings, dtype, path))]


def _registered(block: list[Module], family: str) -> list[Parameter]:
    """Parameters of a block in the order in which Hugging Face registers them."""
    order = _module_order(family)
    parameters = [parameter for part in block for parameter in part.parameters]
    return sorted(parameters, key=lambda parameter: order.index(_module_of(parameter[0])))


def _module_of(parameter: str) -> str:
    """``mlp.experts.gate_up_proj`` of ``model.layers.0.mlp.experts.gate_up_proj``, a tensor."""
    return parameter.split(".", 3)[3].removesuffix(".weight").removesuffix(".bias")


def _module_order(family: str) -> tuple[str, ...]:
    path = "feed_forward" if family == "Llama4ForCausalLM" else "mlp"
    router = "gate" if path == "mlp" else "router"
    shared = "shared_experts" if "Deepseek" in family else "shared_expert"
    experts = ("experts.gate_up_proj", "experts.down_proj")
    routed = (router, *experts) if family in _ROUTER_FIRST else (*experts, router)
    parts = (*_MAPS, *routed, *(f"{shared}.{name}" for name in _MAPS), "shared_expert_gate")
    attention = _LATENT if "Deepseek" in family else _ATTENTION
    return (*attention, *(f"{path}.{part}" for part in parts), *_NORMS)
