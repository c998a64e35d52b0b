"""Captured modules against the same modules on real tensors, PyTorch's counters, and the zoo."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from perfmodel.workload.kernels.element_wise import passes_of

pytest.importorskip("torch", reason="modules need the extra 'torch'")

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import perfmodel
from perfmodel.cli import models as commands
from perfmodel.cli.app import build_app
from perfmodel.errors import InputError
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.torch_modules.capture import Capture, capture
from perfmodel.torch_modules.given_module import call_function
from perfmodel.workload import build_model, load_workload
from perfmodel.workload.roofline import layer_times, step_s
from tests.activations import activation_bytes
from tests.docs.pages import DOCS, blocks
from tests.torch_modules.small_modules import Branching, Decoder, ResNet18, real_step

PAGE = DOCS / "reference/models.md"
CROSS_ENTROPY = torch.nn.CrossEntropyLoss()


@pytest.fixture(scope="module")
def resnet() -> Capture:
    with torch.device("meta"):
        module = ResNet18()
    images = torch.zeros(2, 3, 224, 224), torch.zeros(2, dtype=torch.long)
    return capture(module, images, loss=CROSS_ENTROPY, name="resnet18")


@pytest.fixture(scope="module")
def tokens() -> dict[str, Any]:
    return {"ids": torch.zeros(2, 8, dtype=torch.long), "labels": torch.ones(2, 8).long()}


@pytest.fixture(scope="module")
def decoder(tokens: dict[str, Any]) -> Capture:
    return capture(Decoder(), tokens)


@pytest.mark.slow
def test_a_residual_network_is_that_of_the_zoo(resnet: Capture) -> None:
    own, zoo = resnet.workload, build_model("resnet18")
    assert [(t.name, t.shape) for t in own.tensors] == [(t.name, t.shape) for t in zoo.tensors]
    assert own.ready_order == zoo.ready_order
    assert own.buffers == zoo.buffers
    assert resnet.forward_flops == sum(layer.matmul_flops for layer in zoo.layers)
    convolutions = [layer.matrix for layer in zoo.layers if layer.kind == "conv"]
    assert [layer.matrix for layer in own.layers if layer.kind == "conv"] == convolutions
    for precision in ("fp32", "bf16"):
        kept = activation_bytes(own, 8, precision)
        assert kept == pytest.approx(activation_bytes(zoo, 8, precision), rel=0.01)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_its_step_is_that_of_the_zoo(resnet: Capture, precision: str, compiled: bool) -> None:
    # not in bf16: a file does not say which elements batch normalisation waits for
    gpu = load_gpu("a100-sxm4-80gb")
    own, zoo = (
        step_s(layer_times(model, gpu, batch=64, precision=precision, compiled=compiled))
        for model in (resnet.workload, build_model("resnet18"))
    )
    assert own == pytest.approx(zoo, rel=0.04)


def test_the_saved_file_is_the_same_model(resnet: Capture, tmp_path: Path) -> None:
    path = resnet.save(tmp_path / "mine.yaml")
    read = load_workload(str(path))
    assert read.layers == resnet.workload.layers
    assert read.tensors == resnet.workload.tensors
    scenario = tmp_path / "mine-scenario.yaml"
    scenario.write_text(
        "# mine\nperfmodel: 1\nmodel: {file: mine.yaml}\ncompute: {precision: fp16}\n"
        "cluster: {node: dgx-a100, nodes: 1}\ntraining: {batch_per_gpu: 64}\n"
    )
    asked = perfmodel.load_scenario(str(scenario))
    zoo = perfmodel.load_scenario(str(scenario), ["model={name: resnet18}"])
    own_s, zoo_s = (perfmodel.run(each).main.step_time_s for each in (asked, zoo))
    assert own_s == pytest.approx(zoo_s, rel=0.02)


def test_a_decoder_is_as_on_real_tensors(decoder: Capture, tokens: dict[str, Any]) -> None:
    real = Decoder().train()
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):  # it does not count fused attention of CPUs
        real(**tokens)["loss"].backward()
    order, _ = real_step(real, lambda module: module(**tokens)["loss"])
    assert list(decoder.ready_order) == order
    names = [decoder.workload.tensors[index].name for index in decoder.workload.ready_order]
    assert names == order
    assert 2 * (decoder.forward_flops + decoder.backward_flops) == counter.get_total_flops()
    assert decoder.forward_flops == 8 * 2 * 32 * (96 + 32 + 50) + 4 * 8 * 8 * 32


def test_what_a_decoder_keeps(decoder: Capture) -> None:
    """In fp32, of a batch of two: counted by hand from the formulas of its operators."""
    rows, width, vocabulary = 16, 32, 50
    elements = (
        rows * width * (2 + 3 + 1 + 1)  # of norm: in and out; q, k, v as one; attention; head
    ) + rows * vocabulary  # logarithm of the softmax
    fixed = rows * (8 + 8 + 8 + width) + 4  # ids, labels, both deviations of a row, mask, weights
    sums = 4 * 4 * rows  # of the scores of 4 heads
    assert activation_bytes(decoder.workload, 2, "fp32") == 4 * elements + fixed + sums


def test_layers_have_the_shapes_of_their_kernels(decoder: Capture) -> None:
    layers = {layer.name: layer for layer in decoder.workload.layers}
    assert list(layers) == ["table", "blocks.0.qkv", "attention", "blocks.0.out", "head"]
    attention: Any = layers["attention"].matrix
    assert (attention.tokens, attention.heads, attention.head_size) == (8, 4, 8)
    assert attention.causal
    product: Any = layers["blocks.0.qkv"].matrix
    assert (product.rows, product.columns, product.depth, product.has_bias) == (8, 96, 32, True)
    assert layers["head"].weight_elements == layers["table"].weight_elements == 50 * 32


def test_traffic_of_layers_by_hand(decoder: Capture) -> None:
    """Per sample of 8 tokens, at 4 bytes: two passes of a norm, six of a loss over 50 words."""
    layers = {layer["name"]: layer for layer in decoder.document["layers"]}
    normed, head = layers["blocks.0.qkv"], layers["head"]
    assert normed["norm"] == normed["vector"] == f"{2 * 4 * 8 * 32} B"
    assert normed["operands"] == f"{4 * 8 * (32 + 96)} B"
    # Under autocast a norm keeps its input and both deviations of a row in fp32.
    assert normed["stream"] == f"{4 * 8 * (32 + 2)} B"
    assert head["wide"] == f"{6 * 4 * 8 * 50} B"
    assert head["fused"] == f"{passes_of('fused_loss') * 4 * 8 * 50:g} B"


def test_frozen_parameters_spare_products() -> None:
    module = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(3)))
    module[0].weight.requires_grad_(False)
    module[2].weight.requires_grad_(False)
    captured = capture(module, torch.zeros(4, 8))
    assert [layer.gradients for layer in captured.workload.layers] == [0, 1, 1]
    assert captured.ready_order == ("1.weight",)
    assert captured.workload.training_flops == 2 * 64 * (1 + 3 + 2)
    gpu = load_gpu("a100-sxm4-80gb")
    times = layer_times(captured.workload, gpu, batch=64, precision="fp32")
    assert times.backward_s[0] == 0
    assert times.matrix_backward_s is not None
    # as much work, but the sum of a weight's gradient may be split
    assert 0.5 < times.matrix_backward_s[1] / times.matrix_backward_s[2] < 2


def test_parameters_without_a_gradient_are_reduced_with_the_first(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    module[0].register_parameter("idle", torch.nn.Parameter(torch.zeros(5)))
    captured = capture(module, torch.zeros(4, 8), name="with\na line: [")
    read = load_workload(str(captured.save(tmp_path / "idle.yaml")))
    order = [read.tensors[index].name for index in read.ready_order]
    assert order[0] == "0.idle"
    assert sorted(order[1:]) == sorted(captured.ready_order)
    assert "No gradient reaches 0.idle" in " ".join(captured.notes)
    for samples in (0, -1, 0.5):
        with pytest.raises(InputError, match=r"samples: found .* above zero"):
            capture(module, torch.zeros(4, 8), samples=samples)  # type: ignore[arg-type]


def test_the_module_stays_as_it_was(tokens: dict[str, Any]) -> None:
    module = Decoder().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    weight = module.table.weight
    capture(module, tokens)
    assert not module.training
    assert module.table.weight is weight is module.head.weight
    assert weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_checkpoints_run_as_plain_calls() -> None:
    from torch.utils.checkpoint import checkpoint

    inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))

    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return checkpoint(self.inner, x, use_reentrant=False)

    x = torch.zeros(2, 8)
    plain, checkpointed = capture(inner, x), capture(Checkpointed(), x)
    assert checkpointed.forward_flops == plain.forward_flops
    assert activation_bytes(checkpointed.workload, 2, "fp32") == activation_bytes(
        plain.workload, 2, "fp32"
    )
    assert "compute.recompute" in " ".join(checkpointed.notes)


@pytest.mark.slow
def test_a_transformer_of_torch_with_a_mask_is_captured() -> None:
    """It compares the mask with a causal one, whose values fake tensors do not have."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = torch.nn.TransformerEncoder(layer, 2)
            mask = torch.nn.Transformer.generate_square_subsequent_mask(6)
            self.register_buffer("mask", mask)

        def forward(self, x: Any) -> Any:
            return self.encoder(x, mask=self.mask)

    x = torch.zeros(2, 6, 16)
    faked, real = capture(Masked(), x), capture(Masked(), x, real=True)
    assert faked.forward_flops == real.forward_flops
    assert faked.ready_order == real.ready_order
    assert "taken as causal" in " ".join(faked.notes)
    assert "taken as causal" not in " ".join(real.notes)


def test_control_flow_on_data_is_refused_unless_asked_for() -> None:
    with pytest.raises(InputError, match=r"value of a tensor .*small_modules.py.*real=True"):
        capture(Branching(), torch.ones(2, 4))
    assert capture(Branching(), torch.ones(2, 4), real=True).forward_flops == 2 * 16


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((Branching, torch.ones(2, 4)), "built"),
        ((torch.nn.Linear(4, 4), torch.ones(2, 5)), "same reduction dim"),
        ((torch.nn.Linear(4, 4), {}), "batch: found no tensor"),
        ((torch.nn.Linear(4, 4).requires_grad_(False), torch.ones(2, 4)), "requires a gradient"),
    ],
)
def test_faults_say_what_is_wrong(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(InputError, match=text):
        capture(*arguments)


def test_a_loss_must_be_a_scalar() -> None:
    with pytest.raises(InputError, match=r"loss: found a value of shape \(2, 4\)"):
        capture(torch.nn.Linear(4, 4), torch.ones(2, 4), loss=lambda output: output)


def test_a_large_model_needs_no_memory() -> None:
    """A linear map of 400 GB on the meta device."""
    module = torch.nn.Linear(316_228, 316_228, bias=False, device="meta")
    captured = capture(module, torch.zeros(1, 316_228))
    assert captured.workload.parameters == 316_228**2
    assert "99,9" in repr(captured) or "100,0" in repr(captured)


def test_the_command_calls_a_function_of_a_file(tmp_path: Path) -> None:
    script = tmp_path / "my_training.py"
    script.write_text(
        "import torch\n\ndef example():\n"
        "    return torch.nn.Linear(8, 4), (torch.zeros(2, 8), torch.zeros(2, 4)), "
        "torch.nn.MSELoss()\n"
    )
    out = tmp_path / "mine.yaml"
    app = build_app(["capture"])
    done = CliRunner().invoke(app, ["capture", f"{script}:example", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert load_workload(str(out)).parameters == 36
    for function, text in (("exmple", "did you mean 'example'"), ("", "FILE.py:FUNCTION")):
        wrong = CliRunner().invoke(app, ["capture", f"{script}:{function}", "-o", str(out)])
        assert wrong.exit_code == 2
        assert text in wrong.output


@pytest.mark.parametrize("name", ["Model", "make", "model", "Wide"])
def test_who_names_a_model_is_told_what_to_write(tmp_path: Path, name: str) -> None:
    """Five lines, which work as they are pasted where arguments have defaults."""
    script = tmp_path / f"of_{name.lower()}.py"
    script.write_text(
        "from torch import nn\n"
        "class Model(nn.Sequential):\n"
        "    def __init__(self, classes=10):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(3 * 224 * 224, classes))\n"
        "class Wide(Model):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__(classes)\n"
        "def make():\n"
        "    return Model()\n"
        "model = Model()\n"
    )
    with pytest.raises(InputError, match="such as, in the same file:") as refused:
        call_function(f"{script}:{name}")
    _, *lines = str(refused.value).splitlines()
    assert len(lines) == 5
    with script.open("a") as file:
        file.write("\n".join(lines).replace("Wide()", "Wide(10)"))
    model, batch, loss = call_function(f"{script}:with_batch")
    assert capture(model, batch, loss=loss).workload.parameters == 10 * (3 * 224 * 224 + 1)


def test_the_example_of_the_help_and_of_the_documents_works(tmp_path: Path) -> None:
    """As it stands there, and prints what the page says."""
    made, *_ = (block for block in blocks(PAGE.read_text()) if block.caption == "train.py")
    assert made.body in (inspect.getdoc(commands.capture) or "") + "\n"
    (tmp_path / "train.py").write_text(made.body)
    output = tmp_path / "mymodel.yaml"
    arguments = ["capture", f"{tmp_path}/train.py:example", "-o", str(output)]
    printed = CliRunner().invoke(build_app(["capture"]), arguments).output
    assert printed.replace(str(output), output.name).strip() in PAGE.read_text()
