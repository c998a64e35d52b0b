"""Published steps of strategies: what a row becomes, what it is scaled to, what is left out."""

import csv
import math
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.report.validation import percent
from perfmodel.topology.templates.gpus import rate_at
from reports.validation.pages.strategy_tables import sample_table
from reports.validation.predict.run import predict_all
from reports.validation.run import Validation, records_folder
from reports.validation.score.strategy_scores import (
    ALL,
    STATED,
    by_source,
    by_strategy,
    of_split_models,
    order_of,
    step_entries,
    strategies_json,
)
from reports.validation.strategies.model import StrategyStep, StrategyTable
from reports.validation.strategies.predicted_step import compare_step, predict_step
from reports.validation.strategies.stated_step import read_step
from reports.validation.strategies.step_tables import (
    NOT_SAMPLED,
    SETUPS,
    STEPS,
    sample_rows,
    stated_tables,
    strategies_in,
)

ROWS = list(csv.DictReader((records_folder() / STEPS).read_text("utf-8").splitlines()))
TINY = {
    "model": "tiny",
    "family": "llama",
    "layers": "4",
    "width": "512",
    "heads": "8",
    "kv_heads": "4",
    "mlp_width": "1024",
    "vocabulary": "1000",
    "sequence_length": "256",
}


def row(**changes):
    """A row of the shipped table with a model that is quick to simulate."""
    plain = next(r for r in ROWS if r["table"] == "yafsdp" and r["recompute"] == "none")
    return {**plain, **TINY, "nodes": "1", "gpus_per_node": "2", "network": "", **changes}


def written(folder: Path, rows) -> Path:
    with (folder / STEPS).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return folder


def test_every_shipped_row_states_its_source_and_a_number():
    for cells in ROWS:
        assert cells["source"], cells
        assert cells["trust"] in "2345"
        assert cells["step_s"] or cells["peak_GB"]
        assert bool(cells["peak_GB"]) == bool(cells["memory_kind"])


def test_a_gpu_may_be_limited_in_power():
    limited = predict_step(read_step(row(gpu="h100-sxm5-80gb at 500 W")))
    whole = predict_step(read_step(row(gpu="h100-sxm5-80gb")))
    assert limited.stated.scenario.cluster.node == "h100-sxm5-80gb"
    assert (limited.sized.job.gpu.power_W, whole.sized.job.gpu.power_W) == (500.0, 700.0)
    wide = row(mlp_width="65536", batch="16", gpus_per_node="1")
    steps = [
        predict_step(read_step({**wide, "gpu": name})).step_s
        for name in ("h100-sxm5-80gb", "h100-sxm5-80gb at 500 W")
    ]
    assert 1.02 < steps[1] / steps[0] < 1 / rate_at(5 / 7, "hopper")
    with pytest.raises(InputError, match="gpu: found '500'"):
        read_step(row(gpu="h100-sxm5-80gb at 500"))


@pytest.mark.parametrize("cells", ROWS[:3] + [r for r in ROWS if r["table"] == "yafsdp"][:2])
def test_a_row_becomes_the_scenario_that_it_states(cells):
    stated = read_step(cells)
    parameters = {"Llama 2 7B": 6738415616, "TinyLlama 1.1B": 1100048384}
    assert stated.workload.parameters == parameters[cells["model"]]
    assert stated.size.gpus == int(cells["nodes"]) * int(cells["gpus_per_node"])
    assert stated.scenario.strategy.kind in cells["strategy"]
    assert predict_step(stated).sized.job.gpu.name == cells["gpu"]


def predicted_s() -> float:
    return predict_step(read_step(row())).step_s


def test_the_scaled_base_takes_as_long_as_measured():
    measured_s = 1.7 * predicted_s()
    step = predict_step(read_step(row(step_s=f"{measured_s}")))
    factor = step.scale
    assert factor is not None
    assert step.with_compute(factor) == pytest.approx(measured_s, rel=2e-3)
    assert step.step_s == pytest.approx(measured_s / 1.7)


def test_compute_is_scaled_to_the_smallest_alike_run(tmp_path):
    small, large = row(step_s=f"{1.5 * predicted_s()}"), row(gpus_per_node="4", step_s="0.06")
    other = row(
        gpus_per_node="4", precision="fp16", dtype="fp16", step_s="0.07", strategy="{kind: ddp}"
    )
    steps = strategies_in(written(tmp_path, [large, small, other]))[0].steps
    assert [step.scaled_s is None for step in steps] == [False, True, True]
    assert steps[0].scaled_s > steps[0].predicted_s  # the base took longer than predicted


def test_only_scaled_steps_of_a_gpu_that_is_not_as_its_data_sheet(tmp_path):
    limited = {"step_s": f"{1.5 * predicted_s()}", "unlike": "500 W"}
    rows = [row(**limited), row(gpus_per_node="4", **limited)]
    steps = strategies_in(written(tmp_path, rows))[0].steps
    assert all(step.pair("step") is None for step in steps)
    assert steps[1].pair("scaled") is not None


def test_a_step_whose_compute_was_measured_is_surer():
    """Of compute less is unsure; the network, which decides the high end here, is as before."""
    step = predict_step(read_step(row(gpus_per_node="4", step_s="0.06")))
    (low_s, high_s), (measured_low_s, measured_high_s) = (
        step.interval(1.25, measured=measured) for measured in (False, True)
    )
    assert low_s < measured_low_s < measured_high_s <= high_s


def test_memory_grows_from_allocated_to_all_that_is_in_use(tmp_path):
    kinds = [row(peak_GB="1", memory_kind=kind) for kind in ("allocated", "reserved", "device")]
    allocated, reserved, device = (
        step.predicted_bytes for step in strategies_in(written(tmp_path, kinds))[0].steps
    )
    assert 0 < allocated < reserved < device


def test_a_setup_that_was_measured_again_is_simulated_once():
    first = predict_step(read_step(row(step_s="0.05")))
    again = predict_step(read_step(row(step_s="0.06", note="another day")), [first])
    other = predict_step(read_step(row(step_s="0.05", batch="2")), [first])
    assert again.simulated is first.simulated
    assert other.simulated is not first.simulated
    assert again.stated.measured_s == 0.06


def test_rows_that_no_scenario_can_express_are_counted(tmp_path):
    rows = [row(), row(strategy="{kind: tensor}"), row(family="mamba")]
    table = strategies_in(written(tmp_path, rows))[0]
    assert len(table.steps) == 1
    assert sum(table.left_out.values()) == 2
    assert any("tensor" in reason for reason in table.left_out)


@pytest.mark.parametrize(
    ("change", "text"), [({"step_s": "soon"}, "soon"), ({"layers": "none"}, "layers")]
)
def test_a_cell_that_is_no_number_is_named(tmp_path, change, text):
    folder = written(tmp_path, [row(**change)])
    if "step_s" in change:
        with pytest.raises(InputError, match=text):
            strategies_in(folder)
    else:
        assert any(text in reason for reason in strategies_in(folder)[0].left_out)


@pytest.mark.slow
def test_an_unnamed_network_widens_intervals_and_is_not_compared_where_it_decides(tmp_path):
    def compared(**changes):
        # wide enough for the host not to decide instead of the network
        wide = {"width": "2048", "mlp_width": "8192"}
        rows = [row(nodes="2", network="InfiniBand HDR", step_s="0.05", **wide, **changes)]
        return strategies_in(written(tmp_path, rows))[0].steps[0]

    named, decides = compared(presumed=""), compared(presumed="network")
    assert named.pair("step") is not None
    assert not named.undecided
    assert "network is not named" in decides.undecided
    assert decides.pair("step") is None
    assert not decides.intervals
    long = {"sequence_length": "4096", "batch": "8"}  # computing hides what is communicated
    sure, unsure = compared(presumed="", **long), compared(presumed="GPU and network", **long)
    assert not unsure.undecided
    assert unsure.predicted_s == sure.predicted_s
    assert unsure.intervals["step"][0] <= sure.intervals["step"][0]
    assert unsure.intervals["step"][1] > sure.intervals["step"][1]


def test_the_scaled_base_is_a_row_that_its_network_does_not_decide(tmp_path):
    alone = row(step_s=f"{1.5 * predicted_s()}", presumed="network")
    wide = {"width": "2048", "mlp_width": "8192"}
    across = {"nodes": "2", "network": "InfiniBand HDR", "presumed": "network", **wide}
    rows = [row(**across, gpus_per_node="1", step_s="0.05"), alone, row(gpus_per_node="4")]
    steps = strategies_in(written(tmp_path, rows))[0].steps
    assert steps[0].undecided
    assert steps[2].scaled_s == pytest.approx(1.5 * steps[2].predicted_s, rel=0.1)


def step(published, predicted, **changes):
    values = {
        "model": "m",
        "strategy": "ddp",
        "gpu": "g",
        "gpus": 2,
        "batch": 1,
        "precision": "bf16",
        "recompute": "none",
        "published_s": published,
        "predicted_s": predicted,
        **changes,
    }
    return StrategyStep(**values)


def test_every_table_weighs_the_same_and_open_rows_are_apart():
    tables = [
        StrategyTable("long", [step(1.0, 1.1)] * 9),
        StrategyTable("short", [step(1.0, 1.5, presumed="network", intervals={"step": (0.9, 2)})]),
    ]
    scores = by_strategy(step_entries(tables))["step"]
    assert scores[ALL].runs == 10
    assert scores[ALL].tables == 2
    assert scores[ALL].p90_abs_error == pytest.approx(0.5)
    assert scores[ALL].inside == 1.0
    assert scores[ALL].width == pytest.approx(math.log(2 / 0.9))
    assert scores[STATED].runs == 9
    assert by_source(tables)["short"]["step"].bias == pytest.approx(0.5)
    document = strategies_json(tables)
    assert document["quantities"]["step"][ALL]["runs"] == 10
    assert len(document["rows"]) == 10


@pytest.mark.slow
def test_a_row_of_a_split_model_becomes_its_layout():
    stated = read_step(
        row(
            gpus_per_node="8",
            accumulate="4",
            strategy="{kind: megatron}",
            parallel="{tensor: 2, sequence_parallel: true, pipeline: {stages: 2}}",
        )
    )
    assert stated.replicas == 2
    assert stated.share.parameters < stated.workload.parameters
    predicted = predict_step(stated)
    step = compare_step(predicted, None)
    assert (step.strategy, step.degrees) == ("tp pp 1f1b", "tp 2, pp 2")
    assert step.samples == step.batch * 4 * 2
    whole = predict_step(
        read_step(row(gpus_per_node="8", accumulate="4", strategy="{kind: megatron}"))
    )
    assert predicted.step_s != pytest.approx(whole.step_s, rel=0.05)


def test_kernels_by_hand_and_layer_norms_of_a_row():
    scores = {"family": "gpt", "attention": "materialised", "dropout": "1", "mlp_width": "2048"}
    compiled, by_hand = (
        predict_step(read_step(row(**scores, compiled=fused))).step_s for fused in ("1", "by_hand")
    )
    assert by_hand > 1.01 * compiled  # dropout of the scores is a kernel of its own
    long = {"sequence_length": "4096", "batch": "8"}
    second, first = (
        predict_step(read_step(row(**long, attention=kernels))).step_s
        for kernels in ("flash-2", "flash-1")
    )
    assert second < first < 2 * second
    nemotron = read_step(row(family="nemotron")).workload
    # of each layer 512 x 1024 and a gain, a bias less: no gate, and layer norms with a bias
    llama = read_step(row()).workload
    assert llama.parameters - nemotron.parameters == 4 * 512 * 1024 - (2 * 4 + 1) * 512


@pytest.mark.slow
def test_the_interval_of_a_long_step_follows_from_two_shorter_ones(monkeypatch):
    cells = row(accumulate="12", strategy="{kind: megatron}", step_s="0.05", parallel="{tensor: 2}")
    whole = predict_step(read_step(cells))
    ends, tasks = whole.interval(), len(whole.sized.plan_for(None).tasks)
    for name, least in (("LONG_TASKS", tasks - 1), ("SHORT_TASKS", tasks // 6)):
        monkeypatch.setattr(f"reports.validation.strategies.predicted_step.{name}", least)
    long = predict_step(read_step(cells))
    assert long.is_long
    assert long.interval() == pytest.approx(ends, rel=1e-3)
    assert compare_step(long, None).intervals["step"] == long.interval()
    monkeypatch.setattr("reports.validation.strategies.predicted_step.MOST_GPUS", 1)
    assert predict_step(read_step(cells)).interval() is None  # too many GPUs


def test_memory_of_a_pipeline_is_that_of_its_fullest_stage():
    cells = row(
        gpus_per_node="4",
        accumulate="4",
        peak_GB="1",
        memory_kind="allocated",
        parallel="{pipeline: {stages: 4}}",
    )
    predicted = predict_step(read_step(cells))
    step = compare_step(predicted, None)
    assert step.pair("memory") == (1e9, predicted.memory_bytes("allocated"))


def test_experts_of_the_zoo_at_another_depth_are_shared():
    cells = row(
        family="experts",
        layers="2",
        sequence_length="128",
        gpus_per_node="4",
        experts="{model: qwen3-30b-a3b, implementation: per-expert}",
        parallel="{expert: 4}",
    )
    stated = read_step(cells)
    whole, share = stated.workload.parameters, stated.share.parameters
    experts = 2 * 128 * 3 * 2048 * 768  # layers, experts, maps of each
    assert whole - share == experts * 3 // 4
    with pytest.raises(InputError, match=r"experts\.model"):
        read_step({**cells, "experts": "{model: gpt2}"})


def test_of_long_tables_a_few_setups_evenly_spaced_are_predicted():
    split = [row(parallel="{tensor: 2}", batch=str(batch)) for batch in range(1, 40)]
    again = {**split[0], "step_s": "0.07"}
    plain = [row(batch=str(batch)) for batch in range(1, 40)]
    sampled = sample_rows([*split, again, *plain])
    batches = [int(cells["batch"]) for cells in sampled if cells["parallel"]]
    assert len(batches) == SETUPS + 1  # the first setup was measured again
    assert batches[0] == batches[-1] == 1
    assert batches[-2] == 39
    assert set(plain[-1].items()) == set(sampled[-1].items())
    assert sum(not cells["parallel"] for cells in sampled) == len(plain)


def test_of_copies_of_large_shard_groups_one_setup_of_a_gpu_is_predicted():
    shards = [(64, 64), (128, 64), (256, 128), (128, 8)]
    rows = [
        row(nodes=str(gpus // 8), gpus_per_node="8", strategy=f"{{kind: fsdp, shard_gpus: {each}}}")
        for gpus, each in shards
    ]
    assert [cells["strategy"] for cells in sample_rows(rows)] == [
        rows[0]["strategy"],
        rows[3]["strategy"],
    ]


SPLIT = [
    row(table="mine", gpus_per_node="2", parallel="{tensor: 2}", batch=str(batch), step_s="0.05")
    for batch in range(1, 5)
]


def all_steps(tables):
    return [(table.id, step.batch, step.predicted_s) for table in tables for step in table.steps]


@pytest.mark.slow
def test_all_rows_are_predicted_where_they_are_asked_for_and_those_of_the_sample_alike(tmp_path):
    folder = written(tmp_path, [*SPLIT, row(family="mamba", table="mine")])
    (some,), (whole,) = strategies_in(folder), strategies_in(folder, whole=True)
    assert [step.batch for step in some.steps] == [1, 4]
    assert sorted(step.batch for step in whole.steps) == [1, 2, 3, 4]
    assert set(all_steps([some])) < set(all_steps([whole]))
    assert {step.batch for step in whole.steps if step.sampled} == {1, 4}
    assert some.left_out == {**whole.left_out, NOT_SAMPLED: 2}
    assert list(whole.left_out.values()) == [1]  # the family that is none


@pytest.mark.slow
def test_long_setups_are_tables_of_their_own_until_their_answers_are_joined(tmp_path, monkeypatch):
    again = {**SPLIT[1], "step_s": "0.07"}
    folder = written(tmp_path, [*SPLIT, row(table="mine"), again, row(table="yours")])
    together = strategies_in(folder, whole=True)
    monkeypatch.setattr("reports.validation.strategies.step_tables.LONG_PASSES", 1)
    parts = stated_tables(folder, whole=True)
    assert [(part.id, len(part.rows)) for part in parts] == [
        ("mine", 1),
        ("mine", 1),
        ("mine", 2),
        ("mine", 1),
        ("mine", 1),
        ("yours", 1),
    ]
    assert [table.id for table in stated_tables(folder)] == ["mine", "yours"]
    apart = strategies_in(folder, whole=True)
    assert [table.id for table in apart] == ["mine", "yours"]
    assert sorted(all_steps(apart)) == sorted(all_steps(together))


def test_processes_share_the_rows_and_say_how_many_are_done(tmp_path):
    folder, counts = written(tmp_path, SPLIT[:3]), list[tuple[int, int]]()
    *_, tables = predict_all([], folder, 1, lambda *done: counts.append(done), whole=True)
    assert len(tables[0].steps) == 3
    assert counts == [(1, 2), (2, 2)]  # the table, and trainings, of which there are none


def test_the_error_of_a_sample_stands_beside_that_of_all_rows():
    own = [step(1.0, 1.1), step(1.0, 1.1), step(1.0, 1.4, sampled=False)]
    tables = (StrategyTable("long", own), StrategyTable("short", [step(1.0, 1.2)]))
    lines = {line[0]: line[1:] for line in sample_table(Validation("x", (), {}, (), tables)).rows}
    assert set(lines) == {ALL, "long"}
    assert [cell.partition(" /")[0] for cell in lines["long"][:2]] == [percent(0.1)] * 2
    assert [cell.rpartition(" ")[2] for cell in lines["long"][:2]] == ["(2)", "(3)"]
    assert percent(0.4) in lines["long"][1]
    assert percent(0.4) not in lines["long"][0]
    assert sample_table(Validation("x", (), {}, (), tables[1:])).rows == []
    document = strategies_json(tables)
    assert [entry["sampled"] for entry in document["rows"]] == [True, True, False, True]


def test_the_order_of_two_settings_is_that_of_their_times_per_sample():
    base = step(1.0, 1.0, samples=8)
    more = step(1.5, 1.2, samples=16, batch=2)  # quicker per sample, as predicted
    slower = step(2.0, 1.0, samples=8, batch=3)  # a tie with `base`
    alike = step(1.02, 5.0, samples=8, batch=4)
    order = order_of([("t", base), ("t", more)])
    assert (order.pairs, order.right) == (1, 1)
    order = order_of([("t", base), ("t", slower)])
    assert (order.pairs, order.right) == (1, 0)
    assert order_of([("t", base), ("t", alike)]) is None
    assert order_of([("t", base), ("u", slower)]) is None
    assert order_of([("t", base), ("t", step(9.0, 1.0, samples=8))]) is None  # measured again


def test_split_models_are_scored_by_gpu_and_precision():
    entries = [
        ("t", step(1.0, 1.1)),
        ("t", step(1.0, 1.2, degrees="tp 2", precision="fp8 {recipe: delayed}")),
        ("t", step(1.0, 0.7, degrees="tp 2", gpu="h")),
    ]
    scores = of_split_models(entries)["step"]
    assert {name: score.runs for name, score in scores.items()} == {
        ALL: 2,
        "g": 1,
        "h": 1,
        "bf16": 1,
        "fp8": 1,
    }
    assert scores["fp8"].bias == pytest.approx(0.2)


def test_results_that_a_policy_of_jax_names_are_kept():
    cells = row(recompute="{keep: [q_proj, k_proj, v_proj]}", sequence_length="4096", batch="8")
    named, part, full, none = (
        predict_step(read_step({**cells, "recompute": how}))
        for how in (cells["recompute"], "{keep: [q_proj, o_proj, self_attn]}", "full", "none")
    )
    assert none.step_s < part.step_s < named.step_s < full.step_s
    peaks = [each.memory_bytes("allocated") for each in (full, named, none)]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[1] < peaks[2]
    with pytest.raises(InputError, match=r"recompute\.keep\.0: found 'wi'"):
        _ = predict_step(read_step({**cells, "recompute": "{keep: [wi]}"})).step_s


def test_a_part_with_the_embedding_alone_is_no_obstacle_to_fp8():
    """As of NVIDIA's proxies of Llama 3.1 405B: 30 layers, embedding and head in 32 chunks."""
    cells = row(
        layers="6",
        gpus_per_node="4",
        accumulate="4",
        strategy="{kind: megatron}",
        gpu="h100-sxm5-80gb",
        vocabulary="1024",
        peak_GB="1",
        memory_kind="allocated",
        parallel="{pipeline: {stages: 4, schedule: interleaved, chunks: 2, "
        "embedding_as_block: true, loss_as_block: true}}",
    )
    wide, narrow = (
        predict_step(read_step({**cells, "precision": precision})) for precision in ("bf16", "fp8")
    )
    assert narrow.step_s != wide.step_s
    assert narrow.memory_bytes("allocated") != wide.memory_bytes("allocated")
