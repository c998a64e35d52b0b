"""Models of experts against published counts, and against Hugging Face's modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload import build_model
from perfmodel.workload.model import Workload
from perfmodel.workload.model_changes import fuse_by_hand
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo.decoder_sizes import EXPERT_SHAPES, expert_family
from perfmodel.workload.zoo.expert_decoder import expert_decoder
from perfmodel.workload.zoo.expert_settings import ExpertSettings
from tests.activations import activation_bytes
from tests.workload.zoo.expert_modules import expert_config, few_layers, tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations

# All and active parameters in 1e9 as model cards and papers print them: Mixtral arXiv 2401.04088,
# Qwen3 arXiv 2505.09388 (table 2), Qwen2 arXiv 2407.10671, DeepSeek-V2 arXiv 2405.04434,
# DeepSeek-V3 arXiv 2412.19437 (671B, 37B), Llama 4 and Grok-1 model cards, gpt-oss arXiv 2508.10925
# (table 1, which leaves out the embedding of 0.58).
PUBLISHED = {
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (141, 39),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235, 22),
    "qwen2-57b-a14b": (57.4, 14.2),
    "deepseek-v2-lite": (15.7, 2.66),
    "deepseek-v2": (236, 21),
    "deepseek-v3": (671, 37),
    "kimi-k2": (1026, 32.9),
    "llama4-scout": (109, 17),
    "llama4-maverick": (400, 17),
    "grok-1": (314, 84.6),
    "gpt-oss-20b": (20.91, 3.61 + 0.58),
    "gpt-oss-120b": (116.83, 5.13 + 0.58),
}

FAMILIES = (
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "qwen2-57b-a14b",
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3",
    "llama4-maverick",
)


def real_modules() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch", reason="the real modules need the extra 'torch'")
    hf = pytest.importorskip("transformers", reason="not a dependency, even of the tests")
    return torch, hf


def active_parameters(workload: Workload) -> float:
    """Those that work on one token: of experts, the ones that it is routed to."""
    experts = sum(tensor.numel for tensor in workload.tensors if tensor.of_experts)
    return workload.parameters - (1 - workload.routed_share) * experts


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_and_active_parameters_are_those_published(name: str) -> None:
    workload = build_model(name)
    total, active = PUBLISHED[name]
    assert workload.parameters / 1e9 == pytest.approx(total, rel=0.012)
    assert active_parameters(workload) / 1e9 == pytest.approx(active, rel=0.025)


@pytest.mark.parametrize("name", FAMILIES)
def test_tensors_and_buffers_are_those_of_hugging_face(name: str) -> None:
    torch, hf = real_modules()
    shape, family = few_layers(EXPERT_SHAPES[name], 4), expert_family(name)
    with torch.device("meta"):
        module = getattr(hf, family)(expert_config(hf, family, shape))
    ours = expert_decoder(name, dtype="fp32", sequence_length=16, shape=shape)
    tensors = [(key, tuple(tensor.shape)) for key, tensor in module.named_parameters()]
    assert [(tensor.name, tensor.shape) for tensor in ours.tensors] == tensors
    assert ours.buffer_bytes == sum(b.numel() * b.element_size() for b in module.buffers())


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_get_ready_as_in_hugging_face(name: str) -> None:
    torch, hf = real_modules()
    torch.manual_seed(0)
    words, shape, family = torch.randint(30, (2, 5)), tiny(EXPERT_SHAPES[name]), expert_family(name)
    module = getattr(hf, family)(expert_config(hf, family, shape))
    fired: list[str] = []
    for key, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, key=key: fired.append(key))
    module(words, labels=words, use_cache=False).loss.backward()
    ours = expert_decoder(name, dtype="fp32", sequence_length=5, shape=shape)
    assert [ours.tensors[index].name for index in ours.ready_order] == fired


@pytest.mark.parametrize("name", [name for name in FAMILIES if "llama" not in name])
def test_kept_bytes_are_those_that_modules_save(name: str) -> None:
    """In bf16, the precision that torch's grouped products have; two layers, both of experts."""
    torch, hf = real_modules()
    from tests.workload.saved.saved_tensors import saved_bytes

    shape, family = few_layers(EXPERT_SHAPES[name], 2, dense_first=0), expert_family(name)
    settings = {"attn_implementation": "sdpa", "experts_implementation": "grouped_mm"}
    with torch.device("meta"):
        module = getattr(hf, family)(expert_config(hf, family, shape, **settings))
        words = torch.zeros(2, 1024, dtype=torch.long)
        module.to(torch.bfloat16).train()
        real = saved_bytes(
            module, lambda m: m(words, labels=words, use_cache=False).loss, autocast=False
        )
    ours = expert_decoder(name, dtype="bf16", sequence_length=1024, shape=shape)
    assert activation_bytes(ours, 2, "bf16") == pytest.approx(real, rel=0.03)


def test_operations_are_those_of_the_active_parameters() -> None:
    """Six per active parameter that multiplies, forward and backward, and those of attention."""
    workload = build_model("deepseek-v3", sequence_length=4096)
    scores = sum(layer.matmul_flops for layer in workload.layers if layer.kind == "attention")
    # one product of 192 and one of 128 elements for each head, query and key
    assert scores == 61 * 128 * 4096**2 * 2 * (192 + 128)
    gains = sum(tensor.numel for tensor in workload.tensors if len(tensor.shape) == 1)
    multiply = active_parameters(workload) - gains - 129280 * 7168
    assert workload.training_flops - 3 * scores == pytest.approx(6 * 4096 * multiply, rel=1e-12)


def test_imbalance_and_padding_are_no_work_of_the_model() -> None:
    shape = few_layers(EXPERT_SHAPES["mixtral-8x7b"], 1)

    def made(settings: ExpertSettings) -> Any:
        return expert_decoder(
            "mixtral", dtype="bf16", sequence_length=64, shape=shape, settings=settings
        )

    plain, padded = made(ExpertSettings()), made(ExpertSettings(capacity=2, pad_to_capacity=True))
    assert padded.training_flops == plain.training_flops
    rows = [
        [layer.matrix.rows for layer in model.layers if "experts" in layer.name]
        for model in (plain, padded)
    ]
    assert rows == [[128, 128], [256, 256]]
    assert activation_bytes(padded, 1, "bf16") > activation_bytes(plain, 1, "bf16")


def test_biases_of_experts_are_added_in_fp32_where_each_has_its_own_kernels() -> None:
    """Bytes an element: 4 of the weighed bias, 2 + 4 + 4 added, 4 + 4 joined, 4 + 2 cast back."""
    shape = few_layers(EXPERT_SHAPES["gpt-oss-120b"], 1)
    rows, width = 64 * 4, 2880
    moved = []
    for biased in (True, False):
        made = expert_decoder(
            "gpt-oss",
            dtype="bf16",
            sequence_length=64,
            shape=replace(shape, routed=replace(shape.routed, biased=biased)),
            family=expert_family("gpt-oss-120b"),
            settings=ExpertSettings(implementation="per-expert"),
        )
        (layer,) = (each for each in made.layers if each.name.endswith("experts.down_proj"))
        moved.append((layer.vector_bytes, layer.fused_bytes))
    for with_bias, without in zip(*moved, strict=True):
        # layers state bytes of fp32 elements, of which bf16 has half
        assert (with_bias - without) / 2 == (4 + 10 + 8 + 6) * rows * width


def test_what_routes_tokens_in_megatron_is_not_fused() -> None:
    """A block issues 52 kernels forward and 20 backward beside products; a compiler leaves 16."""
    shape = few_layers(EXPERT_SHAPES["qwen3-30b-a3b"], 1)
    issued = []
    for implementation in ("per-expert", "grouped"):
        settings = ExpertSettings(implementation=implementation)
        made = expert_decoder("q", dtype="bf16", sequence_length=64, shape=shape, settings=settings)
        for model in (made, fuse_by_hand(made)):
            gpu = load_gpu("gb300-288gb")
            times = layer_times(model, gpu, batch=1, precision="bf16", compiled=True)
            issued.append(times.forward_kernels.sum() + times.backward_kernels.sum())
    compiled, by_hand, *grouped = issued
    assert by_hand - compiled == 52 + 20 - 16
    assert grouped[0] == grouped[1]


def test_faults_name_what_experts_cannot_do() -> None:
    shape = few_layers(EXPERT_SHAPES["mixtral-8x7b"], 1)
    greedy = replace(shape, routed=replace(shape.routed, top_k=9))
    settings = ExpertSettings(pad_to_capacity=True, imbalance=3.0, tensor=3)
    with pytest.raises(InputError) as raised:
        expert_decoder("m", dtype="bf16", sequence_length=8, shape=greedy, settings=settings)
    text = str(raised.value)
    for part in ("top_k", "1 to 8", "pad_to_capacity", "imbalance", "2.65", "experts.tensor"):
        assert part in text
