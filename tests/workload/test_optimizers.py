"""Optimizers beside those of elements: against the calls that the libraries make on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import pytest

import perfmodel as pm
from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload import build_model, roofline
from perfmodel.workload.memory import (
    optimizer_bytes,
    optimizer_launches,
    optimizer_state_bytes,
    optimizer_states,
)
from perfmodel.workload.memory.optimizer_states import optimizer_unhidden_s
from perfmodel.workload.model import Layer, ParameterTensor, Workload

VIEWS = ("permute", "view", "unsqueeze", "detach", "lift_fresh", "_local_scalar_dense")


def model(*shapes: tuple[int, ...], of_experts: bool = False) -> Workload:
    tensors = tuple(
        ParameterTensor(f"layers.{at}.weight", shape, of_experts=of_experts)
        for at, shape in enumerate(shapes)
    )
    return Workload("model", tensors, (Layer("layers.0", tuple(range(len(shapes))), 1.0),))


@dataclass
class Recorded:
    """Kernels of a step, bytes that those but products move, and operations of the products."""

    kernels: int = 0
    nbytes: float = 0.0
    flops: float = 0.0
    states_bytes: int = 0
    products: list[tuple[int, ...]] = field(default_factory=list)


def record(make: Callable[[Any], Any], *shapes: tuple[int, ...]) -> Recorded:
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    found = Recorded()

    def tensors(tree: Any) -> list[Any]:
        return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None):
            result = call(*args, **(kwargs or {}))
            name = call._schema.name
            if not name.startswith("aten::") or name.split("::")[1] in VIEWS:
                return result
            found.kernels += 1
            if name in ("aten::mm", "aten::addmm"):
                left, right = tensors(args)[-2:]
                found.flops += 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
                return result
            written = [
                each
                for argument, value in zip(call._schema.arguments, args, strict=False)
                if argument.alias_info is not None and argument.alias_info.is_write
                for each in tensors(value)
            ]
            moved = tensors((args, kwargs)) + (written or tensors(result))
            found.nbytes += sum(each.numel() * each.element_size() for each in moved)
            return result

    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer = make(parameters)
    for _ in range(2):  # the first step makes the states
        for each in parameters:
            each.grad = torch.randn_like(each)
        found = Recorded()
        with Recorder():
            optimizer.step()
    states = [state for each in parameters for state in tensors(optimizer.state[each])]
    found.states_bytes = sum(state.numel() * state.element_size() for state in states)
    return found


def flops_of(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> float:
    with monkeypatch.context() as patched:
        patched.setattr(optimizer_states, "product_s", lambda product, _: product.flops)
        return optimizer_unhidden_s(workload, "muon", load_gpu("h100-sxm5-80gb"))


def test_muon_makes_the_calls_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    shapes = (256, 512), (512, 256), (384, 384)
    made, ours = record(torch.optim.Muon, *shapes), model(*shapes)
    assert optimizer_launches(ours, "muon") == made.kernels
    assert optimizer_bytes(ours, "muon") == pytest.approx(made.nbytes, rel=1e-3)
    assert optimizer_state_bytes(ours, "muon") == made.states_bytes
    assert flops_of(ours, monkeypatch) == made.flops


def test_adafactor_makes_the_calls_of_transformers() -> None:
    pytest.importorskip("torch")
    adafactor = pytest.importorskip("transformers.optimization").Adafactor
    for shape in ((512, 1024), (4096,)):
        made = record(
            lambda p: adafactor(p, lr=1e-3, scale_parameter=False, relative_step=False), shape
        )
        assert optimizer_launches(model(shape), "adafactor") == made.kernels
        assert optimizer_bytes(model(shape), "adafactor") == pytest.approx(made.nbytes, rel=0.01)
        rms_bytes = 4
        assert optimizer_state_bytes(model(shape), "adafactor") == made.states_bytes - rms_bytes


# bitsandbytes 0.50 on a CPU: two states of a byte an element, and a scale of 256 of them; as wide
# as gradients below 4,096 elements
@pytest.mark.parametrize(
    ("elements", "kept"), [(4095, 2 * 4 * 4095), (4096, 2 * (4096 + 4 * 16)), (10**6, 2031256)]
)
def test_states_of_8_bits(elements: int, kept: int) -> None:
    assert optimizer_state_bytes(model((elements,)), "adamw-8bit") == pytest.approx(kept, rel=1e-5)


# apex, csrc/multi_tensor_lamb.cu: the gradients' norm reads them; stage 1 reads gradient,
# parameter and two states and writes update and states; norms of parameters and updates; stage 2
# reads both and writes parameters
def test_fused_lamb_goes_over_its_tensors_more_than_once() -> None:
    passes = 1 + (4 + 3) + (1 + 1) + (2 + 1)
    assert optimizer_bytes(model((100,)), "lamb", "fused") == 4 * 100 * passes
    assert optimizer_bytes(model((100,)), "lion", "fused") == 4 * 100 * 5


def test_muon_leaves_embeddings_and_vectors_to_adamw() -> None:
    gpt2, hidden = build_model("gpt2"), 12 * 12 * 768**2
    assert sum(prod(t.shape) for t in gpt2.tensors) == 124439808
    others = 124439808 - hidden
    assert optimizer_state_bytes(gpt2, "muon") == 4 * hidden + 8 * others


def test_experts_are_matrices_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    together = model((8, 64, 128), of_experts=True)
    assert flops_of(together, monkeypatch) == 8 * flops_of(model((64, 128)), monkeypatch)


def test_muon_takes_bf16() -> None:
    with pytest.raises(InputError, match="'muon' on v100"):
        optimizer_unhidden_s(model((64, 128)), "muon", load_gpu("v100-sxm2-16gb"))


@pytest.mark.parametrize(
    "changed", ["strategy={kind: fsdp}", "strategy={kind: zero}", "parallel={tensor: 2}"]
)
def test_whole_matrices_are_wanted(changed: str) -> None:
    with pytest.raises(InputError, match=r"'muon', which updates whole matrices"):
        load_scenario("resnet50-dgx-a100", ["compute.optimizer=muon", changed])


@pytest.mark.parametrize("optimizer", ["adafactor", "adamw-8bit"])
def test_what_runs_tensor_by_tensor_is_not_fused(optimizer: str) -> None:
    changes = [f"compute.optimizer={optimizer}", "compute.optimizer_kernels=fused"]
    with pytest.raises(InputError, match="no 'optimizer_kernels: fused'"):
        load_scenario("resnet50-dgx-a100", changes)


def test_a_step_has_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def optimizer_s(products_s: float) -> float:
        monkeypatch.setattr(roofline, "optimizer_unhidden_s", lambda *_: products_s)
        gpu, gpt2 = load_gpu("h100-sxm5-80gb"), build_model("gpt2")
        made = roofline.layer_times(gpt2, gpu, batch=1, precision="bf16", optimizer="muon")
        return made.optimizer_s

    assert optimizer_s(1.0) - optimizer_s(0.0) == pytest.approx(1.0)


def test_shards_have_states_of_8_bits() -> None:
    """fp32 shards: two states of 4 bytes, or of 1 and a scale of 4 bytes for 256 elements."""

    def states_bytes(optimizer: str) -> float:
        changes = {"compute.optimizer": optimizer, "cluster.nodes": 1, "model.dtype": "fp32"}
        return pm.run("llama2-7b-fsdp-h100", changes).main.memory.optimizer_bytes

    share = states_bytes("adamw-8bit") / states_bytes("adamw")
    assert share == pytest.approx((1 + 4 / 256) / 4, rel=1e-3)
