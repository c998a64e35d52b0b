"""What layers keep for backward, against what real modules save (see `saved_tensors`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the real modules need the extra 'torch'")
pytest.importorskip("transformers", reason="not a dependency, even of the tests")

import torch
import transformers as hf

from perfmodel.workload import Workload, build_model
from perfmodel.workload.memory.recompute import NO_RECOMPUTE, Recompute
from perfmodel.workload.zoo import decoder_sizes, llama, t5, text_decoder
from tests.activations import activation_bytes
from tests.workload.saved.saved_tensors import saved_bytes

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations

Loss = Callable[[Any], Any]
Pair = tuple[Any, Loss, Callable[[str], Workload]]

DECODERS = {
    "llama2-7b": "Llama",
    "llama3-8b": "Llama",
    "mistral-7b": "Mistral",
    "qwen2-7b": "Qwen2",
    "qwen3-8b": "Qwen3",
    "gemma-7b": "Gemma",
    "gemma2-9b": "Gemma2",
    "gemma3-12b": "Gemma3",
    "nemotron4-15b": "Nemotron",
}


def tokens(batch: int, length: int) -> Any:
    return torch.zeros(batch, length, dtype=torch.long, device="meta")


def decoder(name: str, batch: int, s: int, attention: str, layers: int) -> Pair:
    shape = replace(decoder_sizes.SHAPES[name], layers=layers)
    family = DECODERS[name]
    config = getattr(hf, f"{family}{'Text' * (family == 'Gemma3')}Config")(
        hidden_size=shape.width,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.mlp_width,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.positions,
        head_dim=shape.head_size,
        tie_word_embeddings=shape.tied,
        attn_implementation=attention,
    )
    x = tokens(batch, s)
    return (
        getattr(hf, f"{family}ForCausalLM")(config),
        lambda module: module(x, labels=x, use_cache=False).loss,
        lambda dtype: llama.llama(name, dtype=dtype, sequence_length=s, shape=shape),
    )


def gpt2(_name: str, batch: int, s: int, attention: str, layers: int) -> Pair:
    shape = replace(text_decoder.GPT_SHAPES["gpt2"], layers=layers)
    config = hf.GPT2Config(n_layer=layers, attn_implementation=attention)
    x = tokens(batch, s)
    return (
        hf.GPT2LMHeadModel(config),
        lambda module: module(x, labels=x, use_cache=False).loss,
        lambda dtype: text_decoder.gpt("gpt2", dtype=dtype, sequence_length=s, shape=shape),
    )


def bert(name: str, batch: int, s: int, attention: str, _layers: int) -> Pair:
    x = tokens(batch, s)
    return (
        hf.BertModel(hf.BertConfig(attn_implementation=attention)),
        lambda module: module(x).pooler_output.sum(),
        lambda dtype: build_model(name, dtype=dtype, sequence_length=s),
    )


def t5_(name: str, batch: int, s: int, attention: str, layers: int) -> Pair:
    shape = replace(t5.SHAPES[name], layers=layers)
    config = hf.T5Config(
        d_model=shape.width,
        num_layers=layers,
        num_heads=shape.heads,
        d_kv=shape.head_size,
        d_ff=shape.mlp_width,
        vocab_size=t5.VOCABULARY,
        decoder_start_token_id=0,
        feed_forward_proj="gated-gelu" if shape.gated else "relu",
        tie_word_embeddings=not shape.gated,
        attn_implementation=attention,
    )
    x, labels = tokens(batch, s), tokens(batch, t5.target_tokens(s))
    return (
        hf.T5ForConditionalGeneration(config),
        lambda module: module(input_ids=x, labels=labels, use_cache=False).loss,
        lambda dtype: t5.t5(name, dtype=dtype, sequence_length=s, shape=shape),
    )


def resnet(name: str, batch: int, size: int, _attention: str, _layers: int) -> Pair:
    """Hugging Face's, with the stride in the 3x3 convolution as torchvision has it."""
    config = hf.ResNetConfig(num_labels=1000)
    x = torch.zeros(batch, 3, size, size, device="meta")
    labels = torch.zeros(batch, dtype=torch.long, device="meta")
    return (
        hf.ResNetForImageClassification(config),
        lambda module: torch.nn.functional.cross_entropy(
            module(x.to(next(module.parameters()).dtype)).logits, labels
        ),
        lambda dtype: build_model(name, dtype=dtype, image_size=size),
    )


CASES: list[tuple[Callable[..., Pair], str, int, int, str]] = [
    (gpt2, "gpt2", 4, 1024, "sdpa"),
    (gpt2, "gpt2", 1, 256, "eager"),
    (bert, "bert-base", 8, 512, "sdpa"),
    (bert, "bert-base", 2, 128, "eager"),
    *((decoder, name, 2, 1024, "sdpa") for name in DECODERS if name != "gemma2-9b"),
    (decoder, "llama2-7b", 1, 4096, "sdpa"),
    (decoder, "llama2-7b", 3, 512, "eager"),
    (decoder, "qwen2-7b", 1, 2048, "eager"),
    (decoder, "gemma2-9b", 2, 1024, "eager"),
    (t5_, "t5-base", 4, 512, "sdpa"),
    (t5_, "t5-v1.1-large", 2, 512, "sdpa"),
    (resnet, "resnet50", 4, 224, ""),
    (resnet, "resnet50", 1, 320, ""),
]


def measured(pair: Pair, mode: str, recompute: bool = False) -> float:
    module, loss, _ = pair
    module.train()
    if mode == "bf16":
        module.to(torch.bfloat16)
    if recompute:
        module.gradient_checkpointing_enable({"use_reentrant": True})
        module.enable_input_require_grads()
    return saved_bytes(module, loss, autocast=mode == "autocast")


def counted(pair: Pair, mode: str, batch: int, attention: str, recompute: Recompute) -> float:
    model = pair[2]("bf16" if mode == "bf16" else "fp32")
    precision = "fp32" if mode == "fp32" else "bf16"
    return activation_bytes(
        model, batch, precision, fused_attention=attention != "eager", recompute=recompute
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fp32", "autocast", "bf16"])
@pytest.mark.parametrize(("make", "name", "batch", "size", "attention"), CASES)
def test_kept_bytes_are_those_that_modules_save(
    make: Callable[..., Pair], name: str, batch: int, size: int, attention: str, mode: str
) -> None:
    with torch.device("meta"):
        pair = make(name, batch, size, attention, 2)
    ours = counted(pair, mode, batch, attention, NO_RECOMPUTE)
    assert ours == pytest.approx(measured(pair, mode), rel=0.02)


@pytest.mark.parametrize("mode", ["fp32", "autocast", "bf16"])
@pytest.mark.parametrize("name", ["llama2-7b", "gpt2"])
def test_a_checkpointed_block_keeps_its_input(name: str, mode: str) -> None:
    """What a block more adds, with ``torch.utils.checkpoint`` around each."""
    make = gpt2 if name == "gpt2" else decoder
    with torch.device("meta"):
        pairs = [make(name, 2, 512, "sdpa", layers) for layers in (2, 3)]
    ours = [counted(pair, mode, 2, "sdpa", Recompute("full")) for pair in pairs]
    real = [measured(pair, mode, recompute=True) for pair in pairs]
    block = [counted(pair, mode, 2, "sdpa", NO_RECOMPUTE) for pair in pairs]
    assert ours[1] - ours[0] == pytest.approx(real[1] - real[0], rel=1e-6)
    assert real[1] - real[0] < (block[1] - block[0]) / 8


def _cast_bytes_of_a_block(pairs: list[Pair]) -> float:
    """Autocast's copies of the weights: counted as kept, as they are until forward has ended."""
    few, more = (
        sum(layer.weight_elements for layer in pair[2]("fp32").layers if layer.matmul_flops)
        for pair in pairs
    )
    return 2 * (more - few)
