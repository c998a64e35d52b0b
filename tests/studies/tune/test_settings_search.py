"""Tuned settings: never worse than the defaults, within memory, ready to paste."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.report.tuned_settings import settings_json, settings_lines, yaml_snippet
from perfmodel.scenario import Scenario, load_scenario
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.studies.tune.settings_search import Choice, search, tune_settings
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.strategy import Setting

SMALL = ("scale=null", "model.name=resnet18", "cluster.nodes=2")
TUNED = [kind for kind, row in STRATEGIES.items() if row.settings is not None]


def small(*sets: str) -> Scenario:
    return load_scenario("bucket-size-slow-ethernet", [*SMALL, *sets])


@pytest.mark.parametrize("kind", ["zero", "fsdp", "horovod"])
def test_a_precision_that_the_gpu_lacks_is_refused_as_run_does(kind: str) -> None:
    """Memory is estimated before anything is simulated, and asks for casts to fp8."""
    asked = small(f"strategy.kind={kind}", "compute.precision=fp8", "cluster.node=dgx-a100")
    for answer in (run_scenario, tune_settings):
        with pytest.raises(InputError, match=r"compute\.precision: found 'fp8'.*a100-sxm4-80gb"):
            answer(asked)


def test_a_strategy_may_be_its_name_alone() -> None:
    """``strategy: fsdp`` is tuned as ``strategy: {kind: fsdp}``."""
    by_name, by_kind = (
        tune_settings(small(given)) for given in ("strategy=fsdp", "strategy.kind=fsdp")
    )
    assert by_name.best == by_kind.best


@pytest.mark.slow
@pytest.mark.parametrize("kind", TUNED)
@pytest.mark.parametrize("nodes", [2, 8])
def test_never_worse_than_the_defaults(kind: str, nodes: int) -> None:
    tuned = tune_settings(small(f"strategy.kind={kind}", f"cluster.nodes={nodes}"))
    best, default = tuned.best, tuned.default
    assert best is not None
    assert best.step_time_s is not None
    assert default.step_time_s is not None
    assert default in tuned.trials
    assert best.step_time_s <= default.step_time_s
    assert tuned.keep == (best is default)
    assert tuned.keep or tuned.gain >= 0.01 - 1e-3
    least_s = min(trial.step_time_s for trial in tuned.trials if trial.step_time_s)
    assert least_s >= 0.99 * best.step_time_s


@pytest.mark.slow
@pytest.mark.parametrize("kind", TUNED)
def test_the_snippet_makes_the_step_that_was_promised(kind: str) -> None:
    slow = ("model.name=resnet50", "strategy.kind=" + kind)
    tuned = tune_settings(small(*slow))
    assert tuned.best is not None
    pasted = yaml_snippet(tuned).removeprefix("strategy: ")
    again = prepare(small(*slow[:1], f"strategy={pasted}")).step()
    assert again.step_time_s == tuned.best.step_time_s
    document = settings_json(tuned)
    assert document["best"]["step_time_s"] == again.step_time_s
    assert {"default", "asked", "best", "curve", "snippet", "words"} <= set(document)
    assert len(document["curve"]) == document["tried"]
    assert len(settings_lines(tuned)) > 3


def test_shards_stay_within_a_node_where_the_network_is_slow() -> None:
    """Gathers over NVLink, and an all-reduce of an eighth between nodes: three times fewer bytes
    over 25 Gbit/s than two gathers and a reduction among all."""
    cluster = ("cluster.node=v100-x8-25g", "cluster.nodes=2", "compute.precision=fp16")
    tuned = tune_settings(small("strategy=fsdp", "model.name=resnet50", *cluster))
    assert tuned.best is not None
    assert tuned.best.values["shard_gpus"] == 8
    assert '"cuda", (2, 8)' in tuned.words["pytorch"].text
    alone = tune_settings(small("strategy=fsdp"))  # two GPUs in two nodes: no group is smaller
    assert "shard_gpus" not in alone.fields


@pytest.mark.slow
def test_the_words_of_horovod_are_its_environment() -> None:
    tuned = tune_settings(small("strategy.kind=horovod"))
    lines = tuned.words["horovod"].text.splitlines()
    assert lines[0].startswith("HOROVOD_FUSION_THRESHOLD=")
    assert lines[1].startswith("HOROVOD_CYCLE_TIME=")


@pytest.mark.slow
def test_the_scenarios_own_settings_are_tried_and_left_if_bad() -> None:
    """10 ms and more of waiting for each of 62 tensors alone."""
    bad = ("strategy.kind=horovod", "strategy.fusion_threshold=0 B", "strategy.cycle_time=10 ms")
    tuned = tune_settings(small(*bad, "cluster.nodes=8"))
    assert tuned.requested is not None
    assert tuned.requested.values == {"fusion_threshold": "0 B", "cycle_time": "10 ms"}
    assert tuned.best is not None
    assert tuned.requested.step_time_s == prepare(small(*bad, "cluster.nodes=8")).step().step_time_s
    assert tuned.best.step_time_s < tuned.requested.step_time_s  # type: ignore[operator]


@pytest.mark.slow
def test_what_does_not_fit_is_not_recommended() -> None:
    """GPT-2 XL in units: whole on 16 GB it does not fit, block by block it does."""
    sets = (
        "scale=null",
        "strategy.kind=fsdp",
        "model.name=gpt2-xl",
        "training.batch_per_gpu=1",
        "compute.optimizer=adamw",
        "model.sequence_length=128",
        "cluster.nodes=8",
    )
    tuned = tune_settings(load_scenario("bucket-size-slow-ethernet", sets))
    assert tuned.too_large > 0
    assert all(trial.step_time_s is None for trial in tuned.trials if not trial.fits)
    assert tuned.best is not None
    assert tuned.best.fits


@pytest.mark.slow
def test_where_nothing_fits_nothing_is_recommended() -> None:
    sets = (
        "scale=null",
        "strategy.kind=horovod",
        "model.name=gpt2-xl",
        "cluster.nodes=2",
        "training.batch_per_gpu=8",
    )
    tuned = tune_settings(load_scenario("bucket-size-slow-ethernet", sets))
    assert tuned.best is None
    assert not tuned.keep
    assert not tuned.words
    assert "none of" in str(settings_lines(tuned)[0])


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("strategy.kind=data_parallel", "cluster.nodes=1"), "strategy.kind"),
        (("strategy.kind=horovod", "cluster.nodes=1"), "1 GPU in all"),
        (("strategy.kind=horovod", "strategy.allreduce=torus", "library.name=gloo"), "torus"),
    ],
)
def test_what_cannot_be_tuned_is_named(sets: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError) as caught:
        tune_settings(small(*sets))
    assert words in str(caught.value)


GRIDS = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True), min_size=1, max_size=4
)


@pytest.mark.slow
@given(GRIDS, st.randoms(use_true_random=False))
def test_the_search_is_never_worse_than_its_starts(grids: list[list[int]], draw: object) -> None:
    settings = [
        Setting(f"s{at}", tuple(float(value) for value in sorted(grid)), "bytes")
        for at, grid in enumerate(grids)
    ]
    asked: dict[Choice, float] = {}

    def cost(choice: Choice) -> float:
        return asked.setdefault(choice, draw.choice([1.0, 2.0, 3.0, math.inf]))  # type: ignore[attr-defined]

    starts = list(itertools.islice(itertools.product(*(each.values for each in settings)), 2))
    best = search(settings, starts, cost)
    assert asked[best] == min(asked.values())
    assert len(asked) <= 40 + 3 * 20 + 4 * 4 + 2


def test_the_search_comes_near_the_best_value_between_the_grid() -> None:
    """A valley at 20 MiB between 16 and 64: within a quarter of it."""
    mib = 2.0**20
    grid = Setting("size", tuple(mib * 4.0**power for power in range(6)), "bytes")
    (best,) = search([grid], [(mib,)], lambda choice: abs(math.log(choice[0] / (20 * mib))))
    assert 15 * mib < best < 25 * mib
