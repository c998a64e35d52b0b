"""Optimizers beside those of elements: against the calls that the libraries make on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import Any

import pytest

import perfmodel as pm
from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload import build_model, roofline
from perfmodel.workload.kernels.device import KernelConstants, kernel_constants, make_device
from perfmodel.workload.kernels.kernel_times import product_s
from perfmodel.workload.kernels.shapes import MatrixProduct
from perfmodel.workload.memory import (
    optimizer_bytes,
    optimizer_launches,
    optimizer_state_bytes,
    optimizer_states,
)
from perfmodel.workload.memory.optimizer_states import (
    fullest_share,
    gathered_matrices,
    layer_wise_shares,
    optimizer_unhidden_s,
    shares_of_step,
    temporary_share,
    undivided_products_s,
)
from perfmodel.workload.model import Layer, ParameterTensor, Workload
from perfmodel.workload.shard import Shard

VIEWS = (
    *("permute", "view", "unsqueeze", "detach", "lift_fresh", "_local_scalar_dense"),
    *("t", "transpose", "_unsafe_view", "expand", "split", "slice", "select", "alias"),
    *("split_with_sizes", "diagonal", "squeeze", "movedim", "reshape"),
)


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


def record(make: Callable[[Any], Any], *shapes: tuple[int, ...], steps: int = 2) -> list[Recorded]:
    """Return what each step but the first does, which makes the states."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    found, seen = Recorded(), list[Recorded]()

    def tensors(tree: Any) -> list[Any]:
        """Return tensors of a nest, and of objects of the library in it."""
        leaves = tree_flatten(tree)[0]
        inside = [tensors(list(vars(x).values())) for x in leaves if type(x).__name__ in KEEPING]
        return [*(x for x in leaves if isinstance(x, torch.Tensor)), *chain.from_iterable(inside)]

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
    for _ in range(steps):
        for each in parameters:
            each.grad = torch.randn_like(each)
        found = Recorded()
        with Recorder():
            optimizer.step()
        seen.append(found)
    states = [state for each in parameters for state in tensors(dict(optimizer.state[each]))]
    seen[-1].states_bytes = sum(state.numel() * state.element_size() for state in states)
    return seen[1:]


KEEPING = ("PreConditioner", "SGDGraft")
"""Classes of pytorch_optimizer whose objects hold states."""


def flops_of(
    workload: Workload,
    monkeypatch: pytest.MonkeyPatch,
    optimizer: str = "muon",
    *,
    gram: bool = False,
) -> float:
    with monkeypatch.context() as patched:
        patched.setattr(optimizer_states, "product_s", lambda product, _: product.flops)
        return optimizer_unhidden_s(workload, optimizer, load_gpu("h100-sxm5-80gb"), gram=gram)


def test_muon_makes_the_calls_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    shapes = (256, 512), (512, 256), (384, 384)
    (made,), ours = record(torch.optim.Muon, *shapes), model(*shapes)
    assert optimizer_launches(ours, "muon") == made.kernels
    assert optimizer_bytes(ours, "muon") == pytest.approx(made.nbytes, rel=1e-3)
    assert optimizer_state_bytes(ours, "muon") == made.states_bytes
    assert flops_of(ours, monkeypatch) == made.flops


def test_adafactor_makes_the_calls_of_transformers() -> None:
    pytest.importorskip("torch")
    adafactor = pytest.importorskip("transformers.optimization").Adafactor
    for shape in ((512, 1024), (4096,)):
        (made,) = record(
            lambda p: adafactor(p, lr=1e-3, scale_parameter=False, relative_step=False), shape
        )
        assert optimizer_launches(model(shape), "adafactor") == made.kernels
        assert optimizer_bytes(model(shape), "adafactor") == pytest.approx(made.nbytes, rel=0.01)
        rms_bytes = 4
        assert optimizer_state_bytes(model(shape), "adafactor") == made.states_bytes - rms_bytes


# pytorch_optimizer 4.1.0 on a CPU, SOAP with its defaults, ScalableShampoo in blocks of 1024:
# kernels of a step without refresh, operations of its products, bytes beside products (mean of ten
# steps, one of which refreshes SOAP's eigenvectors), bytes of states
RECORDED = {
    ("soap", (256, 512)): (18, 805306368, 15810048.0, 3670016),
    ("soap", (1024, 1024)): (18, 17179869184, 118286745.6, 25165824),
    ("soap", (20000, 64)): (13, 655360000, 103488128.0, 10272768),
    ("soap", (4096,)): (8, 0, 327680.0, 32768),
    ("shampoo", (256, 512)): (22, 402653184, 20185120.0, 3670016),
    ("shampoo", (600, 2048)): (31, 7982284800, 193968672.0, 32367616),
    ("shampoo", (4096,)): (14, 0, 426016.0, 32768),
}


def of_library(optimizer: str, library: Any) -> Callable[[Any], Any]:
    if optimizer == "soap":
        return library.SOAP
    options = {"shape_interpretation": False, "no_preconditioning_for_layers_with_dim_gt": 10**9}
    return lambda p: library.ScalableShampoo(p, block_size=1024, **options)


@pytest.mark.parametrize(("optimizer", "shape"), RECORDED)
def test_recorded_numbers_are_those_of_pytorch_optimizer(
    optimizer: str, shape: tuple[int, ...]
) -> None:
    library = pytest.importorskip("pytorch_optimizer")
    made = record(of_library(optimizer, library), shape, steps=11)
    nbytes = sum(step.nbytes for step in made) / 10
    recorded = (made[0].kernels, made[0].flops, pytest.approx(nbytes), made[-1].states_bytes)
    assert recorded == RECORDED[optimizer, shape]


@pytest.mark.parametrize(("optimizer", "shape"), RECORDED)
def test_factors_take_what_pytorch_optimizer_takes(
    optimizer: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, flops, nbytes, states_bytes = RECORDED[optimizer, shape]
    ours, kind = model(shape), kernel_constants().optimizer(optimizer)
    is_cut = optimizer == "shampoo" and max(shape) > 1024 and len(shape) > 1
    joined = is_cut  # a kernel joins the blocks, and goes over them twice
    assert optimizer_launches(ours, optimizer) == kernels - joined
    moved_bytes = nbytes - joined * 2 * 4 * prod(shape)
    assert optimizer_bytes(ours, optimizer) == pytest.approx(moved_bytes, rel=0.01)
    assert optimizer_state_bytes(ours, optimizer) == states_bytes
    lasting = replace(kind, factors=replace(kind.factors, refresh_products=0, column_s=0.0))
    monkeypatch.setattr(KernelConstants, "optimizer", lambda *_: lasting)
    assert flops_of(ours, monkeypatch, optimizer) == flops


# torch.linalg.qr of fp32 with cuSOLVER (flagos-ai/FlagGems, pull request 5586)
@pytest.mark.parametrize(("side", "taken_ms"), [(512, 1.836), (1024, 4.433), (4096, 31.295)])
def test_each_tenth_step_factorises_as_fast_as_cusolver(
    side: int, taken_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, factors = load_gpu("h20-sxm5-96gb"), kernel_constants().optimizer("soap").factors
    of_products_s = product_s(MatrixProduct(side, side, side), make_device(gpu, "fp32", 4))
    monkeypatch.setattr(optimizer_states, "product_s", lambda *_: 0.0)
    columns_s = 10 * optimizer_unhidden_s(model((side, side)), "soap", gpu) / 2
    multiplied = 1  # the statistic with the eigenvectors, before
    predicted_s = (factors.refresh_products - multiplied) * of_products_s + columns_s
    assert predicted_s == pytest.approx(taken_ms / 1e3, rel=0.2)


def test_newton_iterations_reach_one_from_the_ridge() -> None:
    """An eigenvalue x is x ((1 + 1/p) - x/p)^p after an iteration for the p-th root."""
    root, ridge, iterations = 4, 1e-6, 0
    x = ridge * (1 + root) / 2
    while abs(x - 1) > 1e-3:
        x *= ((1 + 1 / root) - x / root) ** root
        iterations += 1
    products = iterations * (2 + 1 + 1)  # the fourth power, with M, with the root
    assert kernel_constants().optimizer("shampoo").factors.refresh_products == pytest.approx(
        products, abs=8
    )


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


# deepspeed 0.19.8 on a CPU, under torch.utils.flop_counter.FlopCounterMode: operations of
# zeropower_via_gram_newtonschulz and of zeropower_via_newtonschulz5
@pytest.mark.parametrize(
    ("shape", "by_gram", "standard"),
    [
        ((64, 64), 7864320, 7864320),
        ((64, 128), 11534336, 13107200),
        ((64, 192), 13631488, 18350080),
        ((192, 64), 13631488, 18350080),
        ((8, 64, 192), 109051904, 146800640),
    ],
)
def test_muon_multiplies_as_deepspeed_does(
    shape: tuple[int, ...], by_gram: int, standard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = model(shape, of_experts=len(shape) > 2)
    assert flops_of(matrix, monkeypatch, gram=True) == by_gram
    assert flops_of(matrix, monkeypatch) == standard


def test_muon_takes_bf16() -> None:
    with pytest.raises(InputError, match="'muon' on v100"):
        optimizer_unhidden_s(model((64, 128)), "muon", load_gpu("v100-sxm2-16gb"))


def test_other_optimizers_of_sharded_ranks_take_no_bf16() -> None:
    assert undivided_products_s(model((128, 64)), "adamw", load_gpu("v100-sxm2-16gb")) == 0


@pytest.mark.parametrize(
    "changed",
    [
        "strategy={kind: fsdp, version: 1}",
        "strategy={kind: zero, stage: 3, offload_param: {device: cpu}}",
        "parallel={tensor: 2}",
    ],
)
@pytest.mark.parametrize("optimizer", ["muon", "soap", "shampoo"])
def test_whole_matrices_are_wanted(changed: str, optimizer: str) -> None:
    with pytest.raises(InputError, match=f"'{optimizer}', which updates whole matrices"):
        load_scenario("resnet50-dgx-a100", [f"compute.optimizer={optimizer}", changed])


@pytest.mark.parametrize("optimizer", ["adafactor", "adamw-8bit", "soap", "shampoo"])
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


# pytorch_optimizer 4.1.0, DistributedMuon over gloo on a CPU, matrices sorted by size as Keller
# Jordan's Muon sorts them: bytes of each gather, and of the states of the first rank
SHARED = ((64, 16), (16, 64), (64, 16), (48, 16), (16, 16), (16, 64), (64, 64), (64,))
GATHERED = {
    2: ([20480, 7168, 8192, 2048], 26112),
    3: ([24576, 11264, 3072], 20992),
    4: ([27648, 10240], 20992),
}


@pytest.mark.parametrize("ranks", GATHERED)
def test_the_first_rank_has_the_largest_of_each_gather(ranks: int) -> None:
    shared, (gathers, states_bytes) = model(*SHARED), GATHERED[ranks]
    lists = gathered_matrices(shared, "muon", ranks)
    sent = [[prod(shared.tensors[i].shape) * 4 for i in each] for each in lists]
    assert [sum(each) + (ranks - len(each)) * each[-1] for each in sent] == gathers
    assert optimizer_state_bytes(fullest_share(shared, "muon", ranks), "muon") == states_bytes


def test_one_rank_shares_nothing() -> None:
    gpt2, gpu = build_model("gpt2"), load_gpu("h100-sxm5-80gb")
    assert fullest_share(gpt2, "muon", 1).ready_order == gpt2.ready_order
    assert shares_of_step(gpt2, "muon", 1, gpu) == (1.0, 1.0)


LAYER_WISE = "strategy={kind: megatron, layer_wise_distributed_optimizer: true}"


def test_megatron_deals_tensors_out_to_and_fro() -> None:
    """Of ten tensors the four ranks of the library's own example have these."""
    sizes = model(*((n,) for n in (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)))
    shares = layer_wise_shares(sizes, 4)
    assert sorted(shares) == [[0, 7, 8], [1, 6, 9], [2, 5], [3, 4]]
    assert shares[0] == [1, 6, 9]  # which has most elements


def test_ranks_of_megatron_share_muon_out() -> None:
    def answer(shares: bool) -> pm.RunResult:
        strategy = {"kind": "megatron", "layer_wise_distributed_optimizer": shares}
        changes = {"strategy": strategy, "compute.optimizer": "muon", "cluster.nodes": 1}
        return pm.run("llama2-7b-fsdp-h100", changes)

    shared, alone = answer(shares=True), answer(shares=False)
    assert shared.main.step_time_s < alone.main.step_time_s
    own, whole = (each.main.memory.optimizer_bytes for each in (shared, alone))
    assert 1 / 8 <= own / whole < 1.25 / 8  # whose largest tensor AdamW updates


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([LAYER_WISE, "compute.optimizer=adamw"], "Megatron.s layer_wise_distributed_optimizer"),
        (
            [LAYER_WISE, "compute.optimizer=muon", "strategy.use_distributed_optimizer=true"],
            "not both",
        ),
        ([LAYER_WISE, "compute.optimizer=soap", "parallel={tensor: 2}"], "whole matrices"),
        (
            [
                "strategy={kind: megatron, use_distributed_optimizer: true}",
                "compute.optimizer=muon",
                "parallel={tensor: 2}",
            ],
            "'muon' without use_distributed_optimizer",
        ),
        (
            [
                LAYER_WISE,
                "compute.optimizer=muon",
                "model={name: mixtral-8x7b}",
                "parallel={expert: 2}",
            ],
            "dealt out to other ranks",
        ),
    ],
)
def test_megatron_shares_no_elements_out_as_well(changes: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        load_scenario("llama2-7b-fsdp-h100", changes)


def test_a_rank_of_many_has_the_largest_matrix_alone() -> None:
    """And all that AdamW updates, which nobody shares."""
    gpt2, largest = build_model("gpt2"), 4 * 768**2
    others = 124439808 - 12 * 12 * 768**2
    assert (
        optimizer_state_bytes(fullest_share(gpt2, "muon", 48), "muon") == 4 * largest + 8 * others
    )


def test_a_rank_of_eight_makes_products_of_six_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of m^3: a round takes 18 of m x 4m, 14 of m x 3m and 6 of m x m."""
    gpt2 = build_model("gpt2")
    own, all_ranks = 18 + 18 + 18 + 14 + 14 + 6, 12 * (18 + 18 + 14 + 6)
    made = flops_of(fullest_share(gpt2, "muon", 8), monkeypatch) / flops_of(gpt2, monkeypatch)
    assert made == pytest.approx(own / all_ranks)


def test_ranks_of_tensor_parallelism_make_their_parts_orthogonal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Megatron-Core's TensorParallelMuon by default: each part of a matrix is one by itself.

    Of parts m x n, m the shorter side, each of 5 rounds takes 2 m m (2 n + m) operations. Of GPT-2
    (12 blocks of width h), halves are 1.5 h x h, h x h / 2 and twice h x 2 h.
    """
    h = 768
    sides = ((h, 1.5 * h), (h / 2, h), (h, 2 * h), (h, 2 * h))
    half = build_model("gpt2", shard=Shard(tensor=2, vocabulary_multiple=128))
    expected = 12 * 5 * sum(2 * m * m * (2 * n + m) for m, n in sides)
    assert flops_of(half, monkeypatch) == pytest.approx(expected)


def test_parts_of_models_take_muon_in_megatron() -> None:
    """Stages and tensor parallelism leave a rank less to make orthogonal."""

    def step_s(optimizer: str, parallel: str) -> float:
        changes = [
            "strategy={kind: megatron, accumulate: 4}",
            f"compute.optimizer={optimizer}",
            f"parallel={parallel}",
            "cluster.nodes=1",
            "training.batch_per_gpu=1",
            "scale.gpus=[8]",
        ]
        return pm.run(load_scenario("llama2-7b-fsdp-h100", changes)).main.step_time_s

    more_s = [
        step_s("muon", parallel) - step_s("adamw", parallel)
        for parallel in (
            "{tensor: 2, sequence_parallel: true}",
            "{tensor: 8, sequence_parallel: true}",
            "{tensor: 2, sequence_parallel: true, pipeline: {stages: 4}}",
        )
    ]
    assert more_s[0] > 3 * more_s[1] > 0
    assert more_s[0] / 4 == pytest.approx(more_s[2], rel=0.3)  # the last stage to end has a head


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "lamb", "muon", "soap", "shampoo"])
def test_a_step_is_the_sum_of_its_tensors(optimizer: str) -> None:
    """Alike ones, which are worked out once, count as often as they are there."""
    gpu, shapes = load_gpu("h100-sxm5-80gb"), ((512, 256), (512, 256), (512, 256), (256,), (64, 9))

    def of(found: Callable[[Workload], float]) -> tuple[float, float]:
        return found(model(*shapes)), sum(found(model(shape)) for shape in shapes)

    for found in (
        lambda each: optimizer_unhidden_s(each, optimizer, gpu),
        lambda each: optimizer_bytes(each, optimizer),
        lambda each: optimizer_state_bytes(each, optimizer),
        lambda each: temporary_share(each, optimizer) * optimizer_state_bytes(each, optimizer),
    ):
        whole, parts = of(found)
        assert whole == pytest.approx(parts, rel=1e-6)
