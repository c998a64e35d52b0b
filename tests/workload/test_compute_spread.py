"""How sure predicted times of computing are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfmodel.scenario import make_scenario
from perfmodel.scenario.sections.model import AdaptersSection
from perfmodel.studies.run.run import run_scenario
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.compute_spread import measured_factors, roofline_factors, split_factors
from perfmodel.workload.model import Layer, ParameterTensor, Workload
from perfmodel.workload.model_changes import add_adapters
from perfmodel.workload.zoo import build_model


def width(factors: tuple[float, float]) -> float:
    low, high = factors
    assert low * high == pytest.approx(1.0)
    return math.log(high)


def test_what_is_assumed_or_estimated_is_less_sure() -> None:
    measured = load_gpu("a100-sxm4-80gb")
    assert not measured.efficiency_assumed
    assert load_gpu("a10").efficiency_assumed
    model = build_model("resnet50")
    usual = width(roofline_factors(model, measured, "fp16"))
    guessed = width(roofline_factors(model, replace(measured, efficiency_assumed=True), "fp16"))
    estimated = width(roofline_factors(replace(model, is_estimated=True), measured, "fp16"))
    noted = width(
        roofline_factors(replace(model, notes=("a field is not read",)), measured, "fp16")
    )
    assert noted == usual
    assert 0.1 < usual < 0.3
    assert guessed > usual
    assert estimated > usual


def test_families_have_their_own_spread() -> None:
    gpu = load_gpu("a100-sxm4-80gb")
    own = {
        name: width(roofline_factors(build_model(name), gpu, "fp16"))
        for name in ("resnet50", "bert-base")
    }
    assert own["bert-base"] != own["resnet50"]
    plain = Workload("plain", (ParameterTensor("w", (4, 4)),), (Layer("fc", (0,), 32.0),))
    assert width(roofline_factors(plain, gpu, "fp16")) > max(own.values())


def test_generations_of_which_little_was_published_are_less_sure() -> None:
    model = build_model("gpt2")
    common = width(roofline_factors(model, load_gpu("h100-sxm5-80gb"), "bf16"))
    rare = width(roofline_factors(model, load_gpu("rtx-4090"), "bf16"))
    assert common < rare < 0.5


def test_transformers_are_as_sure_as_published_steps_of_their_generation() -> None:
    model = build_model("llama3-8b")
    widths = {
        name: width(roofline_factors(model, load_gpu(gpu), "bf16"))
        for name, gpu in (
            ("a100", "a100-sxm4-80gb"),
            ("h100", "h100-sxm5-80gb"),
            ("b200", "b200-sxm-180gb"),
            ("ada", "rtx-4090"),
        )
    }
    assert widths["a100"] < widths["h100"] < widths["b200"] < widths["ada"]


def test_adapters_are_no_guess() -> None:
    model, gpu = build_model("llama3-8b"), load_gpu("a100-sxm4-80gb")
    adapted = add_adapters(model, AdaptersSection(rank=8, targets=("q_proj",)))
    assert adapted.notes
    factors = roofline_factors(model, gpu, "bf16")
    assert roofline_factors(adapted, gpu, "bf16") == factors


def test_a_measured_step_is_less_sure_the_farther_the_batch_is() -> None:
    widths = [width(measured_factors(batch, 64)) for batch in (64, 128, 256)]
    assert widths == sorted(widths)
    assert width(measured_factors(32, 64)) == pytest.approx(widths[1])
    assert widths[0] < 0.05
    assert width(measured_factors()) == widths[0]


def test_steps_of_split_models_are_less_sure() -> None:
    """Independent widths add as squares, and nothing makes a bar narrower; experts add most."""
    extras = []
    for experts in (False, True):
        low, high = split_factors((math.exp(-0.3), math.exp(0.4)), experts=experts)
        extra = math.log(split_factors((1.0, 1.0), experts=experts)[1])
        assert math.log(low) == pytest.approx(-math.hypot(0.3, extra))
        assert math.log(high) == pytest.approx(math.hypot(0.4, extra))
        extras.append(extra)
    assert 0.1 < extras[0] < extras[1]


def test_the_bar_of_a_split_step_is_wider_than_that_of_a_whole_one() -> None:
    widths = []
    for tensor in (1, 2):
        scenario = make_scenario(
            {
                "perfmodel": 1,
                "model": {"name": "llama3-8b", "sequence_length": 2048},
                "compute": {"precision": "bf16", "optimizer": "adam"},
                "cluster": {"node": "dgx-h100"},
                "training": {"batch_per_gpu": 2},
                "strategy": {"kind": "megatron"},
                "parallel": {"tensor": tensor},
            }
        )
        (parts,) = (each.uncertainties for each in run_scenario(scenario).points if each.gpus == 8)
        assert parts is not None
        compute = next(each for each in parts if each.origin.startswith("compute of"))
        widths.append(compute.high_s / compute.low_s)
    assert widths[1] > 1.05 * widths[0]
