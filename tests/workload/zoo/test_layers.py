"""The parts of the zoo against small PyTorch modules: ready order and operations."""

import pytest

from perfmodel.workload.model import Sample
from perfmodel.workload.zoo.image_layers import Image, adaptive_pooling, convolution
from perfmodel.workload.zoo.layers import assemble, linear, names, norm_parameters, weight_and_bias
from perfmodel.workload.zoo.stack_block import (
    AttentionNames,
    BlockNames,
    StackShape,
    stack_blocks,
)
from perfmodel.workload.zoo.transformer import embedding

torch = pytest.importorskip("torch", reason="compares with the extra 'torch'")
pytestmark = pytest.mark.filterwarnings("ignore")

TOKENS, WIDTH, HEADS, VOCABULARY, BATCH, SIDE = 6, 16, 2, 11, 3, 8


class TinyResidual(torch.nn.Module):
    """Convolutions with and without bias, a shortcut, a linear head."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(6)
        self.short = torch.nn.Conv2d(4, 6, 1, stride=2, bias=False)
        self.bn3 = torch.nn.BatchNorm2d(6)
        self.fc = torch.nn.Linear(6, 5)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        y = self.bn2(self.conv2(x))
        y = torch.relu(y + self.bn3(self.short(x)))
        return self.fc(y.mean((2, 3)))


def tiny_residual():
    image = Image(3, SIDE, SIDE)
    first, image = convolution("conv1", image, 4, 3, padding=1)
    second, out = convolution("conv2", image, 6, 3, stride=2, padding=1, norm="bn2", residual=True)
    short, _ = convolution("short", image, 6, 1, stride=2, norm="bn3", relu=False)
    pool, _ = adaptive_pooling("pool", out, 1)
    head = linear("fc", 1, 6, 5, parameters=weight_and_bias("fc", 5, 6))
    return assembled([first, second, short, pool, head])


BLOCK = BlockNames(
    AttentionNames(("qkv",), "out", "norm1"),
    "widen",
    "narrow",
    "norm2",
    ("norm1", "qkv", "out", "norm2", "widen", "narrow"),
)


class TinyBlock(torch.nn.Module):
    """Attention and a feed-forward part, each after a norm."""

    def __init__(self):
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.norm2 = torch.nn.LayerNorm(WIDTH)
        self.widen = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.narrow(torch.nn.functional.gelu(self.widen(self.norm2(x))))


class TinyGpt(torch.nn.Module):
    """One pre-normalised block between an embedding and a head that share their weight."""

    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = torch.nn.Embedding(TOKENS, WIDTH)
        self.blocks = torch.nn.ModuleList([TinyBlock()])
        self.last = torch.nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.blocks[0](self.wte(tokens) + self.wpe(torch.arange(TOKENS)))
        return self.last(x) @ self.wte.weight.t()


def tiny_gpt():
    tables = (("wte.weight", (VOCABULARY, WIDTH)), ("wpe.weight", (TOKENS, WIDTH)))
    first = embedding(
        "embeddings",
        tables,
        ("wpe.weight", "wte.weight"),
        vector_elements=0.0,
        saved_elements=0.0,
        kernels=2,
    )
    shape = StackShape(WIDTH, HEADS, 4 * WIDTH, BLOCK, causal=True)
    block, _ = stack_blocks("blocks", 1, shape, TOKENS)
    last = norm_parameters("last", WIDTH)
    head = linear("head", TOKENS, WIDTH, VOCABULARY, parameters=last, ready=names(last))
    return assembled([first, *block, head])


def assembled(parts):
    return assemble(
        "tiny", parts, dtype="fp32", sample=Sample(), source="", input_elements=1, output_elements=1
    )


CASES = {
    "residual": (TinyResidual, tiny_residual, lambda: torch.randn(BATCH, 3, SIDE, SIDE)),
    "gpt": (TinyGpt, tiny_gpt, lambda: torch.randint(VOCABULARY, (BATCH, TOKENS))),
}


@pytest.mark.parametrize("case", CASES)
def test_registration_and_ready_order(case):
    module_class, model, data = CASES[case]
    torch.manual_seed(0)
    module, workload = module_class(), model()
    assert [(t.name, t.shape) for t in workload.tensors] == [
        (name, tuple(p.shape)) for name, p in module.named_parameters()
    ]
    fired, by_parameter = [], {p: name for name, p in module.named_parameters()}
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: fired.append(by_parameter[p]))
    module(data()).square().sum().backward()
    assert [workload.tensors[i].name for i in workload.ready_order] == fired


@pytest.mark.parametrize("case", CASES)
def test_operations_are_those_that_torch_counts(case):
    from torch.utils.flop_counter import FlopCounterMode

    module_class, model, data = CASES[case]
    module, workload = module_class(), model()
    with FlopCounterMode(display=False) as counter:
        output = module(data())
    forward = counter.get_total_flops()
    assert BATCH * sum(layer.matmul_flops for layer in workload.layers) == forward
    if case == "residual":  # backward of fused attention is counted with its recomputed scores
        with FlopCounterMode(display=False) as counter:
            output.square().sum().backward()
        first = BATCH * workload.layers[0].matmul_flops
        assert counter.get_total_flops() == 2 * forward - first


class CountingMode(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts operators that launch a kernel: all but views and allocations.

    Batch normalisation's count of its batches is left out, which autograd does not follow.
    """

    def __init__(self):
        super().__init__()
        self.kernels = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        counts = func is torch.ops.aten.add_.Tensor and not args[0].is_floating_point()
        if not func.is_view and not counts and "empty" not in str(func):
            self.kernels.append(str(func))
        return func(*args, **(kwargs or {}))


def test_kernels_are_the_operators_that_torch_dispatches():
    module_class, model, data = CASES["residual"]
    module, images = module_class(), data()
    with CountingMode() as counter:
        module(images)
    assert sum(layer.kernels for layer in model().layers) == len(counter.kernels)
