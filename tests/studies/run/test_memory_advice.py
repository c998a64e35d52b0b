"""Advice where training does not fit: each proposal is a scenario that answers what it says."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario, make_scenario
from perfmodel.studies.run import memory_advice, run_scenario
from perfmodel.studies.run.result import SizeResult
from perfmodel.units import format_bytes, format_time

NODE = ("cluster.nodes=2", "scale=null", "training.batch_per_gpu=256")
DEEP = (
    "cluster.nodes=1",
    "scale=null",
    "cluster.fabric=null",
    "model.name=gpt2-xl",
    "model.sequence_length=1024",
    "training.batch_per_gpu=8",
    "compute.optimizer=adamw",
)


@cache
def answer(*settings: str) -> SizeResult:
    return run_scenario(load_scenario("bert-large-v100-25g", settings), with_first=True).main


def stated(line: str) -> tuple[str, str | None]:
    """Memory and time of a step that a proposal states."""
    match = re.search(r": ([\d.]+ \w+) of .*?(?:takes ([\d.]+ \w+) instead|$)", line)
    assert match is not None, line
    return match[1], match[2]


@pytest.mark.slow
def test_proposals_are_answers_of_the_scenarios_that_they_name() -> None:
    lines = answer(*NODE).memory.advice
    assert not answer(*NODE).memory.fits
    for begin, settings in {
        "compute.recompute: full": ["compute.recompute=full"],
        "strategy.kind: fsdp": ["strategy={kind: fsdp}"],
        "strategy.gradient_as_bucket_view: true": ["strategy.gradient_as_bucket_view=true"],
        "64 samples per GPU at a time, 4 times": [
            "training.batch_per_gpu=64",
            "strategy.accumulate=4",
        ],
    }.items():
        line = next(line for line in lines if line.startswith(begin))
        main = answer(
            *(each for each in NODE if "batch" not in each or "batch" not in settings[0]), *settings
        )
        nbytes, time = stated(line)
        assert nbytes == format_bytes(main.memory.total_bytes), line
        assert ("not enough alone" in line) != main.memory.fits
        if time is not None:
            assert time == format_time(main.step_time_s), line


def test_what_fits_comes_first_and_the_quickest_of_it() -> None:
    lines = answer(*NODE).memory.advice
    fits = [", fits" in line for line in lines]
    assert fits == sorted(fits, reverse=True)
    assert any(fits)
    assert lines[0].startswith("compute.recompute: full")  # accumulation communicates no less


@pytest.mark.slow
def test_a_pair_is_proposed_where_nothing_suffices_alone() -> None:
    lines = answer(*DEEP).memory.advice
    assert "not enough alone" in lines[-1]
    assert " with " in lines[0]
    assert ", fits" in lines[0]


@pytest.mark.parametrize(
    "settings",
    [("training.batch_per_gpu=8", "cluster.nodes=1", "scale=null", "cluster.fabric=null")],
)
def test_no_advice_where_it_fits(settings: tuple[Any, ...]) -> None:
    assert answer(*settings).memory.fits
    assert answer(*settings).memory.advice == ()


def test_on_many_gpus_two_proposals_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take as long as they do where all are simulated."""
    few = answer(*NODE).memory.advice
    monkeypatch.setattr(memory_advice, "MANY_RANKS", 16)
    lines = run_scenario(load_scenario("bert-large-v100-25g", NODE), with_first=True).main
    timed = [line for line in lines.memory.advice if "; a step takes" in line]
    assert len(timed) == memory_advice.MOST_SIMULATED_LARGE
    assert set(timed) < set(few)
    untimed = [line.split(";")[0] for line in lines.memory.advice if "was not simulated" in line]
    all_timed = [line.split(";")[0] for line in few if "; a step takes" in line]
    assert {*untimed, *(line.split(";")[0] for line in timed)} == set(all_timed)


def test_beside_what_varies_steps_are_those_without_it() -> None:
    events = "events=[{jitter: {kind: gamma, cv: 0.1, per: step}}]"
    varied = run_scenario(load_scenario("bert-large-v100-25g", [*NODE, events]), with_first=True)
    plain, lines = answer(*NODE).memory.advice, varied.main.memory.advice
    assert varied.main.step_time_s > 1.02 * answer(*NODE).step_time_s
    assert any("; without what varies a step takes" in line for line in lines)
    assert [line.replace("without what varies ", "") for line in lines] == list(plain)


def test_what_another_optimizer_would_need_is_not_proposed() -> None:
    """DeepSpeed's optimizer on the CPU is Adam alone: no advice names it beside SGD."""
    content = {
        "perfmodel": 1,
        "model": {"name": "llama3-8b", "sequence_length": 2048},
        "compute": {"precision": "bf16"},
        "cluster": {"node": "dgx-h100"},
        "training": {"batch_per_gpu": 4},
        "strategy": {"kind": "megatron"},
    }
    memory = run_scenario(make_scenario(content)).main.memory
    assert not memory.fits
    assert memory.advice
    assert not [line for line in memory.advice if "offload_optimizer" in line]
    offloading = {"kind": "zero", "offload_optimizer": {"device": "cpu"}}
    with pytest.raises(InputError, match=r"compute\.optimizer: found 'sgd.*DeepSpeedCPUAdam"):
        make_scenario(content | {"strategy": offloading})


def test_a_change_that_a_pipeline_cannot_run_is_not_proposed() -> None:
    """FSDP that gathers in each micro-batch fits, and its order is none of a pipeline's."""
    scenario = make_scenario(
        {
            "perfmodel": 1,
            "model": {"name": "llama3.2-3b", "dtype": "bf16", "sequence_length": 1024},
            "compute": {"precision": "bf16", "optimizer": "adamw"},
            "cluster": {"node": "l40s-x8"},
            "training": {"batch_per_gpu": 4},
            "parallel": {"pipeline": 2},
            "strategy": {"kind": "ddp", "accumulate": 4},
        }
    )
    memory = run_scenario(scenario).main.memory
    assert not memory.fits
    assert memory.advice
    assert not any(line.startswith("strategy.kind: fsdp:") for line in memory.advice)


def test_steps_of_hundreds_of_micro_batches_are_proposed_without_their_time() -> None:
    scenario = make_scenario(
        {
            "perfmodel": 1,
            "model": {"name": "gpt2-large", "dtype": "bf16", "sequence_length": 1024},
            "compute": {"precision": "bf16", "optimizer": "adamw"},
            "cluster": {"node": "l40s-x8"},
            "training": {"batch_per_gpu": 64},
            "strategy": {"kind": "ddp", "accumulate": 64},
        }
    )
    lines = run_scenario(scenario).main.memory.advice
    micro_batches = next(line for line in lines if "times a step" in line)
    assert micro_batches.endswith("micro-batches, was not simulated")
