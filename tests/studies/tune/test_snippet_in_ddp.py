"""What is printed to paste, pasted into the real DistributedDataParallel: exactly these buckets."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfmodel.report.tuning_text import recommended_words
from perfmodel.scenario import Scenario
from perfmodel.studies.tune.caps import as_bytes, number
from perfmodel.studies.tune.model import Choice, Recommendation, TuneResult
from perfmodel.studies.tune.run import tune_scenario
from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.workload import load_workload

WIDTHS = (300, 1100, 640, 130, 2048, 64, 700, 10)
Made = Callable[..., Scenario]


def tuned(made: Made, *overrides: str) -> TuneResult:
    elements = [a * b for a, b in itertools.pairwise(WIDTHS)]
    return tune_scenario(made(elements, [3, 4, 1, 2, 2, 0.5, 1], *overrides, library="nccl"))


def snippet(found: TuneResult, choice: Choice) -> str:
    """What PyTorch is told where one setting is recommended."""
    only = Recommendation((choice,) if choice is not found.default else ())
    return recommended_words(replace(found, recommended=only))["pytorch"].text


def real_buckets(folder: Path, snippets: list[str]) -> Any:
    torch = pytest.importorskip("torch", reason="runs the real DistributedDataParallel")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13):
        pytest.skip(f"needs torch 2.13 (bucket_cap_mb_list), found {torch.__version__}")
    (folder / "asked.json").write_text(json.dumps({"widths": WIDTHS, "snippets": snippets}))
    script = Path(__file__).with_name("ddp_of_snippets.py")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text())


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.replace(",", " ").split()]


@pytest.mark.slow
def test_the_buckets_are_those_intended(made: Made, tmp_path: Path) -> None:
    found = tuned(made)
    choices = (found.default, found.best_uniform, found.best_list, found.best_integer_list)
    real = real_buckets(tmp_path, [snippet(found, choice) for choice in choices])
    for choice in choices:
        rebuilt = real[snippet(found, choice)]["rebuilt"]
        assert numbers(rebuilt) == [bucket.nbytes for bucket in choice.buckets]
    assert len(found.best_list.buckets) > 1
    # a list also makes the first buckets
    caps = as_bytes(found.best_list.bucket_cap_mb_list or ())
    workload = load_workload(str(tmp_path / "model.csv"))
    first = ddp_buckets(workload, DdpOptions(bucket_caps=caps), iteration="first")
    seen = numbers(real[snippet(found, found.best_list)]["initial"])
    assert seen == [bucket.nbytes for bucket in first]
    assert len(numbers(real[snippet(found, found.default)]["initial"])) == 1


def test_each_program_is_told_what_it_takes_of_what_is_recommended(made: Made) -> None:
    """PyTorch the list; accelerate, which takes no list, the cap for all."""
    found = tuned(made)
    chosen = Recommendation((found.best_list, found.best_uniform))
    words = recommended_words(replace(found, recommended=chosen))
    assert words["pytorch"].text == snippet(found, found.best_list)
    cap = f"bucket_cap_mb={number(found.best_uniform.bucket_cap_mb or 0)}, "
    for program in ("pytorch_older", "accelerate"):
        assert cap in words[program].text.replace(")", ", ")
    assert "bucket_cap_mb_list" in words["pytorch"].text
    kept = recommended_words(replace(found, recommended=Recommendation(())))
    assert not any("bucket_cap" in each.text for each in kept.values())


def test_what_else_the_scenario_asks_for_is_pasted_too(made: Made) -> None:
    found = tuned(made, "strategy.static_graph=true", "strategy.gradient_as_bucket_view=true")
    line = snippet(found, found.best_uniform)
    for option in ("static_graph=True", "gradient_as_bucket_view=True", "broadcast_buffers=False"):
        assert option in line
