"""The zoo against counts and tensors that others published."""

import hashlib
import math

import pytest

from perfmodel.errors import InputError
from perfmodel.workload import build_model, zoo_names
from perfmodel.workload.model import sequence_of
from perfmodel.workload.zoo.bert import bert
from perfmodel.workload.zoo.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.llama import llama
from perfmodel.workload.zoo.t5 import target_tokens

# Parameters, tensors, and the start of the SHA-256 of "name:64x3x7x7" lines in registration order.
# ResNet, VGG, AlexNet, Inception, vit-b-16: torchvision 0.29; ConvNeXt, EfficientNet: 0.28. Stable
# Diffusion XL, DiT, Flux: diffusers 0.42. DLRM: the names of facebookresearch/dlrm. BERT, GPT-2,
# T5, Llama, the rest: Hugging Face transformers (GPT-2 under GPT2Model's names). GPT-3: GPT-2's
# tensors at the sizes of the paper.
TENSORS = {
    "gpt-oss-20b": (20914757184, 411, "1730c80600877563"),
    "gpt-oss-120b": (116829156672, 615, "5e0db3ff9f7bd17f"),
    "FLUX.1-dev": (11901408320, 1160, "d5d10271681fd086"),
    "FLUX.1-schnell": (11891178560, 1156, "e62980037c9c226a"),
    "resnet18": (11689512, 62, "6c9cb31ea43c9ab2"),
    "resnet34": (21797672, 110, "94e75af38bd1ae91"),
    "resnet50": (25557032, 161, "5de1ac4f3babf0fd"),
    "resnet101": (44549160, 314, "f26416f3656d041b"),
    "resnet152": (60192808, 467, "b078b491ae6e43da"),
    "vgg16": (138357544, 32, "4d615dd49d91104c"),
    "vgg19": (143667240, 38, "585b374cdbe73920"),
    "alexnet": (61100840, 16, "4a1b2d0eb1a63187"),
    "bert-base": (109482240, 199, "94969d839ad3ee8c"),
    "bert-large": (335141888, 391, "375ff620e0fa8d35"),
    "gpt2": (124439808, 148, "74848a3d25477191"),
    "gpt2-medium": (354823168, 292, "bcde4eea88d834c5"),
    "gpt2-large": (774030080, 436, "1354e52a76254ae0"),
    "gpt2-xl": (1557611200, 580, "e903ec46f3daa3ee"),
    "gpt3-1.3b": (1315723264, 292, "069c857100ddeab2"),
    "gpt3-6.7b": (6658404352, 388, "3cf4ebb9ab8283d9"),
    "gpt3-13b": (12853386240, 484, "94c04f10481d6b36"),
    "gpt3-175b": (174604259328, 1156, "8b93f8d4b3171bfa"),
    "llama2-7b": (6738415616, 291, "1629f9120b24e62a"),
    "llama2-13b": (13015864320, 363, "26b6ff44ccff8148"),
    "llama2-70b": (68976648192, 723, "763ebd934ffa80c4"),
    "llama3-8b": (8030261248, 291, "0d86526b86b138c1"),
    "inception-v3": (27161264, 292, "803bcea2c49f24e2"),
    "vit-b-16": (86567656, 152, "3de094db091f770a"),
    "gpt3-125m": (125226240, 148, "499601d5e611d613"),
    "gpt3-350m": (355871744, 292, "0976e65f555be0af"),
    "gpt3-760m": (760300032, 292, "1ba76f1869e96a07"),
    "gpt3-2.7b": (2651553280, 388, "b9dd9cabaae4875e"),
    "llama3-70b": (70553706496, 723, "006a042e946cdb9b"),
    "llama3.1-8b": (8030261248, 291, "0d86526b86b138c1"),
    "llama3.1-70b": (70553706496, 723, "006a042e946cdb9b"),
    "llama3.1-405b": (405853388800, 1137, "c1087a69d8682e13"),
    "llama3.2-1b": (1235814400, 146, "6f54c6fab04ee20b"),
    "llama3.2-3b": (3212749824, 254, "3fc17fda2f5ce180"),
    "mistral-7b": (7241732096, 291, "e48d713fd8387e53"),
    "mistral-7b-v0.3": (7248023552, 291, "ae22f964d1e005e5"),
    "qwen2-0.5b": (494032768, 290, "b73f1fb208703956"),
    "qwen2-1.5b": (1543714304, 338, "33c14698c356ef3d"),
    "qwen2-7b": (7615616512, 339, "334dea9c10db7fc2"),
    "qwen2-72b": (72706203648, 963, "fb49a292c57b9885"),
    "qwen2.5-0.5b": (494032768, 290, "b73f1fb208703956"),
    "qwen2.5-1.5b": (1543714304, 338, "33c14698c356ef3d"),
    "qwen2.5-7b": (7615616512, 339, "334dea9c10db7fc2"),
    "qwen2.5-72b": (72706203648, 963, "fb49a292c57b9885"),
    "qwen2.5-3b": (3085938688, 434, "091d3d8064b226de"),
    "qwen2.5-14b": (14770033664, 579, "3aea3858416b8f40"),
    "qwen2.5-32b": (32763876352, 771, "2d8f427bc40fba24"),
    "qwen3-0.6b": (596049920, 310, "1d5c9696fe3ec719"),
    "qwen3-1.7b": (1720574976, 310, "ed852e9d7146c691"),
    "qwen3-4b": (4022468096, 398, "9548594b7055cbc7"),
    "qwen3-8b": (8190735360, 399, "c69b73d6dc21da2f"),
    "qwen3-14b": (14768307200, 443, "bc433b1564aa3a98"),
    "qwen3-32b": (32762123264, 707, "e708e4223644f1d6"),
    "gemma-2b": (2506172416, 164, "b79cdc8f6525f862"),
    "gemma-7b": (8537680896, 254, "be2bac956c593a2b"),
    "gemma2-2b": (2614341888, 288, "cfb63f7a4f5c7368"),
    "gemma2-9b": (9241705984, 464, "23aeda0cc87624f8"),
    "gemma2-27b": (27227128320, 508, "fc4b3715159f0f2a"),
    "gemma3-270m": (268098176, 236, "7e87e15a31f69684"),
    "gemma3-1b": (999885952, 340, "8b61d589a6bf6714"),
    "gemma3-4b": (3880263168, 444, "4292c551a0d3ffdb"),
    "gemma3-12b": (11766034176, 626, "6f442ecdc4938467"),
    "gemma3-27b": (27009346304, 808, "437788e5af9e0099"),
    "llama-7b": (6738415616, 291, "1629f9120b24e62a"),
    "llama-65b": (65285660672, 723, "90ba7265bf3bf8db"),
    "codellama-34b": (33743970304, 435, "1bba75a504668b93"),
    "tinyllama-1.1b": (1100048384, 201, "089a796225cd9c24"),
    "internlm-7b": (7321423872, 291, "9765518ecf6c3a25"),
    "nemotron4-15b": (15628775424, 324, "e6266998726700de"),
    "nemotron4-340b": (341029195776, 964, "f8695774d2a30654"),
    "megatron-1.7b": (1652230656, 292, "3a9c8bcdf3de088e"),
    "megatron-3.6b": (3562168320, 364, "83d78580c14f8074"),
    "megatron-7.5b": (7467786240, 436, "99fc698450bca811"),
    "megatron-18.4b": (18449756160, 484, "84b81e413c42e6ef"),
    "megatron-39.1b": (39096041472, 580, "9703782f644841d9"),
    "megatron-76.1b": (76050739200, 724, "e06ede1f9f1ac57e"),
    "megatron-145.6b": (145622261760, 964, "2af7f6d6a0686a6c"),
    "megatron-310.1b": (310130540544, 1156, "e617a1dba999740a"),
    "megatron-529.6b": (529600819200, 1264, "3802305dc36d699e"),
    "megatron-1008b": (1008038758400, 1540, "80c9525bccb0682c"),
    "megatron-22b": (22074273792, 580, "4e1894ed100fdd8f"),
    "megatron-175b": (174615846912, 1156, "7735209cc2508a86"),
    "mixtral-8x7b": (46702792704, 291, "095f3586f2dab80c"),
    "mixtral-8x22b": (140620634112, 507, "0aafec188906014a"),
    "grok-1": (316489340928, 579, "2b5b19a4ba90272b"),
    "qwen3-30b-a3b": (30532122624, 531, "b44de18b0a544d07"),
    "qwen3-235b-a22b": (235093634560, 1037, "2229e6b4d099edea"),
    "qwen2-57b-a14b": (57408658944, 451, "c49f438d17d7598b"),
    "deepseek-v2-lite": (15706484224, 351, "d620d1b04e8758d3"),
    "deepseek-v2": (235741434880, 900, "07a8b1e75ff16e0a"),
    "deepseek-v3": (671026404352, 909, "a7ea16e867a0f50a"),
    "kimi-k2": (1026408209408, 915, "6da75cb7b2b8f226"),
    "llama4-scout": (107769861120, 579, "117215ad4132d48a"),
    "llama4-maverick": (400711848960, 507, "3c7d35823d1eb29b"),
    "t5-small": (60506624, 131, "0f99cbb7f6fbdd40"),
    "t5-base": (222903552, 257, "4b0b0726a850273f"),
    "t5-large": (737668096, 509, "8dddcc5f15f2d842"),
    "t5-3b": (2851598336, 509, "45af028b45354a51"),
    "t5-11b": (11307321344, 509, "7741440d26a2ba86"),
    "t5-v1.1-small": (76961152, 190, "2444f0e2a2bc2e73"),
    "t5-v1.1-base": (247577856, 282, "a0da4fbe735c6a8d"),
    "t5-v1.1-large": (783150080, 558, "a954619f218173d9"),
    "t5-v1.1-xl": (2849757184, 558, "5aff78c520efbf2f"),
    "t5-v1.1-xxl": (11135332352, 558, "a054f2a53e86f8c7"),
    "vit-base-patch16-224": (86567656, 200, "bb330f6ff1036317"),
    "vit-base-patch32-384": (88297192, 200, "8447ec54acd7c547"),
    "vit-large-patch16-224": (304326632, 392, "0e1facb6beb6a57d"),
    "vit-huge-patch14-224": (632045800, 520, "e1f1e8de8e47efba"),
    "clip-vit-base-patch32": (151277313, 398, "dd8b4e390a713e45"),
    "clip-vit-base-patch16": (149620737, 398, "4fa4dda3f4cde876"),
    "clip-vit-large-patch14": (427616513, 590, "12eb717e72202f36"),
    "whisper-tiny": (37760640, 167, "4bb974c1a8701178"),
    "whisper-base": (72593920, 245, "8fd19e8f48244678"),
    "whisper-small": (241734912, 479, "bf0359c3f15141fe"),
    "whisper-medium": (763857920, 947, "51e4438b0b48426e"),
    "whisper-large-v3": (1543490560, 1259, "771b7f1739411ba8"),
    "convnext_tiny": (28589128, 182, "a2b39931449855ed"),
    "convnext_small": (50223688, 344, "d128fe492a22b0c0"),
    "convnext_base": (88591464, 344, "e846a596319d9da9"),
    "convnext_large": (197767336, 344, "bf6cbc237e890f1b"),
    "efficientnet_b0": (5288548, 213, "8577366b44226d0a"),
    "efficientnet_b1": (7794184, 301, "85b27ca82c837017"),
    "efficientnet_b2": (9109994, 301, "429461acb0a958b8"),
    "efficientnet_b3": (12233232, 340, "7f6fcf15c7a9ee15"),
    "efficientnet_b4": (19341616, 418, "8138098753459682"),
    "efficientnet_b5": (30389784, 506, "20981c3e12aa3410"),
    "efficientnet_b6": (43040704, 584, "abf256b259f4cb7d"),
    "efficientnet_b7": (66347960, 711, "00a3238a75c4c01d"),
    "efficientnet_v2_s": (21458488, 452, "65ff94d5d71d2b7b"),
    "efficientnet_v2_m": (54139356, 649, "9d3904bbbd1a96de"),
    "efficientnet_v2_l": (118515272, 897, "87e5c58e4d940190"),
    "stable-diffusion-xl-base-1.0": (2567463684, 1680, "1e7e2290ef9dfc8a"),
    "DiT-XL-2-256": (749826464, 538, "d3bf72dd98d573b4"),
    "dlrm-criteo-kaggle": (540677217, 40, "7958ed4d3e13382f"),
    "dlrm-criteo-1tb": (24036595969, 42, "5dae982065af4e99"),
}

# The start of the SHA-256 of the names in the order in which post-accumulate-grad hooks of the
# real torchvision 0.29 (ConvNeXt and on: 0.28), transformers 5.23 or diffusers 0.42 model fired
# (PyTorch 2.13).
READY = {
    "FLUX.1-dev": "dd17993d04c24f66",
    "resnet18": "7ebb8325694d8c2c",
    "resnet50": "1cc2dc97bb107b44",
    "vgg16": "0bb5f3dc45312009",
    "inception-v3": "0e758eeb9ab1ee4d",
    "vit-b-16": "2ce5982a7033893d",
    "bert-base": "82dcf40bbb2082a2",
    "gpt2": "72d88fde0c32106a",
    "convnext_tiny": "ff639eb45b2b929c",
    "efficientnet_b0": "ae6ba5133aa0721b",
    "efficientnet_v2_s": "235d43d6f1e45bde",
    "stable-diffusion-xl-base-1.0": "62b4bd3f1145f392",
    "DiT-XL-2-256": "fb084f654f19d255",
}

# Multiply-accumulates of one sample, in 1e9: torchvision's table of weights (GFLOPS column); DiT:
# Peebles and Xie 2022, table 4.
# Inception's auxiliary classifier is not in the published 5.713.
GMACS = {
    "resnet18": 1.814,
    "resnet34": 3.664,
    "resnet50": 4.089,
    "resnet101": 7.801,
    "resnet152": 11.514,
    "vgg16": 15.47,
    "vgg19": 19.632,
    "alexnet": 0.714,
    "inception-v3": 5.713,
    "vit-b-16": 17.564,
    "convnext_tiny": 4.456,
    "convnext_small": 8.684,
    "convnext_base": 15.355,
    "convnext_large": 34.361,
    "efficientnet_b0": 0.386,
    "efficientnet_b1": 0.687,
    "efficientnet_b2": 1.088,
    "efficientnet_b3": 1.827,
    "efficientnet_b4": 4.394,
    "efficientnet_b5": 10.266,
    "efficientnet_b6": 19.068,
    "efficientnet_b7": 37.746,
    "efficientnet_v2_s": 8.366,
    "efficientnet_v2_m": 24.582,
    "efficientnet_v2_l": 56.08,
    "DiT-XL-2-256": 118.64,
}

# Bytes of buffers of the real modules.
BUFFERS = {
    "resnet18": 38560,
    "resnet50": 212904,
    "inception-v3": 145664,
    "vgg16": 0,
    "bert-base": 8192,
    "gpt2": 0,
    "llama2-7b": 512,
    "convnext_tiny": 0,
    "efficientnet_b0": 168456,
}


def digest(lines):
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def gmacs(workload):
    return sum(layer.matmul_flops for layer in workload.layers) / 2e9


def test_every_model_has_a_golden():
    assert set(TENSORS) == set(zoo_names())


NOT_TRAINED = {"model.encoder.embed_positions.weight"}
"""Whisper's positions of sounds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_those_of_the_published_model_and_each_stands_in_one_layer(name):
    workload = build_model(name)
    lines = [f"{t.name}:{'x'.join(map(str, t.shape))}" for t in workload.tensors]
    assert (workload.parameters, len(lines), digest(lines)) == TENSORS[name]
    assert workload.nbytes == 4 * workload.parameters
    trained = [i for i, t in enumerate(workload.tensors) if t.name not in NOT_TRAINED]
    assert sorted(workload.ready_order) == trained
    for layer in workload.layers:
        work = (layer.matmul_flops, layer.vector_bytes, layer.matmul_bytes, layer.saved_elements)
        assert all(math.isfinite(value) and value >= 0 for value in work)
        assert layer.matmul_flops + layer.vector_bytes > 0, "an empty layer"
        assert layer.kernels >= 1


@pytest.mark.parametrize("name", READY)
def test_gradients_get_ready_in_the_order_of_the_real_model(name):
    workload = build_model(name)
    assert digest(workload.tensors[i].name for i in workload.ready_order) == READY[name]


def test_bert_for_pre_training():
    """Hugging Face's BertForPreTraining: 110,106,428 parameters (bert-base-uncased)."""
    made = bert("bert-base", dtype="fp32", sequence_length=128, whole_head=True)
    assert made.parameters == 110106428
    plain = build_model("bert-base", sequence_length=128)
    more = sum(layer.matmul_flops for layer in made.layers)
    more -= sum(layer.matmul_flops for layer in plain.layers)
    # transform and decoder for each token, classifier for the first
    assert more == 2 * 128 * 768 * (768 + 30522) + 2 * 768 * 2


def test_resnet50_fills_the_buckets_of_a_recorded_run():
    # 2-GPU DDP trace of torchvision's ResNet-50, caps 1 MiB then 25 MiB; elements per bucket
    workload, buckets, caps = build_model("resnet50"), [0], [2**20, 25 * 2**20]
    for index in workload.ready_order:
        buckets[-1] += workload.tensors[index].numel
        if 4 * buckets[-1] >= caps[min(len(buckets) - 1, 1)]:
            buckets.append(0)
    assert buckets == [2049000, 7875584, 6563840, 6637568, 2431040]


@pytest.mark.parametrize("name", GMACS)
def test_work_of_image_models(name):
    assert gmacs(build_model(name)) == pytest.approx(GMACS[name], rel=2e-3)


# Parameters in 1e9 as model cards print them, embeddings included.
# Gemma 3 states embedding and other parameters apart (arXiv 2503.19786, table 1).
CARDS = {
    "nemotron4-15b": 15.6,
    "nemotron4-340b": 341,
    "llama-7b": 6.74,
    "llama-65b": 65.2,
    "tinyllama-1.1b": 1.1,
    "codellama-34b": 33.7,
    "llama3-8b": 8.03,
    "llama3-70b": 70.6,
    "llama3.1-405b": 405.9,
    "llama3.2-1b": 1.24,
    "llama3.2-3b": 3.21,
    "mistral-7b": 7.24,
    "mistral-7b-v0.3": 7.25,
    "qwen2-0.5b": 0.494,
    "qwen2-1.5b": 1.54,
    "qwen2-7b": 7.62,
    "qwen2-72b": 72.71,
    "qwen2.5-3b": 3.09,
    "qwen2.5-14b": 14.77,
    "qwen2.5-32b": 32.76,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.72,
    "qwen3-4b": 4.02,
    "qwen3-8b": 8.19,
    "qwen3-14b": 14.77,
    "qwen3-32b": 32.76,
    "gemma-2b": 2.51,
    "gemma-7b": 8.54,
    "gemma2-2b": 2.61,
    "gemma2-9b": 9.24,
    "gemma2-27b": 27.2,
    "gemma3-1b": 0.302 + 0.698,
    "gemma3-12b": 1.012 + 10.759,
    "gemma3-27b": 1.416 + 25.6,
    "t5-small": 0.0605,
    "t5-base": 0.223,
    "t5-large": 0.738,
    "t5-3b": 2.85,
    "t5-11b": 11.3,
    "t5-v1.1-xxl": 11.1,
}


@pytest.mark.parametrize("name", CARDS)
def test_parameters_are_those_of_the_model_card(name):
    assert build_model(name).parameters / 1e9 == pytest.approx(CARDS[name], rel=5e-3)


@pytest.mark.parametrize("name", [name for name in TENSORS if name.startswith("megatron")])
def test_sizes_of_megatrons_tables(name):
    """To the digits that Narayanan et al. 2021 (table 1) and Korthikanti et al. 2022 print."""
    printed = name.removeprefix("megatron-").removesuffix("b")
    digits = len(printed.partition(".")[2])
    assert round(build_model(name).parameters / 1e9, digits) == float(printed)


def test_targets_of_span_corruption():
    # google-research/text-to-text-transfer-transformer, pretrained_models/base: 512 and 114;
    # Hugging Face's run_t5_mlm_flax.py computes 568 tokens of text for 512 inputs
    assert target_tokens(512) == 114
    assert build_model("t5-base").output_elements == 114 * 32128


def test_a_window_limits_what_a_query_sees():
    full, windowed = (
        next(
            layer.matrix
            for layer in build_model(name, sequence_length=16384).layers
            if layer.kind == "attention"
        )
        for name in ("mistral-7b-v0.3", "mistral-7b")
    )
    seen = sum(min(query + 1, 4096) for query in range(16384)) / 16384
    assert windowed.seen_keys == pytest.approx(seen, rel=1e-3)
    assert full.seen_keys == 16384 / 2
    short = build_model("mistral-7b", sequence_length=4096).layers[4].matrix
    assert short == build_model("mistral-7b-v0.3", sequence_length=4096).layers[4].matrix


def test_every_sixth_layer_of_gemma_3_sees_all():
    blocks = [
        layer.matrix for layer in build_model("gemma3-4b").layers if layer.kind == "attention"
    ]
    assert [block.window for block in blocks[:7]] == [1024] * 5 + [None, 1024]


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "gpt3-175b", "llama2-7b"])
def test_work_of_decoders_is_two_per_parameter_and_token_plus_attention(name):
    # Kaplan et al. 2020 (arXiv 2001.08361), section 2.1, with the scores of all token pairs
    workload = build_model(name)
    tokens = workload.sample.tokens
    blocks = [layer for layer in workload.layers if layer.kind == "attention"]
    width = next(t.shape[-1] for t in workload.tensors)
    tables = [t for t in workload.tensors if t.name.endswith(("wpe.weight", "embed_tokens.weight"))]
    in_products = sum(t.numel for t in workload.tensors if len(t.shape) == 2)
    in_products -= sum(t.numel for t in tables)
    expected = 2 * in_products * tokens + len(blocks) * 4 * tokens**2 * width
    assert sum(layer.matmul_flops for layer in workload.layers) == pytest.approx(expected, rel=1e-9)


def test_attention_reads_query_key_and_value_and_writes_its_result_once():
    layers = build_model("gpt2", sequence_length=128).layers
    moved = {layer.matmul_bytes for layer in layers if layer.kind == "attention"}
    assert moved == {4 * 4 * 128 * 768}  # of fp32


def test_activations_of_a_gpt3_layer():
    # Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1: 34 s b h bytes in half precision
    # and 5 a s^2 b for the scores, whose row sums a fused kernel keeps instead
    layers = [layer for layer in build_model("gpt3-175b").layers if layer.name.startswith("h.0.")]
    s, h, heads = 2048, 12288, 96
    elements = sum(layer.saved_elements + layer.stream_elements for layer in layers)
    others = sum(layer.saved_bytes for layer in layers)
    assert 2 * elements + others == pytest.approx(34 * s * h, rel=1e-3)
    assert sum(layer.score_elements for layer in layers) == heads * s**2


def test_activations_of_a_language_model_head():
    # kept: input of the last norm, input of the head, log-softmax of the logits
    head = build_model("gpt2", sequence_length=10).layers[-1]
    assert (head.stream_elements, head.saved_elements) == (10 * 768, 10 * 768)
    assert head.saved_bytes == 10 * 4 * 50257


def test_activations_of_resnet50():
    # 11.1 M convolution outputs, published by He et al. as "activations"; each is kept before and
    # after its normalisation and ReLU
    saved = sum(layer.saved_elements for layer in build_model("resnet50").layers)
    assert 1.8 * 11.1e6 < saved < 2.1 * 11.1e6


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers(name):
    assert build_model(name).buffer_bytes == BUFFERS[name]


def test_sizes_scale_the_work():
    small, large = build_model("resnet50", image_size=112), build_model("resnet50", image_size=224)
    assert gmacs(large) / gmacs(small) == pytest.approx(4, rel=0.06)
    assert small.tensors == large.tensors
    short = build_model("bert-base", sequence_length=128)
    # Jiao et al. 2019 (TinyBERT, arXiv 1909.10351), table 1: 22.5 GFLOPs
    assert 2 * gmacs(short) == pytest.approx(22.5, rel=0.01)
    assert short.sample == sequence_of(128)


def test_dtype_of_the_parameters():
    assert build_model("resnet18", dtype="bf16").nbytes == 2 * 11689512


def test_image_size_sets_the_positions_of_vit():
    positions = {t.name: t.shape for t in build_model("vit-b-16", image_size=384).tensors}
    assert positions["encoder.pos_embedding"] == (1, 24**2 + 1, 768)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("resnet-50", "resnet50"), ("bert_base", "bert-base"), ("GPT2-XL", "gpt2-xl")],
)
def test_a_misspelt_name_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(InputError, match=rf"did you mean '{nearest}'\?"):
        build_model(name)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"name": "resnet50", "sequence_length": 5, "dtype": "fp31"}, ["dtype", "sequence_length"]),
        ({"name": "resnet50", "image_size": 0}, ["image_size"]),
        ({"name": "resnet50", "image_size": True}, ["image_size"]),
        ({"name": "inception-v3", "image_size": 64}, ["image_size"]),
        ({"name": "vit-b-16", "image_size": 225}, ["image_size"]),
        ({"name": "gpt2", "image_size": 224}, ["image_size"]),
        ({"name": "gpt2", "sequence_length": 1025}, ["sequence_length"]),
        ({"name": "bert-base", "sequence_length": 1.5}, ["sequence_length"]),
    ],
)
def test_wrong_arguments(arguments, fields):
    with pytest.raises(InputError) as raised:
        build_model(**arguments)
    assert [fault.field for fault in raised.value.faults] == fields


def test_llama_runs_beyond_its_published_context():
    assert build_model("llama2-7b", sequence_length=8192).sample.tokens == 8192


def test_a_fused_norm_moves_and_launches_less():
    plain, fused = (
        llama(
            "tiny",
            dtype="bf16",
            sequence_length=64,
            shape=DecoderShape(2, 32, 4, 2, 64, 100, 64, fused_norms=fused),
        )
        for fused in (False, True)
    )
    assert [t.shape for t in plain.tensors] == [t.shape for t in fused.tensors]
    # a read and a write of each of the norms' inputs, in the precision of the compute
    assert sum(layer.norm_bytes for layer in fused.layers) == 5 * 2 * 4 * 64 * 32
    assert not any(layer.wide_norm for layer in fused.layers)
    assert sum(layer.kernels for layer in plain.layers) == 4 * 5 + sum(
        layer.kernels for layer in fused.layers
    )
