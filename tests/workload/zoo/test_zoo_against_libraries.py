"""The zoo against the real modules, where they are installed."""

import pytest

from perfmodel.workload import build_model
from perfmodel.workload.zoo import bert, gpt, llama

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
            hidden_size=s.width, num_hidden_layers=s.layers, num_attention_heads=s.heads,
            intermediate_size=4 * s.width,
        )  # fmt: skip
        return lambda: hf.BertModel(config), lambda m: m(tokens).pooler_output.sum()
    if name.startswith("gpt"):
        s = gpt.SHAPES[name]
        config = hf.GPT2Config(
            n_embd=s.width, n_layer=s.layers, n_head=s.heads, n_positions=s.positions
        )
        return lambda: hf.GPT2LMHeadModel(config), lambda m: m(tokens, labels=tokens).loss
    s = llama.SHAPES[name]
    config = hf.LlamaConfig(
        hidden_size=s.width, num_hidden_layers=s.layers, num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads, intermediate_size=s.mlp_width, vocab_size=s.vocabulary,
        max_position_embeddings=s.positions,
    )  # fmt: skip
    return lambda: hf.LlamaForCausalLM(config), lambda m: m(tokens, labels=tokens).loss


@pytest.mark.parametrize(
    "name", ["bert-base", "bert-large", "gpt2", "gpt2-xl", "llama2-7b", "llama2-70b", "llama3-8b"]
)
def test_tensors_and_buffers_of_hugging_face(name):
    make, _ = hugging_face(name)
    import torch

    with torch.device("meta"):
        module = make()
    workload = build_model(name)
    assert [(t.name, t.shape) for t in workload.tensors] == described(module)
    assert workload.buffer_bytes == buffer_bytes(module)


@pytest.mark.parametrize(
    ("name", "shapes", "tiny"),
    [
        ("bert-base", bert.SHAPES, bert.BertShape(2, 16, 2)),
        ("gpt2", gpt.SHAPES, gpt.GptShape(2, 16, 2, 8)),
        ("llama2-7b", llama.SHAPES, llama.LlamaShape(2, 16, 4, 2, 24, 40, 16)),
    ],
)
def test_ready_order_of_hugging_face(monkeypatch, name, shapes, tiny):
    monkeypatch.setitem(shapes, name, tiny)
    make, loss = hugging_face(name)
    workload = build_model(name, sequence_length=5)
    names = [workload.tensors[index].name for index in workload.ready_order]
    assert names == ready_order(make(), loss)
