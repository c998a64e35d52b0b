"""Models of the zoo as modules of PyTorch, as Hugging Face and torchvision have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

GPT2 = {
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
    "gpt2-large": (36, 1280, 20),
    "gpt2-xl": (48, 1600, 25),
}
"""Layers, width and heads (huggingface.co/openai-community, config.json of each)."""

BERT = {"bert-base": (12, 768, 12), "bert-large": (24, 1024, 16)}
"""Layers, width and heads (Devlin et al. 2018, arXiv 1810.04805)."""

LLAMA = {
    "tinyllama-1.1b": ("llama", 22, 2048, 32, 4, 5632, 32000, False),
    "llama3.2-1b": ("llama", 16, 2048, 32, 8, 8192, 128256, True),
    "llama3.2-3b": ("llama", 28, 3072, 24, 8, 8192, 128256, True),
    "qwen2-0.5b": ("qwen2", 24, 896, 14, 2, 4864, 151936, True),
    "qwen2-1.5b": ("qwen2", 28, 1536, 12, 2, 8960, 151936, True),
}
"""Family, layers, width, heads, heads of keys, MLP width, vocabulary, whether the table of words is
the head (config.json of each on huggingface.co)."""

VIT = {
    "vit-base-patch16-224": (12, 768, 12, 3072, 16),
    "vit-large-patch16-224": (24, 1024, 16, 4096, 16),
    "vit-huge-patch14-224": (32, 1280, 16, 5120, 14),
}
"""Layers, width, heads, MLP width, side of a patch (Dosovitskiy et al. 2020, arXiv 2010.11929)."""

CONFIGS = Path(__file__).parent / "hybrids"
"""Files of hybrids (config.json of transformers): sizes as published, or small ones of a family."""

Loss = Callable[[Any, Any], Any]
"""Loss of a module on inputs."""


def build(torch: Any, cells: Mapping[str, str], device: str) -> tuple[Any, Any, Loss]:
    """Make the module of a case, inputs of random numbers, and the loss.

    Parameters
    ----------
    torch : module
    cells : mapping
        A row of ``cases.csv``.
    device : str
    """
    name, batch, length = cells["model"], int(cells["batch"]), int(cells["sequence_length"] or 0)
    with torch.device(device):
        module = _language_model(name, cells) if length else _image_model(name, cells)
        if length:
            words = torch.randint(0, 30000, (batch, length))
            return module.train(), words, _bert_loss if name in BERT else _labelled_loss
        side = 384 if name.startswith("efficientnet_v2") else 224
        images = torch.randn(batch, 3, side, side)
        if cells["channels_last"] == "1":
            module = module.to(memory_format=torch.channels_last)
            images = images.to(memory_format=torch.channels_last)
        labels = torch.randint(0, 1000, (batch,))
        return module.train(), (images, labels), _image_loss


def _language_model(name: str, cells: Mapping[str, str]) -> Any:
    import transformers

    if (CONFIGS / f"{name}.json").exists():
        config = transformers.AutoConfig.from_pretrained(CONFIGS / f"{name}.json")
        config.use_cache = False
        return transformers.AutoModelForCausalLM.from_config(config)
    kernel = "sdpa" if cells["fused_attention"] == "1" else "eager"
    common = {"attn_implementation": kernel, "use_cache": False}
    if name in GPT2:
        layers, width, heads = GPT2[name]
        config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=heads, **common)
        return transformers.GPT2LMHeadModel(config)
    if name in BERT:
        layers, width, heads = BERT[name]
        config = transformers.BertConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            **common,
        )
        return transformers.BertModel(config)
    family, layers, width, heads, kv_heads, wide, vocabulary, tied = LLAMA[name]
    config_of, model_of = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    }[family]
    return model_of(
        config_of(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            intermediate_size=wide,
            vocab_size=vocabulary,
            tie_word_embeddings=tied,
            max_position_embeddings=32768,
            **common,
        )
    )


def _image_model(name: str, cells: Mapping[str, str]) -> Any:
    if name in VIT:
        import transformers

        layers, width, heads, wide, patch = VIT[name]
        kernel = "sdpa" if cells["fused_attention"] == "1" else "eager"
        config = transformers.ViTConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=wide,
            patch_size=patch,
            num_labels=1000,
            attn_implementation=kernel,
        )
        return transformers.ViTForImageClassification(config)
    import torchvision

    return getattr(torchvision.models, name)()


def _bert_loss(module: Any, words: Any) -> Any:
    return module(words).pooler_output.float().square().mean()


def _labelled_loss(module: Any, words: Any) -> Any:
    return module(words, labels=words).loss


def _image_loss(module: Any, inputs: Any) -> Any:
    import torch

    images, labels = inputs
    found = module(images)
    scores = getattr(found, "logits", found)
    return torch.nn.functional.cross_entropy(scores, labels)
