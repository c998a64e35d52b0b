"""Models by their sizes, and by Megatron's arguments, against those of the zoo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfmodel.errors import Fault, InputError
from perfmodel.scenario.sections.model import TransformerSection
from perfmodel.workload import Workload, build_model
from perfmodel.workload.configs.decoder_models import transformer_model
from perfmodel.workload.configs.hugging_face import read_config
from perfmodel.workload.configs.megatron_arguments import MegatronArguments, megatron_model
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.buildable import build
from perfmodel.workload.zoo.expert_settings import ExpertSettings
from tests.workload.configs.real_configs import CONFIGS, written


def shaped(**sizes: Any) -> Workload:
    return build(transformer_model(TransformerSection.model_validate(sizes)), sequence_length=64)


def tensors(model: Workload) -> list[tuple[str, tuple[int, ...]]]:
    return [(tensor.name, tensor.shape) for tensor in model.tensors]


ZOO = {
    "llama2-7b": {"hidden": 4096, "layers": 32, "vocab": "32k"},
    "llama3.2-1b": {
        "hidden": 2048,
        "layers": 16,
        "heads": 32,
        "kv_heads": 8,
        "vocab": 128256,
        "mlp_hidden": 8192,
        "tied": True,
    },
    "qwen3-8b": {
        "hidden": 4096,
        "layers": 36,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab": 151936,
        "mlp_hidden": 12288,
        "qk_norm": True,
    },
    "nemotron4-15b": {
        "hidden": 6144,
        "layers": 32,
        "heads": 48,
        "kv_heads": 8,
        "vocab": "256k",
        "mlp": "relu2",
        "norm": "layer",
    },
    "mixtral-8x7b": {
        "hidden": 4096,
        "layers": 32,
        "kv_heads": 8,
        "vocab": "32k",
        "mlp_hidden": 14336,
        "experts": {"count": 8},
    },
}


@pytest.mark.parametrize("name", ZOO)
def test_sizes_of_a_published_model_give_its_tensors_and_operations(name: str) -> None:
    """Also the rule for the feed-forward width of Llama 2, and for heads."""
    ours, theirs = shaped(**ZOO[name]), build_model(name, sequence_length=64)
    assert tensors(ours) == tensors(theirs)
    assert ours.training_flops == theirs.training_flops


def test_each_field_of_a_shape_changes_the_model() -> None:
    base = {"hidden": 256, "layers": 2, "heads": 4, "window": 16}
    changes: dict[str, Any] = {
        "hidden": 512,
        "layers": 3,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 32,
        "vocab": "1k",
        "mlp": "gelu",
        "mlp_hidden": 300,
        "norm": "layer",
        "bias": True,
        "positions": "learned",
        "qk_norm": True,
        "tied": True,
        "window": 8,
        "full_every": 2,
        "dropout": 0.1,
        "experts": {"count": 4},
    }
    assert set(changes) == set(TransformerSection.model_fields)
    models = [shaped(**base), *(shaped(**{**base, name: value}) for name, value in changes.items())]
    models.append(shaped(**base, positions="none"))
    layers = [model.layers for model in models]
    assert all(layers[i] != layers[j] for i in range(len(layers)) for j in range(i))


@pytest.mark.parametrize("experts", [None, {"count": 4}])
def test_a_table_of_positions_is_as_long_as_a_sample(experts: object) -> None:
    model = shaped(hidden=128, layers=1, positions="learned", experts=experts)
    assert model.tensors[1].shape == (64, 128)


def test_each_field_of_experts_changes_the_model() -> None:
    base = {"count": 4, "top_k": 2}
    changes = {"count": 8, "top_k": 1, "hidden": 96, "shared": 1, "every": 2, "dense_first": 1}
    variants = [base, *({**base, name: value} for name, value in changes.items())]
    layers = [shaped(hidden=128, layers=4, experts=each).layers for each in variants]
    assert all(layers[i] != layers[j] for i in range(len(layers)) for j in range(i))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ({"vocab": "50,257"}, {"vocab": 50257}),
        ({"vocab": "50_257", "hidden": "2Ki"}, {"vocab": "50257", "hidden": 2048}),
        ({"mlp": "SwiGLU", "norm": "RMSNorm", "positions": "RoPE"}, {}),
        ({"norm": "layernorm", "positions": "absolute"}, {"norm": "layer", "positions": "learned"}),
        ({"experts": 8}, {"experts": {"count": 8}}),
    ],
)
def test_what_people_type_is_what_they_mean(typed: dict[str, Any], meant: dict[str, Any]) -> None:
    base = {"hidden": 2048, "layers": 1}
    ours, theirs = (shaped(**{**base, **sizes}) for sizes in (typed, meant))
    assert tensors(ours) == tensors(theirs)
    assert ours.layers == theirs.layers


# Brown et al. 2020 (arXiv 2005.14165), table 2.1, and Touvron et al. 2023 (arXiv 2302.13971),
# table 2: layers, width, heads; parameters in 1e9, as printed.
GPT3 = {
    "mlp": "gelu",
    "norm": "layer",
    "bias": True,
    "positions": "learned",
    "tied": True,
    "vocab": 50257,
}
PRINTED = [
    (12, 768, 12, 0.125, GPT3),
    (24, 1024, 16, 0.35, GPT3),
    (24, 1536, 16, 0.76, GPT3),
    (24, 2048, 16, 1.3, GPT3),
    (32, 2560, 32, 2.7, GPT3),
    (32, 4096, 32, 6.7, GPT3),
    (96, 12288, 96, 175.0, GPT3),
    (32, 4096, 32, 6.7, {"vocab": "32k"}),
    (40, 5120, 40, 13.0, {"vocab": "32k"}),
    (60, 6656, 52, 32.5, {"vocab": "32k"}),
    (80, 8192, 64, 65.2, {"vocab": "32k"}),
]


@pytest.mark.parametrize(("layers", "hidden", "heads", "billions", "more"), PRINTED)
def test_parameters_are_those_that_papers_print(
    layers: int, hidden: int, heads: int, billions: float, more: dict[str, Any]
) -> None:
    model = shaped(hidden=hidden, layers=layers, heads=heads, **more)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("sizes", "fields"),
    [
        ({"hidden": 2050}, {"heads"}),
        ({"head_dim": 96}, {"heads"}),
        ({"heads": 3, "kv_heads": 2}, {"heads", "kv_heads"}),
        ({"full_every": 2}, {"full_every"}),
        (
            {"mlp": "gelu", "experts": {"count": 2, "top_k": 3, "dense_first": 9}},
            {"mlp", "experts.top_k", "experts.dense_first"},
        ),
        ({"experts": {"count": 2, "every": 9}}, {"experts.every"}),
    ],
)
def test_sizes_that_do_not_fit_are_named_together(sizes: dict[str, Any], fields: set[str]) -> None:
    with pytest.raises(InputError) as raised:
        shaped(**{"hidden": 256, "layers": 2, **sizes})
    assert {fault.field for fault in raised.value.faults} == fields


@given(number=st.integers(1, 20_000))
def test_a_letter_stands_for_its_power(number: int) -> None:
    def words(text: object) -> int:
        return TransformerSection.model_validate({"hidden": 8, "layers": 1, "vocab": text}).vocab

    assert words(number) == words(str(number)) == number
    if number < 20:
        assert words(f"{number}M") == words(f"{1000 * number}k") == 10**6 * number
    if number < 1000:
        assert words(f"{number}.5k") == 1000 * number + 500
        assert words(f"{number} Ki") == 1024 * number


@pytest.mark.parametrize(
    "text", ["0", "-5", "50 kB", "1.2345k", "k", "", "5e4", True, 1.5, "9" * 40]
)
def test_what_is_no_number_of_words(text: object) -> None:
    with pytest.raises(ValidationError):
        TransformerSection.model_validate({"hidden": 8, "layers": 1, "vocab": text})


@pytest.mark.parametrize(("positions", "tokens"), [(64, 64), (131_072, 4096)])
def test_samples_are_as_long_as_positions_allow(
    positions: int, tokens: int, tmp_path: Path
) -> None:
    """At most 4,096 tokens, as `docs/reference/models.md` says."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["llama"] | {"max_position_embeddings": positions}))
    assert read_config(path).default == tokens


def test_ranks_share_a_shape_as_they_share_a_model_of_the_zoo() -> None:
    shard = Shard(tensor=2, sequence_parallel=True, vocabulary_multiple=64)
    section = TransformerSection.model_validate(ZOO["llama3.2-1b"])
    ours = build(transformer_model(section), sequence_length=64, shard=shard)
    theirs = build_model("llama3.2-1b", sequence_length=64, shard=shard)
    assert tensors(ours) == tensors(theirs)
    assert ours.training_flops == theirs.training_flops
    biased = TransformerSection.model_validate({**ZOO["llama3.2-1b"], "bias": True, "tied": False})
    whole, share = (
        build(transformer_model(biased), sequence_length=64, shard=each)
        for each in (Shard(), Shard(tensor=2))
    )
    assert share.training_flops == whole.training_flops / 2


@pytest.mark.parametrize("label", ["gpt_neox", "llama", "gpt2, ReLU, untied", "qwen3"])
def test_ranks_share_a_configuration(label: str, tmp_path: Path) -> None:
    model = written(tmp_path, label)
    whole, share = (
        build(model, sequence_length=64, shard=shard)
        for shard in (Shard(), Shard(tensor=2, sequence_parallel=True))
    )
    assert share.training_flops == whole.training_flops / 2
    maps = {t.name for t in whole.tensors if len(t.shape) == 2 and "wpe" not in t.name}
    sizes = {t.name: t.numel for t in whole.tensors}
    assert all(2 * t.numel == sizes[t.name] for t in share.tensors if t.name in maps)
    assert any(layer.calls for layer in share.layers)


def test_groups_of_a_configuration_bound_how_far_tokens_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for groups in (1, 2, 4):
        label = "deepseek_v3"
        monkeypatch.setitem(CONFIGS, label, {**CONFIGS[label], "topk_group": groups})
        settings = ExpertSettings(dispatcher="deduplicated")
        model = build(written(tmp_path, label), shard=Shard(expert=2), experts=settings)
        calls.append(
            max(
                call.elements
                for layer in model.layers
                for call in layer.calls
                if call.group == "expert"
            )
        )
    assert calls[0] < calls[1] < calls[2]


@pytest.mark.parametrize("label", ["vit", "clip", "whisper", "mixtral", "gpt2"])
def test_what_a_configuration_cannot_have(label: str, tmp_path: Path) -> None:
    """Sizes of the other kind of model, and shares that its family does not have."""
    model = written(tmp_path, label)
    other = "sequence_length" if model.kind == "image" else "image_size"
    with pytest.raises(InputError, match=other):
        build(model, **{other: 64})
    degree = "tensor" if label in ("vit", "clip", "whisper") else "expert"
    with pytest.raises(InputError, match=degree):
        build(model, shard=Shard(**{degree: 3}))


# ---------------------------------------------------------------- Megatron

GPT = (
    "--num-layers 24 --hidden-size 2304 --num-attention-heads 24 --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 50257"
)
"""Megatron pads to 50,304 for one rank, and to 50,432 for two; the paper to 51,200."""
LLAMA = """
# a script
torchrun $DISTRIBUTED pretrain_gpt.py \\
    --swiglu --num-layers=32 --hidden-size 4096 --num-attention-heads 32 \\
    --ffn-hidden-size 11008 --normalization RMSNorm --disable-bias-linear \\
    --position-embedding-type rope --untie-embeddings-and-output-weights \\
    --hidden-dropout 0 --attention-dropout 0.0 --vocab-size 32000 --bf16 \\
    --make-vocab-size-divisible-by 1 --seq-length "4096" --tensor-model-parallel-size 2
"""


def stated(arguments: str | Path, **sizes: Any) -> Workload:
    return build(megatron_model(arguments), **sizes)


def refused(arguments: str | Path) -> tuple[Fault, ...]:
    with pytest.raises(InputError) as raised:
        megatron_model(arguments)
    return tuple(raised.value.faults)


def test_arguments_of_a_gpt_are_the_zoos_but_for_its_padding() -> None:
    ours, theirs = stated(GPT), build_model("megatron-1.7b")
    assert tensors(ours)[1:] == tensors(theirs)[1:]
    assert ours.tensors[0].shape == (50304, 2304)
    assert [layer.saved_bytes for layer in ours.layers[1:-1]] == [
        layer.saved_bytes for layer in theirs.layers[1:-1]
    ]
    share = stated(GPT, shard=Shard(tensor=2))
    assert share.tensors[0].shape == (50432 // 2, 2304)


def test_a_script_and_its_yaml_state_the_same_llama(tmp_path: Path) -> None:
    script, listed = tmp_path / "train.sh", tmp_path / "train.yaml"
    script.write_text(LLAMA)
    listed.write_text(
        "MODEL_ARGS:\n  --num-layers: 32\n  --hidden-size: 4096\n  --num-attention-heads: 32\n"
        "  --swiglu: true\n  --ffn-hidden-size: 11008\n  --normalization: RMSNorm\n"
        "  --disable-bias-linear: true\n  --position-embedding-type: rope\n  --bf16: true\n"
        "  --untie-embeddings-and-output-weights: true\n  --vocab-size: 32000\n"
        "  --make-vocab-size-divisible-by: 1\n  --seq-length: 4096\n  --hidden-dropout: 0.0\n"
        "  --attention-dropout: 0.0\n"
    )
    ours, theirs = stated(script), build_model("llama2-7b", dtype="bf16")
    assert ours.tensors == theirs.tensors
    assert ours.training_flops == theirs.training_flops
    assert stated(listed).layers == ours.layers
    assert "--tensor-model-parallel-size" in ours.source


def test_arguments_of_experts() -> None:
    arguments = (
        "--swiglu --disable-bias-linear --num-layers 4 --hidden-size 256 --num-attention-heads 8 "
        "--group-query-attention --num-query-groups 2 --vocab-size 512 --num-experts 8 "
        "--position-embedding-type rope --moe-ffn-hidden-size 96 "
    )
    each = stated(arguments + "--moe-layer-freq 2")
    listed = stated(arguments + "--moe-layer-freq '([1]*1+[0,1]*1+[0])'")
    assert each.layers == listed.layers  # the first of each two
    routed = [t.name for t in each.tensors if "experts.down_proj" in t.name]
    assert [name.split(".")[2] for name in routed] == ["0", "2"]
    latent = stated(
        arguments + "--multi-latent-attention --q-lora-rank 64 --kv-lora-rank 32 --qk-head-dim 16 "
        "--qk-pos-emb-head-dim 8 --v-head-dim 16 --moe-shared-expert-intermediate-size 96"
    )
    assert ("model.layers.0.self_attn.kv_b_proj.weight", (256, 32)) in tensors(latent)
    assert any("shared_experts" in name for name, _ in tensors(latent))


SMALL = "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --vocab-size 500 --seq-length 64 "
ROUTED = SMALL + "--swiglu --num-experts 8 "
LATENT = ROUTED + "--multi-latent-attention --q-lora-rank 32 "
VARIANTS: dict[str, tuple[str, ...]] = {
    SMALL: (
        "--num-layers 3",
        "--hidden-size 512",
        "--num-attention-heads 4",
        "--ffn-hidden-size 300",
        "--kv-channels 16",
        "--group-query-attention",
        "--vocab-size 300",
        "--seq-length 32",
        "--group-query-attention --num-query-groups 2",
        "--max-position-embeddings 128",
        "--padded-vocab-size 500",
        "--make-vocab-size-divisible-by 64 --vocab-size 600",
        "--swiglu",
        "--squared-relu",
        "--normalization RMSNorm",
        "--position-embedding-type none",
        "--use-rotary-position-embeddings",
        "--position-embedding-type rope --rotary-percent 0.5",
        "--untie-embeddings-and-output-weights",
        "--disable-bias-linear",
        "--qk-layernorm",
        "--disable-bias-linear --add-qkv-bias",
        "--hidden-dropout 0",
        "--attention-dropout 0",
        "--bf16",
        "--fp16",
        "--num-experts 8 --swiglu",
        "--tokenizer-type GPT2BPETokenizer",
    ),
    ROUTED: (
        "--num-experts 16",
        "--moe-router-topk 1",
        "--moe-ffn-hidden-size 96",
        "--moe-shared-expert-intermediate-size 96",
        "--moe-layer-freq 2",
        "--moe-router-score-function sigmoid",
        "--moe-router-enable-expert-bias",
        "--moe-router-num-groups 4 --moe-router-group-topk 1",
        "--moe-router-num-groups 4 --moe-router-group-topk 2",
        "--multi-latent-attention",
    ),
    LATENT: (
        "--q-lora-rank 16",
        "--kv-lora-rank 16",
        "--qk-head-dim 64",
        "--qk-pos-emb-head-dim 32",
        "--v-head-dim 64",
    ),
}
"""Each differs from the others of its kind; the last of an argument counts."""


@pytest.mark.parametrize("base", VARIANTS, ids=["dense", "experts", "latent"])
def test_each_argument_of_a_model_changes_it(base: str) -> None:
    asked: dict[str, Any] = {}
    if base == ROUTED:
        asked = {"shard": Shard(expert=2), "experts": ExpertSettings(dispatcher="deduplicated")}
    texts = [base, *(f"{base} {change}" for change in VARIANTS[base])]
    texts = [
        text.replace("--vocab-size 500", "") if "Tokenizer" in text else text for text in texts
    ]
    models = [stated(text, **asked) for text in texts]
    kinds = [(model.tensors, model.layers, model.buffers) for model in models]
    assert [
        (texts[i], texts[j]) for i in range(len(kinds)) for j in range(i) if kinds[i] == kinds[j]
    ] == []


def test_all_arguments_are_varied() -> None:
    flags = " ".join(change for each in VARIANTS.values() for change in each)
    names = {f"--{name.replace('_', '-')}" for name in MegatronArguments.model_fields}
    assert names - set(flags.split()) == set()


def test_widths_that_megatron_works_out() -> None:
    """Two thirds of four times the width, in 64s (Megatron's ``validate_args``)."""
    shapes = dict(tensors(stated(SMALL + "--swiglu --disable-bias-linear")))
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (256, 640)
    groups = "--moe-router-num-groups 4"  # without a number of them to take, all are taken
    assert stated(f"{ROUTED} {groups}").layers == stated(ROUTED).layers


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ("--num-layers 2", {"--hidden-size", "--num-attention-heads"}),
        (GPT.replace("2304", "2300"), {"--num-attention-heads"}),
        (GPT.replace("--vocab-size 50257", ""), {"--vocab-size"}),
        (GPT.replace("--num-layers 24", "--num-layers $LAYERS"), {"--num-layers"}),
        (GPT.replace("--seq-length 2048", "--seq-length 4096"), {"--seq-length"}),
        (GPT + " --mtp-num-layers 1", {"--mtp-num-layers"}),
        (
            GPT + " --swiglu --num-experts 8 --moe-router-num-groups 3 --moe-router-group-topk 1",
            {"--moe-router-num-groups"},
        ),
        (
            GPT + " --swiglu --num-experts 8 --moe-router-num-groups 8 --moe-router-group-topk 1",
            {"--moe-router-topk"},
        ),
        (GPT + " --num-experts 8 --moe-router-topk 9", {"--swiglu", "--moe-router-topk"}),
        (GPT + " --swiglu --num-experts 8 --moe-layer-freq [1]*3", {"--moe-layer-freq"}),
        (GPT + " --position-embedding-type mrope", {"--position-embedding-type"}),
    ],
)
def test_arguments_that_make_no_model(arguments: str, flags: set[str]) -> None:
    assert {fault.field for fault in refused(arguments)} == flags


def test_what_yaml_says_not_to_do_is_no_other_model(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "num_layers: 1\nhidden_size: 64\nnum_attention_heads: 4\nvocab_size: 99\n"
        "seq_length: 8\nmtp_num_layers: null\nis_hybrid_model: false\n"
    )
    assert stated(path).tensors[0].shape == (128, 64)


@pytest.mark.parametrize(("name", "text"), [("a.txt", "hello"), ("a.yaml", "- 1"), ("b.sh", "")])
def test_files_without_arguments(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert refused(path)[0].file == str(path)
