"""GPUs in any usual spelling, and what a name leaves open."""

from __future__ import annotations

import pytest

from perfmodel.topology.from_text.gpu_text import read_gpu
from perfmodel.topology.from_text.parts import hardware_parts
from perfmodel.topology.templates.gpus import gpu_names, load_gpu


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla V100-SXM3-32GB", "v100-sxm3-32gb"),
        ("V100S-PCIE-32GB", "v100s-pcie-32gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("H100 PCIe", "h100-pcie-80gb"),
        ("H100 NVL", "h100-nvl-94gb"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("RTX4090", "rtx-4090"),
        ("rtx 3090", "rtx-3090"),
        ("RTX 3090 Ti", "rtx-3090-ti"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("L40", "l40"),
        ("L4", "l4"),
        ("A10G", "a10g"),
        ("NVIDIA A10", "a10"),
        ("H20", "h20-sxm5-96gb"),
        ("H200", "h200-sxm5-141gb"),
        ("GB200", "gb200-186gb"),
        ("B200", "b200-sxm-180gb"),
        ("Tesla P100-SXM2-16GB", "p100-sxm2-16gb"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("rtx-5090", "rtx-5090"),
    ],
)
def test_read_gpu_any_spelling(words: str, name: str) -> None:
    assert read_gpu(words).name == name


def test_what_a_name_leaves_open_is_said() -> None:
    assert read_gpu("A100", "NVLink bridge").part.form == "pcie"
    assert "form SXM4" in " ".join(read_gpu("A100").assumptions)
    assert "80 GB" in " ".join(read_gpu("A100").assumptions)
    assert read_gpu("A100-SXM4-80GB").assumptions == ()
    assert "first of those" in read_gpu("H100 PCIe + A100-PCIE-40GB").assumptions[0]


def test_every_part_is_a_gpu_of_the_table_with_its_memory() -> None:
    for name, part in hardware_parts().gpus.items():
        assert name in gpu_names()
        # ECC and the driver keep up to a twelfth
        assert 0.91 * part.memory < load_gpu(name).memory_bytes / 2**30 <= 1.001 * part.memory
        assert read_gpu(name).name == name
        assert part.nvlink is None or part.lanes


@pytest.mark.parametrize(
    ("text", "family", "form_stated", "memory"),
    [
        ("Tesla V100-SXM2-16GB", "v100", True, 16),
        ("H100 PCIe", "h100", True, None),
        ("NVIDIA A100 80GB PCIe", "a100", True, 80),
        ("GeForce RTX 4090", "4090", False, None),
        ("GB200 NVL72", "gb200", False, None),
        ("H100 PCIe + A100-PCIE-40GB", "h100", True, None),
        ("LambdaCloud 2x V100 16GB", "v100", False, 16),
        ("RTX A6000", "a6000", False, None),
    ],
)
def test_what_is_stated_of_a_gpu(
    text: str, family: str, form_stated: bool, memory: int | None
) -> None:
    gpu = read_gpu(text)
    assert gpu.part.spelled == family
    assert gpu.memory_GB == memory
    assert gpu.form_stated == form_stated


def test_a_second_gpu_is_kept_apart() -> None:
    assert read_gpu("H100 PCIe + A100-PCIE-40GB").others == "A100-PCIE-40GB"
    assert read_gpu("H100/H200-SXM (gpu: 8)").others == "H200-SXM (gpu: 8)"
    assert read_gpu("2x A100 80GB").others == ""


def test_a_memory_of_thousands_of_digits_is_a_number() -> None:
    assert read_gpu(f"H100-SXM5-{'9' * 5000}GB").memory_GB == float("inf")
