"""Plans of a model that ranks share issue the calls, and hold the tensors, of torch's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.plan.layer_calls import add_layer_calls
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.memory.recompute import NO_RECOMPUTE, Recompute
from perfmodel.workload.model import LayerTimes, Workload
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.llama import llama
from perfmodel.workload.zoo.text_decoder import gpt, gpt_shape
from tests.training.recorded import tensor_cases
from tests.training.recorded.run_cases import DTYPES, Call, run_cases

SHAPE = DecoderShape(
    tensor_cases.LAYERS,
    tensor_cases.WIDTH,
    tensor_cases.HEADS,
    tensor_cases.KV_HEADS,
    tensor_cases.INNER,
    tensor_cases.WORDS,
    tensor_cases.TOKENS,
    fused_norms=True,
)
TENSOR = Shard(tensor=2, library="torch")
SEQUENCE = replace(TENSOR, sequence_parallel=True)
FULL = Recompute("full")

ALONE = {
    "tensor": (TENSOR, NO_RECOMPUTE),
    "tensor, gathered loss": (replace(TENSOR, parallel_loss=False), NO_RECOMPUTE),
    "sequence": (SEQUENCE, NO_RECOMPUTE),
    "sequence, gathered loss": (replace(SEQUENCE, parallel_loss=False), NO_RECOMPUTE),
    "sequence, recompute": (SEQUENCE, FULL),
}
FSDP = {"fsdp, tensor": TENSOR, "fsdp, sequence": SEQUENCE}
NORM_BYTES = 4 * tensor_cases.WIDTH
ADAM_READS = 3
"""Times that torch.optim.AdamW reads a gradient, which DTensor adds up anew for each."""

Issued = tuple[str, int, int, str | None]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    return run_cases("tests.training.recorded.tensor_cases", 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    return run_cases("tests.training.recorded.tensor_cases", 4, tmp_path_factory.mktemp("four"))


def model(shard: Shard) -> Workload:
    length = tensor_cases.TOKENS
    return llama("toy", dtype="fp32", sequence_length=length, shape=SHAPE, shard=shard)


def request(workload: Workload, ranks: int) -> StepRequest:
    layers = len(workload.layers)
    seconds, kernels = np.full(layers, 1e-3), np.ones(layers, int)
    times = LayerTimes(
        seconds,
        2 * seconds,
        kernels,
        kernels,
        5e-6,
        1e-3,
        3,
        1e12,
        "equal",
        matrix_forward_s=seconds / 2,
        matrix_backward_s=seconds,
    )
    return StepRequest(workload, times, ranks, tensor_cases.BATCH, segments=1000)


def issued(plan: StepPlan) -> list[Issued]:
    """Collectives of a plan one by one."""
    ranks = {each.name: len(each.groups[0]) for each in plan.communicators}
    works = [task.work for task in plan.tasks if isinstance(task.work, Collective)]
    return [
        (work.op, work.nbytes, ranks[work.communicator], work.dtype)
        for work in works
        for _ in range(work.times)
    ]


def is_norm(call: Issued) -> bool:
    return call[:2] == ("all_reduce", NORM_BYTES)


def real(calls: list[Call]) -> list[Issued]:
    return [call.issued for call in calls if call.phase.startswith("step 1")]


def held(calls: list[Call]) -> dict[str, list[int]]:
    """Shapes of parameters by name."""
    rows = [call.op.split(" ", 1) for call in calls if call.phase == "memory"]
    return {name: json.loads(shape) for name, shape in rows}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_layers_call_what_parallelized_modules_call(
    name: str, alone: dict[str, list[Call]]
) -> None:
    shard, recompute = ALONE[name]
    asked = request(model(shard), 1)
    plan = add_layer_calls(ddp_plan(asked, DdpOptions()), asked, "fp32", recompute)
    planned, recorded = issued(plan), real(alone[name])
    assert [each for each in planned if not is_norm(each)] == [
        each for each in recorded if not is_norm(each)
    ]
    norms = sum(map(is_norm, planned))
    assert sum(map(is_norm, recorded)) == ADAM_READS * norms
    assert norms == shard.sequence_parallel * (2 * tensor_cases.LAYERS + 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FSDP)
def test_fully_sharded_layers_call_what_both_meshes_call(
    name: str, sharded: dict[str, list[Call]]
) -> None:
    asked = request(model(FSDP[name]), 2)
    plan = add_layer_calls(fsdp_plan(asked, FsdpStrategy(kind="fsdp", version=2)), asked, "fp32")
    planned, recorded = issued(plan), real(sharded[name])
    assert [each for each in planned if not is_norm(each)] == [
        each for each in recorded if not is_norm(each)
    ]
    assert sorted(filter(is_norm, planned)) == sorted(filter(is_norm, recorded))


def test_a_rank_holds_the_tensors_of_parallelized_modules(alone: dict[str, list[Call]]) -> None:
    assert held(alone["sequence"]) == {
        tensor.name: list(tensor.shape) for tensor in model(SEQUENCE).tensors
    }


# ---------------------------------------------------------------- Megatron-Core

KEPT = json.loads(Path(__file__).with_name("megatron_tensor.json").read_text(encoding="utf-8"))
GPT = gpt_shape(2, 32, 8, 12, 64)
"""Sizes of ``megatron_tensor_cases``."""
MEGATRON = {
    "tensor": (False, NO_RECOMPUTE),
    "sequence": (True, NO_RECOMPUTE),
    "tensor, recompute": (False, FULL),
    "sequence, recompute": (True, FULL),
}


def megatron_model(ranks: int, *, sequence: bool) -> Workload:
    shard = Shard(tensor=ranks, sequence_parallel=sequence)
    return gpt("toy", dtype="fp32", sequence_length=12, shape=GPT, dropout=False, shard=shard)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", MEGATRON)
def test_layers_call_what_megatron_calls(name: str, ranks: int) -> None:
    sequence, recompute = MEGATRON[name]
    asked = request(megatron_model(ranks, sequence=sequence), 1)
    plan = add_layer_calls(ddp_plan(asked, DdpOptions()), asked, "fp32", recompute)
    rows = KEPT["cases"][name]["calls"][str(ranks)]
    recorded = [(op, nbytes, size, DTYPES[dtype]) for op, nbytes, size, dtype, _ in rows]
    assert issued(plan) == [call for call in recorded if call[2] > 1]


def test_a_rank_holds_the_tensors_of_megatron() -> None:
    """Compared by shape: names and the order of a linear map's sides differ."""
    for ranks in (2, 4):
        rows = KEPT["cases"]["sequence"]["bytes"][str(ranks)]
        shapes = [json.loads(row.split(" ", 1)[1]) for row in rows]
        model_shapes = [tensor.shape for tensor in megatron_model(ranks, sequence=True).tensors]
        assert sorted(map(sorted, shapes)) == sorted(map(sorted, model_shapes))
