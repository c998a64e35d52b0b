"""Steps of language models: their operations, what the columns add, and published utilisation."""

from __future__ import annotations

import statistics

import pytest

from perfmodel.errors import InputError
from perfmodel.topology.templates.gpus import load_gpu
from reports.validation.run import records_folder
from reports.validation.trainings.llm_steps import (
    LLM,
    llm_datasets,
    llm_run,
    llm_step_s,
    llm_times,
    llm_workload,
    model_flops,
)

GPT3_XL = {
    "table": "t",
    "model": "GPT-3 XL",
    "family": "gpt",
    "layers": "24",
    "width": "2048",
    "heads": "16",
    "kv_heads": "16",
    "mlp_width": "8192",
    "vocabulary": "50257",
    "sequence_length": "2048",
    "gpu": "a100-sxm4-80gb",
    "precision": "bf16",
    "gpus": "8",
    "batch": "8",
    "accumulation": "4",
    "sharded": "none",
    "recompute": "0",
    "dropout": "0",
    "dtype": "bf16",
    "attention": "flash-2",
    "compiled": "0",
    "optimizer_kernels": "fused",
    "samples_per_s": "10",
    "source": "s",
    "note": "",
}


def step_s(**changes: str) -> float:
    cells = GPT3_XL | changes
    workload = llm_workload(cells)
    return llm_step_s(cells, workload, llm_times(cells, workload, load_gpu(cells["gpu"])))


def test_operations_are_six_per_parameter_and_token() -> None:
    """Narayanan et al. 2021 (arXiv 2104.04473), section 5.1, without recomputation, halved scores.

    72 B s l h^2 (1 + s / 6h + V / 12 l h), of which s / 6h counts masked scores.
    """
    b, s, layers, h, vocabulary = 1, 2048, 24, 2048, 50257
    formula = 72 * b * s * layers * h**2 * (1 + s / (12 * h) + vocabulary / (12 * layers * h))
    assert model_flops(llm_workload(GPT3_XL)) == pytest.approx(formula, rel=1e-6)


def test_columns_do_what_they_say() -> None:
    usual = step_s()
    again = step_s(recompute="1")
    assert 1.25 < again / usual < 1.34, "a forward more, of three"
    assert step_s(attention="flash-1") > usual
    assert step_s(optimizer_kernels="foreach") > usual > step_s(sharded="optimizer")
    assert step_s(sharded="optimizer") > step_s(sharded="all"), "no whole gradients to add up"
    assert step_s(optimizer_kernels="none") < step_s(sharded="optimizer")
    assert step_s(dtype="fp32") > usual, "autocast casts weights, and moves fp32"
    assert step_s(accumulation="8") / usual == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("optimizer_kernels", "quick"),
        ("heads", "0"),
        ("batch", "-1"),
        ("accumulation", "two"),
        ("samples_per_s", "0"),
        ("gpu", "a1000"),
    ],
)
def test_a_cell_that_means_nothing_is_named(column: str, text: str) -> None:
    with pytest.raises(InputError, match=column):
        llm_run(GPT3_XL | {column: text})


@pytest.mark.slow
def test_published_utilisation_of_gpt_like_models() -> None:
    """A100 and H100: half of the tables within 8 % in the median; none of these has a fit."""
    datasets = llm_datasets(records_folder() / "llm_steps.csv", [])
    assert all(each.id.startswith(LLM) and not each.left_out for each in datasets)
    medians = []
    for each in datasets:
        errors = [
            abs(case.error)
            for case, run in zip(each.cases, each.runs, strict=True)
            if run.gpu.startswith(("a100", "h100"))
        ]
        medians += [statistics.median(errors)] if errors else []
    assert len(medians) == 8
    assert statistics.median(medians) < 0.08
    assert all(20 < case.published < 75 for each in datasets for case in each.cases)
