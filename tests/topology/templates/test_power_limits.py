"""Power limits: the law at its ends and against measurements, and what a limit changes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.scenario.sections.cluster import NodeSection
from perfmodel.topology.composed.load import load_node
from perfmodel.topology.importers.imported import node_document
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.gpus import limit_power, load_gpu, rate_at
from perfmodel.topology.templates.spec import NodeSpec
from perfmodel.workload.compute_spread import roofline_factors
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo import build_model

H100 = "h100-sxm5-80gb"
STATIC, EXPONENT, LOWEST = 0.15, 3.0, 0.83
TURNING = STATIC + (1 - STATIC) * LOWEST**EXPONENT

# Share of full power, and rate over that at full power.
PUBLISHED = {
    # ml-energy/zeus, sosp24_data/emulation/stage_profile/gpt3-175b+a100_sxm_bf16.csv: forward and
    # backward of a stage at 1,260, 1,125, 1,080 and 990 MHz; the rate at 400 W between two of them
    "a100 sxm, gpt-3": [(0.968, 0.991), (0.769, 0.896), (0.712, 0.862), (0.665, 0.794)],
    # the same of an A40 (300 W), at 1,305, 1,215 and 1,080 MHz
    "a40, gpt-3": [(0.817, 0.954), (0.749, 0.917), (0.664, 0.858)],
    # noonghunna/club-3090 issue 104: tokens/s of long prompts at 245, 225, 206 and 197 of 282 W
    "rtx 3090, prompts": [(0.869, 0.972), (0.800, 0.946), (0.730, 0.908), (0.700, 0.878)],
}
HOPPER = {
    # zzc0721/torch-performance-test-data issues 79 and 95, bf16 769 and 487 TFLOP/s, of 132 and 114
    # multiprocessors at 700 and 350 W
    "pcie against sxm": (0.579, 487 / 769 * 132 / 114),
    # pytorch/FBGEMM pull request 2546 against issue 79 and pytorch/pytorch issue 143465
    "bf16 at 500 w": (5 / 7, 585.23 / 769),
    "fp8 at 500 w": (5 / 7, 1125.51 / 1304.5),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rates_are_near(name: str) -> None:
    for share, rate in PUBLISHED[name]:
        assert rate_at(share) == pytest.approx(rate, rel=0.07)


@pytest.mark.parametrize("name", HOPPER)
def test_published_rates_of_hopper_are_near(name: str) -> None:
    share, rate = HOPPER[name]
    assert rate_at(share, "hopper") == pytest.approx(rate, rel=0.08)
    assert rate_at(share, "blackwell") == rate_at(share, "hopper") < rate_at(share)


def test_clock_and_voltage_fall_together_then_the_clock_alone() -> None:
    assert rate_at(1.0) == 1.0
    for rate in (0.99, 0.9, 0.84):
        assert rate_at(STATIC + (1 - STATIC) * rate**EXPONENT) == pytest.approx(rate)
    below = [rate_at(TURNING * share) for share in (0.7, 0.8, 0.9)]
    assert below[1] - below[0] == pytest.approx(below[2] - below[1])
    assert rate_at(TURNING - 1e-9) == pytest.approx(rate_at(TURNING + 1e-9))
    assert below[2] < LOWEST


def test_only_products_wait_for_a_limited_board() -> None:
    full, half = load_gpu(H100), limit_power(load_gpu(H100), 500.0)
    assert half.power_W == 500.0
    assert (half.memory_Bps, half.peak_flops) == (full.memory_Bps, full.peak_flops)
    assert limit_power(full, None) is full
    assert limit_power(full, 700.0) == full
    of_full, of_half = (forward_times(gpu) for gpu in (full, half))
    slower = [half_s / full_s for half_s, full_s in zip(of_half, of_full, strict=True)]
    assert max(slower) == pytest.approx(1 / rate_at(5 / 7, "hopper"), rel=0.01)  # a product
    assert min(slower) == pytest.approx(1.0, rel=1e-9)  # an element-wise layer


def forward_times(gpu: Gpu) -> list[float]:
    """Of the layers of a model; seconds."""
    times = layer_times(build_model("llama2-7b"), gpu, batch=8, precision="bf16")
    return [time_s for time_s in times.forward_s if time_s > 0]


def test_an_interval_is_wider_by_what_is_not_known_of_the_law() -> None:
    full = load_gpu(H100)
    widths = []
    for gpu in (full, limit_power(full, 600.0), limit_power(full, 400.0)):
        low, high = roofline_factors(build_model("llama2-7b"), gpu, "bf16")
        assert low * high == pytest.approx(1.0)
        widths.append(math.log(high))
    assert widths[0] < widths[1] < widths[2]
    lost = -math.log(rate_at(4 / 7, "hopper"))
    assert widths[2] == pytest.approx(math.hypot(widths[0], 0.38 * lost))


def composed(**fields: object) -> NodeSpec:
    return load_node(validate_document(NodeSection, fields))


def test_a_host_is_limited_in_words_in_fields_and_in_its_file() -> None:
    in_words = load_node("dgx-h100, 500 W")
    in_fields = composed(extends="dgx-h100", power_limit="0.5 kW")
    for node in (in_words, in_fields):
        gpu = build_topology(node).gpu
        assert gpu.power_W == 500.0
        assert gpu.matmul_efficiency["bf16"] == pytest.approx(
            load_gpu(H100).matmul_efficiency["bf16"] * rate_at(5 / 7, "hopper")
        )
    document = node_document(in_fields)
    assert document["power_limit"] == "500 W"
    assert validate_document(NodeSpec, document).power_limit == 500.0
    assert "power_limit 500 W" in in_fields.description
    notes = [note for note in build_topology(in_words).assumptions if "power" in note]
    assert [note.partition(" under ")[2][:6] for note in notes] == ["500 W,"]
    assert not any("power" in note for note in build_topology("dgx-h100").assumptions)


def test_a_limit_belongs_to_the_gpu_that_it_was_stated_for() -> None:
    limited = composed(extends="dgx-h100", power_limit="500 W")
    assert limited.power_limit == 500.0
    other = composed(extends="dgx-h100, 500 W", gpu="h200")
    assert other.power_limit is None
    assert composed(extends="dgx-h100", power_limit="700 W").power_limit is None


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"extends": "dgx-h100", "power_limit": "701 W"}, "315 to 700 W on a h100-sxm5-80gb"),
        ({"extends": "dgx-h100", "power_limit": "200 W"}, "315 to 700 W on a h100-sxm5-80gb"),
    ],
)
def test_limits_outside_the_law_are_refused(fields: dict[str, object], allowed: str) -> None:
    with pytest.raises(InputError) as raised:
        composed(**fields)
    (fault,) = raised.value.faults
    assert fault.field == "power_limit"
    assert allowed in fault.allowed


def test_a_gpu_of_unknown_power_has_no_limit() -> None:
    unknown = replace(load_gpu(H100), power_W=None)
    with pytest.raises(InputError, match="power_limit: found 500 W; allowed: nothing: no data"):
        limit_power(unknown, 500.0)


def test_a_template_with_a_limit_is_checked_where_it_is_built() -> None:
    node = load_node("dgx-h100").model_copy(update={"power_limit": 50.0})
    with pytest.raises(InputError, match="power_limit: found 50 W; allowed: 315 to 700 W"):
        build_topology(node)
