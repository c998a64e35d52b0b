"""Models, software and buckets as tables write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import MIB, DdpOptions
from reports.validation.trainings import step_times
from reports.validation.trainings.rows.model_names import build_named, read_model
from reports.validation.trainings.rows.parse import (
    UnsupportedRow,
    in_common_columns,
    parse_row,
    samples_per_s,
)
from reports.validation.trainings.rows.software import read_software, releases
from reports.validation.trainings.step_times import compute_precision, topology_of

ROW = {
    "dataset": "x",
    "model": "ResNet50",
    "framework": "PyTorch",
    "gpu": "V100-SXM2-16GB",
    "nodes": "1",
    "gpus_per_node": "8",
    "batch_per_gpu": "32",
    "precision": "FP32",
    "interconnect": "NVLink2 hybrid cube mesh",
    "sync_mode": "ddp",
    "metric": "step_time",
    "value": "0.1",
}


# ---------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("model", "name", "length"),
    [
        ("BERT-Large", "bert-large", 128),
        ("bert_large", "bert-large", 128),
        ("bert-large-uncased", "bert-large", 128),
        ("BERT Large (Wikipedia)", "bert-large", 128),
        ("HF BERT-large", "bert-large", 128),
        ("BERT-L", "bert-large", 128),
        ("LanguageModeling/BERT", "bert-large", 128),
        ("BERT-Large, seq 512", "bert-large", 512),
        ("BERT-Large phase 2", "bert-large", 512),
        ("bert_large_squad", "bert-large", 384),
        ("BERT", "bert-base", 128),
        ("bert-base-cased", "bert-base", 128),
        ("Classification/ConvNets/resnet50v1.5", "resnet50", None),
        ("torchvision resnet101", "resnet101", None),
        ("InceptionV3", "inception-v3", None),
        ("VGG-19", "vgg19", None),
        ("ViT-B/16", "vit-b-16", None),
        ("GPT-2 XL", "gpt2-xl", None),
    ],
)
def test_spellings(model: str, name: str, length: int | None) -> None:
    named = read_model({"model": model})
    assert named is not None
    assert (named.name, named.sequence_length, named.image_size) == (name, length, None)


@pytest.mark.parametrize(
    "model",
    [
        "ResNet50 v1b",
        "wide_resnet50_2",
        "se-resnext101-32x4d",
        "biobert",
        "DistilBERT",
        "VGG16 (CIFAR)",
        "HF BERT (size not stated)",
        "tacotron2",
    ],
)
def test_other_models_are_not_taken_for_these(model: str) -> None:
    assert read_model({"model": model}) is None


@pytest.mark.parametrize(
    "cells",
    [
        {"model": "ResNet-18 (CIFAR-10)"},
        {"model": "resnet18_cifar10"},
        {"model": "resnet18 cifar"},
        {"model": "ResNet-18", "source_path": "sched/traces/cifar10/placements.csv"},
    ],
)
def test_nets_for_cifar_are_small(cells: dict[str, str]) -> None:
    """Parameters and operations of kuangliu/pytorch-cifar's ResNet18: 11.17 M, 0.56 G products."""
    named = read_model(cells)
    assert named is not None
    assert named.image_size == 32
    model = build_named(named)
    assert model.parameters == 11_173_962
    products = sum(layer.matmul_flops for layer in model.layers) / 2
    assert products == pytest.approx(0.5554e9, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [("resnext50_32x4d", 25_028_904), ("ResNeXt-101 32x8d", 88_791_336), ("resnet50", 25_557_032)],
)
def test_grouped_convolutions(model: str, parameters: int) -> None:
    """Parameters as torchvision's documentation of the weights counts them."""
    named = read_model({"model": model})
    assert named is not None
    assert build_named(named).parameters == parameters


# ---------------------------------------------------------------- software


@pytest.mark.parametrize(
    ("cells", "nccl"),
    [
        ({"framework": "PyTorch 1.4, Horovod 0.19"}, "2.4.8"),
        ({"framework": "PyTorch", "software": "PyTorch 1.4.0a0, CUDA 10.0, NCCL"}, "2.4.8"),
        ({"framework": "PyTorch 1.8"}, "2.7.8"),
        ({"framework": "torch==2.1.2"}, "2.18.1"),
        ({"framework": "PyTorch v2.6.0, NCCL 2.24.3"}, "2.24.3"),
        ({"framework": "PyTorch", "nccl_version": "2.9.6"}, "2.9.6"),
        ({"framework": "PyTorch DDP"}, None),
        ({"framework": "PyTorch 0.4"}, None),
    ],
)
def test_version_of_nccl(cells: dict[str, str], nccl: str | None) -> None:
    assert read_software(cells).nccl == nccl


RELEASES = st.tuples(st.integers(1, 2), st.integers(0, 20))


@given(RELEASES, RELEASES)
def test_newer_releases_bring_no_older_nccl(a: tuple[int, int], b: tuple[int, int]) -> None:
    def nccl(release: tuple[int, int]) -> list[int]:
        version = read_software({"framework": f"PyTorch {release[0]}.{release[1]}"}).nccl
        assert version is not None
        return [int(part) for part in version.split(".")]

    assert (nccl(a) <= nccl(b)) or a > b


def test_versions_of_the_file_are_read() -> None:
    """The version reaches the library: NCCL of PyTorch 1.4 has no more than that release had."""
    row = parse_row(ROW | {"software": "PyTorch 1.4"})
    assert row.software.nccl == releases().nccl["1.3"]
    timer = step_times.timer_of(row)
    assert timer.machine.settings.version == "2.4.8"


@pytest.mark.parametrize(
    ("framework", "model", "precision"),
    [
        ("PyTorch", "resnet50", "tf32"),
        ("PyTorch 1.10", "bert-base", "tf32"),
        ("PyTorch 2.1", "bert-base", "fp32"),
        ("PyTorch 2.1", "resnet50", "tf32"),  # convolutions go on taking it
        ("PyTorch 2.1 (NGC 23.10)", "bert-base", "tf32"),
    ],
)
def test_fp32_on_gpus_that_have_tf32(framework: str, model: str, precision: str) -> None:
    cells = {"gpu": "A100-SXM4-80GB", "interconnect": "NVLink3", "gpus_per_node": "1"}
    row = parse_row(ROW | cells | {"framework": framework, "model": model})
    assert compute_precision(row, topology_of(row).gpu) == precision
    half = parse_row(ROW | cells | {"precision": "bfloat16", "framework": framework})
    assert compute_precision(half, topology_of(half).gpu) == "bf16"


# ---------------------------------------------------------------- buckets


def bucket_bytes(cells: dict[str, str]) -> list[int]:
    row = parse_row(ROW | cells)
    return [bucket.nbytes for bucket in ddp_buckets(build_named(row.model), row.options)]


def test_caps_of_old_releases_leave_the_first_bucket() -> None:
    """PyTorch 1.4: a bucket of 1 MiB first, whatever the cap (distributed.py of that release)."""
    model = build_named(parse_row(ROW).model)
    default = [b.nbytes for b in ddp_buckets(model, DdpOptions())]
    old = {"software": "PyTorch 1.4.0a0"}
    assert bucket_bytes(old | {"bucket_cap_mb": "25"}) == default
    assert bucket_bytes({"bucket_cap_mb": "25"}) == default
    capped = ddp_buckets(model, DdpOptions(bucket_cap=10 * MIB, first_bucket=MIB))
    assert bucket_bytes(old | {"bucket_cap_mb": "10"}) == [b.nbytes for b in capped]


def test_explicit_caps_of_new_releases_are_of_all_buckets() -> None:
    model = build_named(parse_row(ROW).model)
    capped = ddp_buckets(model, DdpOptions(bucket_cap=10 * MIB))
    new = {"software": "PyTorch 2.6", "bucket_cap_mb": "10"}
    assert bucket_bytes(new) == [b.nbytes for b in capped]
    assert len(bucket_bytes({"bucket_cap_mb": "1"})) > len(bucket_bytes({}))


# ---------------------------------------------------------------- numbers


BENCHMARK = {
    "run": "a",
    "model": "resnet50",
    "batch_per_gpu": "32",
    "nodes": "2",
    "gpus_per_node": "8",
    "mode": "ddp",
    "bucket_cap_mb": "1",
    "p50_s": "",
    "p75_s": "0.108",
    "p90_s": "",
    "p95_s": "0.122",
    "hardware": "DGX-1 V100 (NVLink2 hybrid cube mesh), 4x 100 Gb InfiniBand",
    "software": "PyTorch 1.4.0a0, CUDA 10.0, NCCL",
}


def test_rows_without_a_median_take_the_next_percentile() -> None:
    cells = in_common_columns(BENCHMARK)
    assert (cells["metric"], cells["value"]) == ("p75_s", "0.108")
    assert samples_per_s(cells, parse_row(cells)) == pytest.approx(32 * 16 / 0.108)
    median = in_common_columns(BENCHMARK | {"p50_s": "0.104"})
    assert (median["metric"], median["value"]) == ("p50_s", "0.104")


def test_rows_without_any_time_say_so() -> None:
    with pytest.raises(UnsupportedRow, match="no step time"):
        parse_row(in_common_columns(BENCHMARK | {"p75_s": "", "p95_s": ""}))


def test_one_gpu_without_ddp() -> None:
    single = {"mode": "no ddp", "nodes": "1", "gpus_per_node": "1"}
    assert parse_row(in_common_columns(BENCHMARK | single)).gpus == 1
    with pytest.raises(UnsupportedRow, match="strategy"):
        parse_row(in_common_columns(BENCHMARK | {"mode": "no ddp"}))


@pytest.mark.parametrize(
    ("cells", "per_s"),
    [
        ({"metric": "step_time", "value": "0.1"}, 2560),
        ({"metric": "step_time", "value": "100", "unit": "ms"}, 2560),
        ({"metric": "rate", "value": "10", "unit": "iterations/s"}, 2560),
        ({"metric": "throughput", "value": "2560", "unit": "images/s"}, 2560),
        ({"metric": "throughput", "value": "320", "unit": "images/s per GPU"}, 2560),
    ],
)
def test_samples_per_second_of_all_gpus(cells: dict[str, str], per_s: float) -> None:
    """8 GPUs, 32 samples each, ten steps a second."""
    row = ROW | cells
    assert samples_per_s(row, parse_row(row)) == pytest.approx(per_s)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("FP16/AMP", "fp16"),
        ("mixed", "fp16"),
        ("AMP bf16", "bf16"),
        ("bfloat16", "bf16"),
        ("TF32", "tf32"),
        ("single", "fp32"),
        ("float32", "fp32"),
    ],
)
def test_precisions(text: str, precision: str) -> None:
    assert parse_row(ROW | {"precision": text}).precision == precision


@pytest.mark.parametrize("text", ["bf16/float8", "int8", "", "AMP fp8"])
def test_other_precisions(text: str) -> None:
    with pytest.raises(UnsupportedRow, match="precision"):
        parse_row(ROW | {"precision": text})


# ---------------------------------------------------------------- all-reduces


@pytest.mark.parametrize(
    ("cells", "at_once"),
    [
        ({"model": "BERT-base"}, False),
        ({"model": "BERT-base", "sync_mode": "allreduce after backward"}, True),
        ({"model": "BERT-base", "framework": "NVIDIADeepLearningExamples/PyTorch"}, True),
        ({"model": "LanguageModeling/BERT", "dataset": "nvidia_dle"}, True),
        ({"model": "ResNet50", "dataset": "nvidia_dle"}, False),
    ],
)
def test_nvidias_bert_reduces_all_gradients_after_backward(
    cells: dict[str, str], at_once: bool
) -> None:
    """run_pretraining.py: Apex with messages of 250 million elements, or one flat buffer."""
    row = parse_row(ROW | cells)
    assert (len(ddp_buckets(build_named(row.model), row.options)) == 1) == at_once


def test_micro_steps_are_read() -> None:
    assert parse_row(ROW).options.accumulate == 1
    assert parse_row(ROW | {"accumulate": "88"}).options.accumulate == 88
    for text in ("0", "many", "1.5", "-3"):
        with pytest.raises(UnsupportedRow, match="micro-steps"):
            parse_row(ROW | {"accumulate": text})
