"""Words to paste are what the libraries themselves read: run, parsed or bound by each of them."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfmodel.files.read import parse_yaml
from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.training.words import Words, words_of
from perfmodel.workload.configs.file_text import typed_arguments
from perfmodel.workload.configs.megatron_arguments import megatron_model

MIB = 2**20
DDP, FSDP, SPLIT = "bucket-size-slow-ethernet", "llama2-7b-fsdp-h100", "gpt3-175b-1024-a100"


def asked(name: str, *changes: str) -> Scenario:
    split = (change.partition("=") for change in changes)
    return change_scenario(load_scenario(name), {key: parse_yaml(value) for key, _, value in split})


def told(name: str, *changes: str, gpus: int = 16, nodes: int = 2) -> dict[str, Words]:
    return words_of(asked(name, *changes), gpus, nodes)


def read_back(program: str, *texts: str, library: str = "") -> list[dict[str, Any]]:
    """Return what a library understood of each text, in a process of its own."""
    if importlib.util.find_spec(library or program) is None:
        pytest.skip(f"{library or program} is not installed, whose parser reads these words")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            str(Path(__file__).with_name("words_readers.py")),
            program,
        ],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


# ---------------------------------------------------------------- PyTorch

DDP_CASES = (
    (),
    ("strategy={bucket_cap: 49.5 MiB, static_graph: true, broadcast_buffers: false}",),
    ("strategy={first_bucket: 2 MiB, bucket_cap: 49 MiB, hook: fp16}",),
    ("strategy={hook: {kind: powersgd, rank: 4, wrapper: fp16}, accumulate: 2}",),
    ("strategy={mixed_precision: {param_dtype: fp16, reduce_dtype: fp32}}",),
    (
        "strategy.kind=zero_redundancy",
        "strategy.parameters_as_bucket_view=true",
        "strategy.ddp={find_unused_parameters: true}",
    ),
)


HYBRID = (
    *(
        f"strategy.{each}"
        for each in ("shard_gpus=8", "offload=true", "forward_prefetch=1", "backward_prefetch=2")
    ),
    "strategy.reshard_after_forward=false",
    "compute.compiled=blocks",
)
FIRST = "strategy={kind: fsdp, version: 1, wrap: %s, param_dtype: bf16, %s}"
FSDP_CASES = ((), HYBRID)
FIRST_CASES = (
    (FIRST % ("block", "backward_prefetch: post"),),
    (FIRST % ("size", "shard_gpus: 8, reshard_after_forward: false"),),
)


@pytest.fixture(scope="module")
def built() -> dict[tuple[str, ...], dict[str, Any]]:
    """What PyTorch understood of the lines for each of these cases; it is imported once."""
    cases = [*((DDP, *each) for each in DDP_CASES)]
    cases += [(FSDP, *each) for each in (*FSDP_CASES, *FIRST_CASES)]
    texts = [told(*case)["pytorch"].text for case in cases]
    return dict(zip(cases, read_back("pytorch", *texts, library="torch"), strict=True))


@pytest.mark.slow
def test_distributed_data_parallel_is_built_as_asked(
    built: dict[tuple[str, ...], dict[str, Any]],
) -> None:
    plain, capped, hooked, compressed, mixed, split = (built[DDP, *each] for each in DDP_CASES)
    assert plain["bucket_bytes_cap"] == 25 * MIB
    assert capped["bucket_bytes_cap"] == 49.5 * MIB
    assert (capped["static_graph"], capped["broadcast_buffers"]) == (True, False)
    assert hooked["bucket_bytes_cap_list"] == [2 * MIB, 49 * MIB]
    assert hooked["hooks"] == ["fp16_compress_hook"]
    assert compressed["rank"] == 4
    assert "param_dtype=torch.float16, reduce_dtype=torch.float32" in mixed["mixed_precision"]
    assert (split["optimizer"], split["find_unused_parameters"]) == (
        "ZeroRedundancyOptimizer",
        True,
    )


@pytest.mark.parametrize(
    ("optimizer", "named"), [("sgd", "torch.optim.SGD"), ("adamw", "torch.optim.AdamW")]
)
def test_the_optimizer_is_the_scenarios_own(optimizer: str, named: str) -> None:
    own = f"compute.optimizer={optimizer}"
    split = told(DDP, own, "strategy.kind=zero_redundancy")["pytorch"].text
    assert f"optimizer_class={named}," in split
    assert "AdamW" not in told(DDP, own, "compute.optimizer_kernels=fused")["pytorch"].text


@pytest.mark.slow
def test_fully_shard_is_called_as_asked(built: dict[tuple[str, ...], dict[str, Any]]) -> None:
    plain, hybrid_found = (built[FSDP, *each] for each in FSDP_CASES)
    dtypes = {"param_dtype": "torch.bfloat16", "reduce_dtype": "torch.float32"}
    assert plain.items() >= {"kept": False, "mesh": [16], "ahead": 0, "behind": 0, **dtypes}.items()
    assert (
        hybrid_found.items()
        >= {"kept": True, "mesh": [2, 8], "ahead": 1, "behind": 1, **dtypes}.items()
    )
    assert hybrid_found["offload"] == "CPUOffloadPolicy"


@pytest.mark.slow
def test_the_first_version_of_fsdp_is_built_as_asked(
    built: dict[tuple[str, ...], dict[str, Any]],
) -> None:
    blocks, hybrid = (built[FSDP, *each] for each in FIRST_CASES)
    assert (blocks["sharding"], blocks["units"]) == ("FULL_SHARD", 3)
    assert blocks["prefetch"] == "BackwardPrefetch.BACKWARD_POST"
    assert (hybrid["sharding"], hybrid["units"]) == ("_HYBRID_SHARD_ZERO2", 1)
    assert hybrid["param_dtype"] == "torch.bfloat16"


# ---------------------------------------------------------------- DeepSpeed

ZERO = (
    "strategy={kind: zero, stage: 3, reduce_bucket_size: 5e7, accumulate: 4, "
    "offload_optimizer: {device: nvme}, communication_data_type: bf16}"
)


def test_zero_is_deepspeeds_own_configuration() -> None:
    """Also what perfmodel's own section reads, whose names are DeepSpeed's."""
    text = told(FSDP, ZERO, "model.dtype=bf16")["deepspeed"].text
    document = json.loads(text)
    section = document["zero_optimization"]
    del section["offload_optimizer"]["nvme_path"]
    again = ZeroStrategy(
        kind="zero",
        accumulate=document["gradient_accumulation_steps"],
        communication_data_type=document["communication_data_type"],
        **section,
    )
    assert again == asked(FSDP, ZERO).strategy


def test_what_is_not_stated_is_left_to_deepspeed() -> None:
    """Its own configuration, in which "auto" and defaults are its business."""
    text = told(FSDP, "strategy={kind: zero, stage: 2, overlap_comm: true}")["deepspeed"].text
    assert json.loads(text)["zero_optimization"] == {"stage": 2, "overlap_comm": True}


def test_deepspeeds_muon_is_an_optimizer_of_its_own_configuration() -> None:
    asks = ("strategy={kind: zero, ns_method: standard}", "compute.optimizer=muon")
    document = json.loads(told(FSDP, *asks)["deepspeed"].text)
    assert document["optimizer"] == {"type": "Muon", "params": {"ns_method": "standard"}}
    assert "optimizer" not in json.loads(told(FSDP, "strategy={kind: zero}")["deepspeed"].text)


@pytest.mark.slow
def test_deepspeed_reads_its_configuration() -> None:
    onebit = "strategy={kind: onebit, optimizer: zero_one_adam, freeze_step: 2000}"
    texts = [
        told(FSDP, ZERO, "model.dtype=bf16")["deepspeed"].text,
        told(FSDP, "strategy={kind: zero, stage: 2}")["deepspeed"].text,
        told(FSDP, onebit)["deepspeed"].text,
    ]
    third, second, warm = read_back("deepspeed", *texts)
    assert (third["stage"], third["bucket"], third["accumulate"]) == (3, 50_000_000, 4)
    assert (third["bf16"], third["communicated"]) == (True, "torch.bfloat16")
    assert "nvme" in third["offload"]
    assert (third["autocast"], second["autocast"]) == (None, "torch.bfloat16")
    assert (second["stage"], second["bucket"], second["bf16"]) == (2, 500_000_000, False)
    assert warm["optimizer"] == ["ZeroOneAdam", {"var_freeze_step": 2000}]


# ---------------------------------------------------------------- accelerate


@pytest.mark.slow
def test_accelerate_reads_its_file() -> None:
    settings = ("strategy.offload=true", "strategy.reshard_after_forward=false")
    first = "strategy={kind: fsdp, version: 1, wrap: size, backward_prefetch: post, "
    first += "reshard_after_forward: false}"
    texts = [
        told(FSDP, *settings)["accelerate"].text,
        told(FSDP, first)["accelerate"].text,
        told(FSDP, ZERO)["accelerate"].text,
    ]
    second, old, deep = read_back("accelerate", *texts)
    assert (second["processes"], second["machines"], second["version"]) == (16, 2, 2)
    assert (second["reshard"], second["mixed_precision"]) == ("False", "bf16")
    assert "CPUOffloadPolicy" in second["offload"]
    assert "transformer_auto_wrap_policy" in second["wrap"]
    assert old["sharding"] == "ShardingStrategy.SHARD_GRAD_OP"
    assert old["prefetch"] == "BackwardPrefetch.BACKWARD_POST"
    assert "size_based_auto_wrap_policy" in old["wrap"]
    assert deep["file"] == "ds_config.json"


@pytest.mark.slow
def test_accelerate_hands_arguments_to_ddp() -> None:
    strategy = "strategy={bucket_cap: 49 MiB, hook: bf16, static_graph: true, accumulate: 4}"
    (found,) = read_back(
        "accelerate", told(DDP, strategy, "compute.precision=fp32")["accelerate"].text
    )
    assert found["arguments"] == {"bucket_cap_mb": 49, "static_graph": True}
    assert (found["hook"], found["accumulate"]) == ("BF16", 4)


# ---------------------------------------------------------------- Megatron-LM, torchtitan

LAYOUT = (
    "strategy={kind: megatron, use_distributed_optimizer: true, overlap_grad_reduce: true}",
    "strategy.accumulate=16",
    "strategy.bucket_size=100000000",
    "strategy.gradient_accumulation_fusion=false",
    "parallel.sequence_parallel=true",
    "parallel.context={degree: 2, kind: ulysses}",
    "parallel.pipeline={stages: 8, schedule: interleaved, chunks: 3}",
    "compute.recompute={modules: [core_attn, mlp]}",
)
NAMED = {
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "ddp_bucket_size": "bucket_size",
    "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
}
"""Fields of Megatron-Core that flags set by another name (``dest`` in arguments.py)."""
OF_TRAINING = {
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "make_vocab_size_divisible_by",
}
"""Flags of Megatron-LM that no configuration of Megatron-Core has."""


def test_megatrons_flags_say_the_layout() -> None:
    text = told(SPLIT, *LAYOUT, gpus=1024, nodes=128)["megatron"].text
    assert "--recompute-modules core_attn mlp --use" in text
    values = typed_arguments(text.replace("core_attn mlp", "core_attn")).values
    assert values == {
        "tensor_model_parallel_size": 8,
        "sequence_parallel": True,
        "context_parallel_size": 2,
        "cp_comm_type": "a2a",
        "pipeline_model_parallel_size": 8,
        "num_virtual_stages_per_pipeline_rank": 3,
        "make_vocab_size_divisible_by": 128,
        "micro_batch_size": 2,
        "global_batch_size": 2 * 16 * 1024 // (8 * 2 * 8),
        "seq_length": 2048,
        "bf16": True,
        "recompute_granularity": "selective",
        "recompute_modules": "core_attn",
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "ddp_bucket_size": 100000000,
        "no_gradient_accumulation_fusion": True,
    }
    model = megatron_model(
        f"--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --vocab-size 50257 {text}"
    )
    assert (model.dtype, model.default) == ("bf16", 2048)


@pytest.mark.slow
def test_megatron_core_has_these_fields() -> None:
    text = told(SPLIT, *LAYOUT, gpus=1024, nodes=128)["megatron"].text
    for flag, name in NAMED.items():
        text = text.replace(f"--{flag.replace('_', '-')}", f"--{name}")
    (found,) = read_back("megatron", text)
    assert {flag for flag, is_known in found.items() if not is_known} == OF_TRAINING


@pytest.mark.slow
def test_torchtitan_parses_its_flags() -> None:
    layout = (
        "parallel={tensor: 4, sequence_parallel: true, library: torch, "
        "pipeline: {stages: 2, schedule: interleaved, chunks: 2}}"
    )
    sharded = ("strategy.shard_gpus=8", "strategy.reshard_after_forward=false")
    texts = [
        told(FSDP, *sharded, "compute.recompute=full", "compute.compiled=true")["torchtitan"].text,
        told(FSDP, layout, "strategy.accumulate=4")["torchtitan"].text,
        told(FSDP, "parallel={tensor: 4}", "strategy={kind: ddp}")["torchtitan"].text,
    ]
    hybrid, split, copied = read_back("torchtitan", *texts)
    degrees = {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 8}
    assert hybrid["parallelism"].items() >= degrees.items()
    assert hybrid["parallelism"]["fsdp_reshard_after_forward"] == "never"
    assert (hybrid["recompute"], hybrid["compile"]) == ("FullAC.Config", True)
    degrees = {
        "tensor_parallel_degree": 4,
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_microbatch_size": 1,
    }
    assert split["parallelism"].items() >= degrees.items()
    batches = {"local_batch_size": 4, "global_batch_size": 4 * 2, "seq_len": 4096}
    assert split["training"].items() >= batches.items()
    degrees = {"data_parallel_replicate_degree": 4, "data_parallel_shard_degree": 1}
    assert copied["parallelism"].items() >= degrees.items()
    assert copied["parallelism"]["enable_sequence_parallel"] is False


# ---------------------------------------------------------------- launching


@pytest.mark.slow
def test_torchrun_parses_its_line() -> None:
    texts = [told(DDP)["launch"].text, told(FSDP, gpus=8, nodes=1)["launch"].text]
    several, one = read_back("launch", *texts, library="torch")
    assert several == {
        "nodes": "2",
        "per_node": "8",
        "script": "train.py",
        "meets": ["c10d", "FIRST_NODE:29500"],
    }
    assert one == {"nodes": "1", "per_node": "8", "script": "train.py", "meets": ["static", ""]}


@pytest.mark.slow
def test_deepspeed_parses_its_line() -> None:
    (found,) = read_back("launch", told(FSDP, ZERO)["launch"].text, library="deepspeed")
    assert found == {"nodes": 2, "per_node": 8, "script": "train.py"}


def test_horovod_is_launched_by_its_own_program() -> None:
    """As its user guide has it: processes in all, and a file of hosts where there are several."""
    horovod = "strategy={kind: horovod}"
    several, one = told(DDP, horovod), told(DDP, horovod, gpus=8, nodes=1)
    assert several["launch"].text == "horovodrun -np 16 --hostfile hosts python train.py"
    assert one["launch"].text == "horovodrun -np 8 python train.py"
    assert "launch" not in told(DDP, "strategy={kind: priority}")  # of no launcher known


# ---------------------------------------------------------------- environments, what is left out


def test_environments_are_lines_of_a_shell() -> None:
    """Names of Horovod's ``common.h`` and of NCCL's user guide; 64 MiB, 10 ms."""
    horovod = (
        "strategy={kind: horovod, fusion_threshold: 64 MiB, cycle_time: 10 ms, allreduce: torus}"
    )
    words = told(DDP, horovod, "library={algorithm: ring, env: {NCCL_MIN_NCHANNELS: 8}}")
    assert shlex.split(words["horovod"].text) == [
        "HOROVOD_FUSION_THRESHOLD=67108864",
        "HOROVOD_CYCLE_TIME=10",
        "HOROVOD_TORUS_ALLREDUCE=1",
    ]
    assert words["nccl"].text.split() == ["NCCL_ALGO=ring", "NCCL_MIN_NCHANNELS=8"]
    priority = told(DDP, "strategy={kind: priority, partition_size: 8 MB}")["bytescheduler"].text
    assert priority.split() == ["BYTESCHEDULER_PARTITION=2000000", "BYTESCHEDULER_CREDIT=8000000"]


def test_what_a_program_has_no_word_for_is_said() -> None:
    words = told(FSDP, "strategy.accumulate=4", "parallel={tensor: 2}", "compute.recompute=full")
    assert words["accelerate"].left_out == (
        "strategy.reduce_dtype",
        "strategy.accumulate",
        "parallel.tensor",
    )
    assert "no word for strategy.reduce_dtype, strategy" in words["accelerate"].remark
    assert words["pytorch"].left_out == ("parallel.tensor", "compute.recompute")
    assert told(DDP)["pytorch"].remark == ""
    hook = told(DDP, "strategy.hook=quantization_perchannel")
    assert hook["accelerate"].left_out == ("strategy.hook",)
    assert "None, quantization_hooks.quantization_perchannel_hook" in hook["pytorch"].text


def test_programs_without_autocast_say_so() -> None:
    """Megatron trains in bf16 or not at all, and accelerate's FSDP casts what it shards."""
    wide = ("model.dtype=fp32", "compute.precision=bf16")
    assert "compute.autocast" in told(SPLIT, *wide, gpus=1024, nodes=128)["megatron"].left_out
    autocast = told(FSDP, *wide, "strategy={kind: fsdp}", gpus=64, nodes=8)
    assert "compute.autocast" in autocast["accelerate"].left_out
    assert "torch.autocast" in autocast["pytorch"].text
    assert "fsdp_transformer_layer_cls_to_wrap" in autocast["accelerate"].text.splitlines()[0]
    narrow = told(FSDP, *wide, "strategy={kind: fsdp, param_dtype: bf16}", gpus=64, nodes=8)
    assert "compute.autocast" not in narrow["accelerate"].left_out
