"""The quickest parallel layout that fits: equal to what simulating everything finds."""

from __future__ import annotations

import pytest

from perfmodel.errors import InputError
from perfmodel.report.run.parallelism import best_table, describe_search
from perfmodel.scenario import change_scenario, load_scenario
from perfmodel.studies.choose import search as search_module
from perfmodel.studies.choose.search import choose_layout
from perfmodel.studies.choose.step_bound import StepBounds
from perfmodel.studies.compare import compare
from perfmodel.studies.plan import plan_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.sweep import run_sweep, variants
from perfmodel.studies.sweep.executor import Workers
from perfmodel.studies.tune.run import tune_scenario
from perfmodel.studies.tune.settings_search import tune_settings

SMALL = """# Which parallel layout?
perfmodel: 1
model: {name: bert-base, dtype: bf16, sequence_length: 128}
compute: {precision: bf16, optimizer: adamw}
strategy:
  kind: auto
  tensor: [1, 2]
  pipeline: [1, 2]
  schedules: [1f1b, interleaved]
  chunks: 2
  micro_batch: [2, 4]
  recompute: none
  buckets: false
cluster: {node: dgx-h100, nodes: 1}
training: {global_batch: 32}
"""
ON_TWO = {
    "cluster": {"node": "v100-x8-25g", "nodes": 2, "fabric": {"kind": "one-switch"}},
    "compute.precision": "fp16",
    "model.dtype": "fp16",
    "strategy.recompute": ["none", "full"],
    "strategy.pipeline": [1, 4],
    "strategy.schedules": "1f1b",
    "strategy.micro_batch": 2,
    "strategy.sharding": [{"kind": "ddp"}, {"kind": "megatron", "use_distributed_optimizer": True}],
}
LARGE_MICRO_BATCHES = {
    "training.global_batch": 512,
    "strategy.micro_batch": [16, 64],
    "strategy.tensor": 1,
    "strategy.sharding": [{"kind": "ddp"}, {"kind": "fsdp"}],
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("choose") / "small.yaml"
    path.write_text(SMALL)
    return load_scenario(str(path))


@pytest.fixture(scope="module")
def best(small):
    """What is chosen for the small scenario."""
    return choose_layout(small)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"strategy.micro_batch": 4}, ON_TWO, LARGE_MICRO_BATCHES])
def test_equals_simulating_all_that_fits(small, changes):
    scenario = change_scenario(small, changes)
    searched = choose_layout(scenario)
    every = choose_layout(scenario, exhaustive=True)
    assert searched.winner == every.winner
    assert searched.unproven == 0
    assert searched.simulated <= every.simulated
    for each in every.best:  # the ten quickest
        assert each.bound_s <= each.step_time_s * (1 + 1e-9)
        assert sum(each.parts_s.values()) == pytest.approx(each.step_time_s, rel=1e-6)
    for search in (searched, every):
        parts = search.impossible + search.too_big + search.bounded + search.simulated
        assert parts == search.listed


def test_what_recomputes_in_vain_is_bounded_without_its_plan(small, monkeypatch):
    """All layouts fit without recomputing, and are quicker by then."""
    fewer, planned, plan_s = {"strategy.micro_batch": 4}, [], StepBounds.plan_s
    alone = choose_layout(change_scenario(small, fewer))
    monkeypatch.setattr(StepBounds, "plan_s", lambda *of: planned.append(of) or plan_s(*of))
    found = choose_layout(change_scenario(small, fewer | {"strategy.recompute": ["none", "full"]}))
    assert found.winner == alone.winner
    assert (found.listed, found.bounded) == (2 * alone.listed, 2 * alone.bounded)
    assert found.unproven == 0
    assert (
        len(planned)
        < found.simulated + found.bounded_by_plan
        == 2 * (alone.simulated + alone.bounded_by_plan)
    )


@pytest.mark.usefixtures("steps_alone")
def test_a_batch_per_gpu_is_that_of_all_gpus(small, best):
    """Of eight GPUs 4 samples each are 32, and the scenario says what was made of it."""
    result = run_scenario(change_scenario(small, {"training": {"batch_per_gpu": 4}}))
    assert result.points[-1].global_batch == 32
    assert result.search.winner.changes == {
        **best.winner.changes,
        "training": {"global_batch": 32},
    }
    assert result.search.winner.step_time_s == best.winner.step_time_s
    assert any("global batch of 32 samples on 8 GPUs" in each for each in result.assumptions)


def test_titles_of_the_table_are_explained(best):
    said = " ".join(describe_search(best))
    titles = {title.lstrip(">") for title in best_table(best).header[2:-1]}
    assert {"compute", "waiting"} <= titles
    assert all(title.removesuffix(" calls") in said for title in titles)


@pytest.mark.slow
def test_workers_find_what_one_process_finds(small, monkeypatch):
    """Also with steps that come in another order, and that a better one makes needless."""
    asked = []

    def answer(function, calls, **settings):
        asked.append((len(calls), settings))
        return [function(*call) for call in reversed(calls)]

    fewer = {"strategy.pipeline": 1, "strategy.micro_batch": 4, "strategy.simulate": 4}
    scenario = change_scenario(small, fewer)
    alone = choose_layout(scenario)
    monkeypatch.setattr(search_module, "map_unordered", answer)
    workers = Workers(3, "dask", "tcp://cluster:8786")
    assert choose_layout(scenario, workers=workers) == alone
    assert asked[0] == (3, {"jobs": 3, "backend": "dask", "scheduler": "tcp://cluster:8786"})


def test_the_winner_gets_the_quickest_size_of_buckets(small):
    """One all-reduce of everything is slower beside backward than default buckets are, and tiny
    ones cost latency: what is found is no slower than any size that is tried."""
    plain = {
        "cluster": {"node": "v100-x8-25g", "nodes": 2, "fabric": {"kind": "one-switch"}},
        "compute.precision": "fp16",
        "model.dtype": "fp16",
        "strategy.tensor": 1,
        "strategy.pipeline": 1,
        "strategy.micro_batch": 2,
        "strategy.sharding": {"kind": "megatron", "overlap_grad_reduce": True},
        "strategy.buckets": True,
    }
    scenario = change_scenario(small, plain)
    tuned = choose_layout(scenario)
    usual = choose_layout(change_scenario(scenario, {"strategy.buckets": False}))
    assert usual.simulated == 1
    assert "bucket_size" in tuned.winner.changes["strategy"]
    assert "bucket_size" in tuned.winner.text
    assert tuned.winner.step_time_s < usual.winner.step_time_s
    assert tuned.listed == usual.listed + tuned.simulated - 1 + tuned.too_big
    own = plain["strategy.sharding"] | {"bucket_size": 40_000_000}
    stated = change_scenario(scenario, {"strategy.sharding": own})
    assert choose_layout(stated).simulated == 1
    again = run_scenario(change_scenario(scenario, tuned.winner.changes))
    assert again.main.step_time_s == tuned.winner.step_time_s


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_run_answers_with_the_winner_and_its_sections_are_a_scenario(small, best):
    result = run_scenario(small)
    assert result.search is not None
    winner = result.search.winner
    assert winner == best.winner
    assert result.main.step_time_s == winner.step_time_s
    pasted = run_scenario(change_scenario(small, winner.changes))
    assert pasted.main.step_time_s == winner.step_time_s
    assert pasted.search is None


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_no_plain_strategy_is_quicker(small, best):
    best_s = best.winner.step_time_s
    for kind in ("ddp", "fsdp", "megatron"):
        plain = change_scenario(small, {"strategy": {"kind": kind}})
        assert best_s <= run_scenario(plain).main.step_time_s * (1 + 1e-9)


@pytest.mark.slow
def test_a_limit_of_simulations_says_what_may_be_left(small, best):
    one = choose_layout(change_scenario(small, {"strategy.simulate": 1}))
    assert one.simulated == 1
    assert best.winner.step_time_s >= one.winner.step_time_s * (1 - one.unproven)


def faults_of(action):
    with pytest.raises(InputError) as raised:
        action()
    return {fault.field: fault for fault in raised.value.faults}


@pytest.mark.parametrize(
    ("changes", "field", "allowed"),
    [
        ({"parallel.tensor": 2}, "parallel.tensor", "strategy.tensor"),
        ({"parallel.pipeline": 2}, "parallel.pipeline", "strategy.pipeline"),
        ({"parallel.expert": 2}, "parallel.expert", "strategy.expert"),
        ({"compute.recompute": "full"}, "compute.recompute", "strategy.recompute"),
        ({"scale": {"gpus": [1, 2]}}, "scale", "differs"),
    ],
)
def test_what_auto_chooses_itself_is_refused_elsewhere(small, changes, field, allowed):
    assert allowed in faults_of(lambda: change_scenario(small, changes))[field].allowed


def test_nothing_fits_or_nothing_is_possible(small):
    big = {
        "model": {"name": "llama3-70b", "dtype": "bf16"},
        "strategy.pipeline": 1,
        "strategy.sharding": [{"kind": "megatron", "use_distributed_optimizer": True}],
        "strategy.recompute": "full",
        "strategy.tensor": [4, 8],
    }
    fault = faults_of(lambda: choose_layout(change_scenario(small, big)))["strategy"]
    assert "none" in fault.found
    assert "more GPUs" in fault.allowed
    odd = change_scenario(small, {"strategy.tensor": 7})
    assert "impossible" in faults_of(lambda: choose_layout(odd))["strategy"].found


def test_tune_refuses_what_it_does_not_search(small):
    for tune in (tune_scenario, tune_settings):
        assert "strategy.kind" in faults_of(lambda tune=tune: tune(small))
    split = change_scenario(small, {"strategy": {"kind": "ddp"}, "parallel.tensor": 2})
    assert "parallel" in faults_of(lambda: tune_scenario(split))


ONE_OF_TWO = {
    "strategy.tensor": 1,
    "strategy.pipeline": 1,
    "strategy.micro_batch": [16, 32],
    "strategy.sharding": {"kind": "ddp"},
    "training.global_batch": 256,
}


@pytest.mark.slow
def test_what_ifs_of_a_comparison_are_of_the_chosen_layout(small, monkeypatch):
    searched = []
    find = search_module.find_layout
    monkeypatch.setattr(
        search_module, "find_layout", lambda *a, **k: (searched.append(a), find(*a, **k))[1]
    )
    # the host would hide what communication takes
    scenario = change_scenario(small, ONE_OF_TWO | {"compute.cuda_graphs": True})
    compared = compare({"auto": scenario}, attribute=True, jobs=1)
    assert len(searched) == 1
    winner = choose_layout(scenario).winner
    (side,) = compared.sides
    assert side.scenario == change_scenario(scenario, winner.changes)
    silent = next(w for w in compared.what_ifs if w.what == "no communication at all")
    assert silent.steps_s[0] < winner.step_time_s


@pytest.mark.slow
def test_sweeps_and_plans_search_for_each(small):
    """Each variant, and each candidate of a plan, is answered by its own quickest layout."""
    base = change_scenario(small, ONE_OF_TWO)
    swept = {"sweep": {"grid": {"training.global_batch": [256, 512]}}}
    answers = run_sweep(variants(change_scenario(base, swept)), jobs=1).answers
    best_s = [
        choose_layout(change_scenario(base, {"training.global_batch": n})).winner.step_time_s
        for n in (256, 512)
    ]
    assert [answer.step_time_s for answer in answers] == best_s
    candidates = [
        {"name": node, "node": node, "nodes": [1], "price_per_gpu_hour": "1 USD/h"}
        for node in ("dgx-a100", "dgx-h100")
    ]
    planned = {"plan": {"target": {"samples": 1e6}, "candidates": candidates}}
    options = plan_scenario(change_scenario(base, planned), jobs=1).options
    assert [option.step.step_time_s for option in options] == [
        choose_layout(
            change_scenario(base, {"cluster": {"node": node, "nodes": 1}})
        ).winner.step_time_s
        for node in ("dgx-a100", "dgx-h100")
    ]


@pytest.mark.slow
def test_experts_are_shared_by_as_many_gpus_as_is_quickest(small):
    """All that fits is simulated; two GPUs for the experts of each layer need too much memory."""
    megatron = {"kind": "megatron", "use_distributed_optimizer": True}
    scenario = change_scenario(
        small,
        {
            "model": {"name": "mixtral-8x7b", "dtype": "bf16", "sequence_length": 1024},
            "strategy": {
                "kind": "auto",
                "tensor": 1,
                "pipeline": 1,
                "micro_batch": 1,
                "expert": [2, 4, 8, 16],
                "recompute": "full",
                "sharding": [{"kind": "fsdp"}, megatron],
            },
            "cluster": {"node": "dgx-h100", "nodes": 4, "fabric": "rail-optimised"},
            "training.global_batch": 32,
        },
    )
    every = choose_layout(scenario, exhaustive=True)
    assert every.winner == choose_layout(scenario).winner
    # by the distributed optimizer, which keeps parameters whole, and by full sharding
    assert {each.changes["parallel.expert"] for each in every.best} == {2, 4, 8}
    assert every.listed == 8
    assert every.too_big == 1
    assert every.impossible == 2  # eight experts over sixteen GPUs
    assert "expert 8" in every.winner.text


@pytest.mark.parametrize(("steps", "listed"), [(4096, {4096}), (4097, set())])
def test_no_layout_has_more_micro_steps_than_a_scenario_may_state(small, steps, listed):
    changes = {"strategy.tensor": 1, "strategy.pipeline": 1, "strategy.micro_batch": 1}
    scenario = change_scenario(small, {**changes, "training.global_batch": 8 * steps})
    jobs = search_module.prepare_jobs(scenario, None, None)
    size, workload = jobs.base.size, jobs.inputs.workload
    layouts, _ = search_module.list_layouts(scenario, jobs.section, size, workload)
    assert {each.micro_batches for each in layouts} == listed


def test_sizes_that_sharding_states_are_tried_as_written(small):
    sharding = [{"kind": "ddp", "bucket_cap": "50 MiB"}, {"kind": "ddp", "bucket_cap": "400 MB"}]
    changes = {"strategy.sharding": sharding, "strategy.tensor": 1, "strategy.pipeline": 1}
    found = choose_layout(change_scenario(small, changes), exhaustive=True)
    caps = [
        change_scenario(small, parallel_layout.changes).strategy.bucket_cap
        for parallel_layout in found.best
    ]
    assert set(caps) == {50 * 2**20, 400e6}


@pytest.mark.slow
def test_tensor_options_are_those_of_layouts_with_tensor_parallelism(small):
    """They are taken back where a parallel layout has none, and refused without a search."""
    changes = {"parallel.overlap": "asynchronous", "strategy.pipeline": 1}
    changes |= {"strategy.micro_batch": 4}
    overlapped = change_scenario(small, changes)
    found = choose_layout(overlapped, exhaustive=True)
    stated = {
        (scenario.parallel.tensor, scenario.parallel.overlap)
        for parallel_layout in found.best
        for scenario in [change_scenario(overlapped, parallel_layout.changes)]
    }
    assert stated == {(1, None), (2, "asynchronous")}
    with pytest.raises(InputError, match=r"parallel\.overlap: found 'asynchronous'; allowed: noth"):
        change_scenario(overlapped, {"strategy": {"kind": "ddp"}})


MIXTURE_OF_EXPERTS = {
    "model": {
        "transformer": {
            "hidden": 512,
            "layers": 2,
            "heads": 8,
            "kv_heads": 8,
            "vocab": 32000,
            "experts": {"count": 8, "top_k": 2},
        },
        "dtype": "bf16",
        "tokens": 512,
    },
    "strategy": {
        "kind": "auto",
        "tensor": [1, 2, 4],
        "pipeline": 1,
        "expert": [1, 4, 8],
        "micro_batch": 1,
        "sequence_parallel": True,
        "recompute": "none",
        "buckets": False,
        "sharding": {"kind": "megatron"},
    },
    "cluster": {"node": "dgx-h100", "nodes": 1},
    "training.global_batch": 32,
}


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
@pytest.mark.parametrize(
    "field",
    [
        {"dispatcher": "deduplicated", "dispatch_dtype": "fp8"},
        {"imbalance": 0.3},
        {"imbalance": 0.3, "capacity": 1.25},
    ],
)
def test_settings_of_shared_experts_are_those_of_mixtures_that_share_them(small, field):
    """They are taken back where each GPU has all experts, but for what acts there, too."""
    stated = change_scenario(small, MIXTURE_OF_EXPERTS | {"model.experts": field})
    every = choose_layout(stated, exhaustive=True)
    assert every.winner == choose_layout(stated).winner
    # 8 GPUs hold shares of experts however many of them share matrices
    assert {
        (each.changes.get("parallel.tensor", 1), each.changes.get("parallel.expert", 1))
        for each in every.best
    } == {(tensor, expert) for tensor in (1, 2, 4) for expert in (1, 4, 8)}
    for parallel_layout in every.best[:2]:
        step_s = run_scenario(change_scenario(stated, parallel_layout.changes)).main.step_time_s
        assert step_s == pytest.approx(parallel_layout.step_time_s)


def test_parts_of_experts_are_those_of_mixtures_with_such_tensor_groups(small):
    """Two GPUs that share each expert: of 8, at most 4 share experts beside them."""
    stated = change_scenario(small, MIXTURE_OF_EXPERTS | {"model.experts": {"tensor": 2}})
    assert {
        (each.changes.get("parallel.tensor", 1), each.changes.get("parallel.expert", 1))
        for each in choose_layout(stated, exhaustive=True).best
    } == {(1, 1), (1, 4), (1, 8), (2, 1), (2, 4)}
