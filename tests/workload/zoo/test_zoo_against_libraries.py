"""The zoo against the real modules, where they are installed."""

import dataclasses

import pytest

from perfmodel.workload import build_model
from perfmodel.workload.zoo import bert, bert_block, decoder_sizes, t5, text_decoder

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations


def transformers():
    pytest.importorskip("torch", reason="the real modules need the extra 'torch'")
    return pytest.importorskip(
        "transformers", reason="Hugging Face transformers is not a dependency, even of the tests"
    )


def described(module):
    return [
        (name.removeprefix("transformer."), tuple(parameter.shape))
        for name, parameter in module.named_parameters()
    ]


def buffer_bytes(module):
    return sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())


def ready_order(module, loss):
    """Names in the order in which their post-accumulate-grad hooks fire."""
    fired, names = [], {parameter: name for name, parameter in module.named_parameters()}
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: fired.append(names[p]))
    loss(module).backward()
    return [name.removeprefix("transformer.") for name in fired]


def hugging_face(name):
    """A constructor with the zoo's current sizes, and a loss."""
    hf = transformers()
    import torch

    torch.manual_seed(0)
    tokens = torch.randint(30, (2, 5))
    if name.startswith("bert"):
        s = bert.SHAPES[name]
        config = hf.BertConfig(
            hidden_size=s.width,
            num_hidden_layers=s.layers,
            num_attention_heads=s.heads,
            intermediate_size=4 * s.width,
        )
        return lambda: hf.BertModel(config), lambda m: m(tokens).pooler_output.sum()
    if name.startswith("gpt"):
        s = text_decoder.GPT_SHAPES[name]
        config = hf.GPT2Config(
            n_embd=s.block.width,
            n_layer=s.layers,
            n_head=s.block.heads,
            n_positions=s.positions,
        )
        return lambda: hf.GPT2LMHeadModel(config), lambda m: m(tokens, labels=tokens).loss
    if name.startswith("t5"):
        return lambda: t5_module(hf, t5.SHAPES[name]), lambda m: m(tokens, labels=tokens).loss
    family = next(made for made, models in decoder_sizes.FAMILIES.items() if name in models)
    config = decoder_config(hf, family, decoder_sizes.SHAPES[name])
    return lambda: getattr(hf, family)(config), lambda m: m(tokens, labels=tokens).loss


def t5_module(hf, s):
    config = hf.T5Config(
        d_model=s.width,
        d_kv=s.head_size,
        d_ff=s.mlp_width,
        num_layers=s.layers,
        num_heads=s.heads,
        feed_forward_proj="gated-gelu" if s.gated else "relu",
        tie_word_embeddings=not s.gated,
        vocab_size=t5.VOCABULARY,
        decoder_start_token_id=0,
    )
    module = hf.T5ForConditionalGeneration(config)
    if s.gated:  # transformers 5 unties the head of v1.1 when it loads the published weights
        import torch

        module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight.detach().clone())
    return module


def decoder_config(hf, family, s):
    """Only what `decoder_sizes` states; what else an architecture has is its class's."""
    configs = {"Gemma3ForCausalLM": "Gemma3TextConfig"}
    make = getattr(hf, configs.get(family, family.replace("ForCausalLM", "Config")))
    config = make(
        hidden_size=s.width,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        intermediate_size=s.mlp_width,
        vocab_size=s.vocabulary,
        max_position_embeddings=s.positions,
        head_dim=s.head_size,
        tie_word_embeddings=s.tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    if family != "Qwen2ForCausalLM":  # whose window is not used unless asked for
        config.sliding_window = s.window
    return config


NAMES = ["bert-base", "bert-large", "gpt2", "gpt2-xl", *decoder_sizes.SHAPES, *t5.SHAPES]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_tensors_and_buffers_of_hugging_face(name):
    make, _ = hugging_face(name)
    import torch

    with torch.device("meta"):
        module = make()
    workload = build_model(name)
    assert [(t.name, t.shape) for t in workload.tensors] == described(module)
    assert workload.buffer_bytes == buffer_bytes(module)


@pytest.mark.parametrize("name", decoder_sizes.SHAPES)
def test_windows_are_those_of_hugging_face(name):
    hf = transformers()
    family = next(made for made, models in decoder_sizes.FAMILIES.items() if name in models)
    shape = decoder_sizes.SHAPES[name]
    config = decoder_config(hf, family, shape)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if shape.window else "full_attention"] * shape.layers
    windows = [shape.window if kind == "sliding_attention" else None for kind in kinds]
    assert [shape.window_of(layer) for layer in range(shape.layers)] == windows


def tiny(shape):
    """A decoder of two layers with all that its family has."""
    sizes = {"layers": 2, "width": 16, "heads": 4, "kv_heads": 2, "mlp_width": 24, "vocabulary": 40}
    width = 8 if shape.head_width else None
    return dataclasses.replace(shape, **sizes, positions=16, head_width=width)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shapes", "shape"),
    [
        ("bert-base", bert.SHAPES, bert_block.BertShape(2, 16, 2)),
        ("gpt2", text_decoder.GPT_SHAPES, text_decoder.gpt_shape(2, 16, 2, 8)),
        ("t5-small", t5.SHAPES, t5.T5Shape(2, 16, 2, 8, 24)),
        ("t5-v1.1-small", t5.SHAPES, t5.T5Shape(2, 16, 2, 8, 24, gated=True)),
        *(
            (name, models, tiny(models[name]))
            for models in decoder_sizes.FAMILIES.values()
            for name in models
            if name
            in {
                "llama2-7b",
                "llama3.2-1b",
                "mistral-7b",
                "qwen2-7b",
                "qwen3-8b",
                "qwen3-4b",
                "gemma-2b",
                "gemma2-2b",
                "gemma3-1b",
                "nemotron4-15b",
            }
        ),
    ],
)
def test_ready_order_of_hugging_face(monkeypatch, name, shapes, shape):
    monkeypatch.setitem(shapes, name, shape)
    monkeypatch.setitem(decoder_sizes.SHAPES, name, shape)
    make, loss = hugging_face(name)
    workload = build_model(name, sequence_length=5)
    names = [workload.tensors[index].name for index in workload.ready_order]
    assert names == ready_order(make(), loss)
