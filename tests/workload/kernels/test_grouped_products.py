"""Products of experts: measured ones, bounds, and the two ways to run them."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.kernels.device import make_device
from perfmodel.workload.kernels.kernel_times import grouped_passes_s, product_s
from perfmodel.workload.kernels.shapes import GroupedProduct, MatrixProduct

B200 = make_device(load_gpu("b200-sxm-180gb"), "bf16", 2)

# Rows per group, columns, depth, groups, and TFLOP/s forward and of the rows' gradient: Transformer
# Engine's grouped linear in bf16 on a B200 (MooreThreads/SimuMax, b200_bf16_ceperm.json), DeepSeek
# V3's shapes; the constants rest on these and on DeepSeek-V2's.
PER_EXPERT = (
    (128, 4096, 7168, 256, 459.2, 505.6),
    (256, 4096, 7168, 128, 610.7, 748.2),
    (512, 4096, 7168, 64, 825.8, 910.4),
    (1024, 4096, 7168, 32, 1028.5, 979.9),
    (128, 7168, 2048, 256, 412.5, 332.5),
    (256, 7168, 2048, 128, 682.8, 524.0),
    (512, 7168, 2048, 64, 961.8, 662.0),
    (1024, 7168, 2048, 32, 864.5, 967.8),
)

# Groups, columns, depth, microseconds of forward and backward of 128,000 rows: torch._grouped_mm in
# bf16 on a B200 (pytorch/ao, torchao/prototype/moe_training/README.md).
SINGLE_KERNEL = (
    (1, 8192, 5120, 43140.2),
    (2, 8192, 5120, 39487.6),
    (4, 8192, 5120, 39189.2),
    (8, 8192, 5120, 37700.7),
    (1, 2048, 7168, 13064.8),
    (2, 2048, 7168, 14900.2),
    (4, 2048, 7168, 15823.6),
    (8, 2048, 7168, 14966.8),
)


def test_products_of_an_expert_each_against_measured_ones() -> None:
    errors = []
    for rows, columns, depth, groups, *measured in PER_EXPERT:
        grouped = GroupedProduct(rows * groups, columns, depth, groups, single_kernel=False)
        forward_s, _, back_s = grouped_passes_s(grouped, B200)
        errors += [
            math.log(grouped.flops / seconds / 1e12 / rate)
            for seconds, rate in zip((forward_s, back_s), measured, strict=True)
        ]
    assert abs(statistics.median(errors)) < 0.1
    assert statistics.median(map(abs, errors)) < 0.15


def test_one_kernel_for_all_experts_against_measured_ones() -> None:
    for groups, columns, depth, microseconds in SINGLE_KERNEL:
        passes = grouped_passes_s(GroupedProduct(128_000, columns, depth, groups), B200)
        assert sum(passes) * 1e6 == pytest.approx(microseconds, rel=0.12)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 20_000),
    st.integers(1, 8000),
    st.integers(1, 8000),
    st.integers(1, 64),
    st.booleans(),
)
def test_no_group_beats_the_peak_and_few_rows_cost_as_many_tiles(
    rows: int, columns: int, depth: int, groups: int, single: bool
) -> None:
    grouped = GroupedProduct(rows, columns, depth, groups, single)
    each_s = grouped_passes_s(grouped, B200)
    assert min(each_s) >= grouped.flops / B200.matrix_flops
    weights_s = groups * columns * depth * B200.item_bytes / B200.memory_Bps
    assert min(each_s) >= weights_s
    assert sum(each_s) >= product_s(MatrixProduct(math.ceil(rows / groups), columns, depth), B200)
    if not single:
        assert min(each_s) >= groups * B200.constants.grouped.dispatch_s


def test_a_group_alone_is_a_plain_product() -> None:
    """What follows others with cold operands does not concern it."""
    grouped = GroupedProduct(8192, 4096, 6144, 1, single_kernel=False)
    plain = MatrixProduct(8192, 4096, 6144)
    products = (plain, plain.weight_gradient, plain.input_gradient)
    assert grouped_passes_s(grouped, B200) == tuple(product_s(each, B200) for each in products)
    several = grouped_passes_s(GroupedProduct(16384, 4096, 6144, 2, single_kernel=False), B200)
    assert several[0] > 2.1 * product_s(plain, B200)
