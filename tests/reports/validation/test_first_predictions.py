"""The ledger: lines that are never rewritten, what is read into it, and its numbers by hand."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from reports.validation import first_predictions, ledger
from reports.validation.entries.entry import (
    FILE,
    Candidate,
    Entry,
    LeftOut,
    Origin,
    Prediction,
    append_entries,
    read_entries,
)
from reports.validation.entries.kernels import kernels_in
from reports.validation.entries.own_kernels import own_kernels
from reports.validation.entries.own_runs import FOLDER, own_predictions
from reports.validation.entries.published_runs import NotExpressible, as_stated_step, with_recipe
from reports.validation.entries.steps import predict_fitting, steps_in
from reports.validation.entries.sweeps import sweeps_in
from reports.validation.ledger import class_of, statistics_of
from reports.validation.strategies.stated_step import read_step

ORIGIN = Origin("9.9.9", "abcdef01", "2030-01-02")


def prediction(
    row: str = "one",
    predicted: float = 1.1,
    measured: float = 1.0,
    ends: tuple[float, float] | None = (0.9, 1.3),
    table: str = "table",
    group: str = "split",
    kind: str = "step",
    quantity: str = "step time",
) -> Prediction:
    low, high = ends or (None, None)
    return Prediction(kind, group, table, row, quantity, "s", predicted, low, high, measured)


def candidate(*predictions: Prediction, outcome: str = "") -> Candidate:
    keys = frozenset(each.key for each in predictions)
    return Candidate(keys, lambda: outcome or predictions)


# ---------------------------------------------------------------- the file


def test_lines_that_are_there_stay_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    append_entries([Entry(ORIGIN, prediction())], path)
    before = path.read_bytes()
    append_entries([Entry(ORIGIN, prediction("two"))], path)
    after = path.read_bytes()
    assert after.startswith(before)
    assert len(after.splitlines()) == 3


def test_what_is_written_reads_back_with_five_digits(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    odd = prediction('a row, with "marks"', predicted=0.123456789, ends=None)
    append_entries([Entry(ORIGIN, odd)], path)
    (entry,) = read_entries(path)
    assert entry.origin == ORIGIN
    assert entry.prediction.key == odd.key
    assert entry.prediction.predicted == 0.12346
    assert entry.prediction.low is None


def test_a_line_that_is_no_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    append_entries([Entry(ORIGIN, prediction())], path)
    path.write_text(path.read_text("utf-8").replace(",1.1,", ",much,"), "utf-8")
    with pytest.raises(InputError, match="much"):
        read_entries(path)


def test_an_infinite_prediction_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no prediction"):
        append_entries([Entry(ORIGIN, prediction(predicted=float("inf")))], tmp_path / "new.csv")


def test_every_line_of_the_shipped_file_reads_back() -> None:
    with FILE.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    entries = read_entries()
    assert len(entries) == len(lines)
    assert len({entry.prediction.key for entry in entries}) == len(lines)
    for entry in entries:
        each = entry.prediction
        assert all((entry.origin.version, entry.origin.commit, entry.origin.entered))
        assert each.low is None or each.low <= each.predicted <= (each.high or 0.0)


# ---------------------------------------------------------------- what is predicted


def test_a_record_is_predicted_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    first, changed = prediction(predicted=1.1), prediction(predicted=2.2)
    assert first_predictions.predict_new([candidate(first)], ORIGIN, path) == (1, [])
    before = path.read_bytes()
    later = Origin("10.0.0", "12345678", "2031-01-01")
    assert first_predictions.predict_new([candidate(changed)], later, path) == (0, [])
    assert path.read_bytes() == before


def test_of_a_record_in_part_there_the_rest_is_added(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    first_predictions.predict_new([candidate(prediction("one"))], ORIGIN, path)
    both = candidate(prediction("one", predicted=7.0), prediction("two"))
    assert first_predictions.predict_new([both], ORIGIN, path) == (1, [])
    assert [entry.prediction.predicted for entry in read_entries(path)] == [1.1, 1.1]


def test_what_cannot_be_predicted_is_left_out_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    refused = candidate(prediction(), outcome="no such machine")
    assert first_predictions.predict_new([refused], ORIGIN, path) == (
        0,
        [LeftOut("table", "no such machine")],
    )
    assert not path.exists()


def test_when_time_is_up_the_rest_is_not_begun(tmp_path: Path) -> None:
    written, left = first_predictions.predict_new(
        [candidate(prediction())], ORIGIN, tmp_path / "ledger.csv", is_time_up=lambda: True
    )
    assert written == 0
    assert [each.reason for each in left] == [first_predictions.UNREACHED]


def test_counts_of_what_is_left_out_replace_those_of_the_same_table(tmp_path: Path) -> None:
    path = tmp_path / "left.csv"
    first = [LeftOut("a", "why"), LeftOut("b", "so", 3), LeftOut("c", "late")]
    first_predictions.write_left_out(first, path=path)
    second = [LeftOut("a", "other"), LeftOut("a", "other", 2)]
    first_predictions.write_left_out(second, {"c"}, path)
    assert path.read_text("utf-8").splitlines() == ["table,reason,rows", "a,other,3", "b,so,3"]


# ---------------------------------------------------------------- readers


RUN = {
    "id": "runs_0001",
    "source": "Runs",
    "source_url": "example.org/runs",
    "trust": "5",
    "framework": "Megatron-Bridge/Megatron-Core",
    "task": "pretrain",
    "model": "Llama 3 70B",
    "model_key": "llama3_70b",
    "layers": "80",
    "hidden": "8192",
    "ffn": "28672",
    "heads": "64",
    "kv_heads": "8",
    "vocab": "128256",
    "seq_len": "8192",
    "experts": "",
    "precision": "BF16",
    "gpu": "H100",
    "gpus": "64",
    "gpus_per_node": "8",
    "network": "",
    "global_batch": "128",
    "micro_batch": "1",
    "tp": "4",
    "pp": "8",
    "vpp": "5",
    "dp": "2",
    "cp": "1",
    "ep": "",
    "sp": "1",
    "sharding": "distributed_optimizer",
    "offload": "",
    "recompute": "none",
    "config_other": "",
    "step_time_s": "10",
}
"""A published run in the columns of the collection."""
SIZES = {"model_key": "llama3_70b", "kind": "decoder", "tied_embeddings": "0"}


def test_a_published_run_becomes_a_row_that_a_scenario_expresses() -> None:
    cells = as_stated_step(RUN, SIZES)
    stated = read_step(cells)
    assert stated.size.gpus == 64
    assert stated.replicas == 2
    assert stated.scenario.parallel.tensor == 4
    assert stated.scenario.parallel.pipeline.chunks == 5
    assert int(cells["accumulate"]) * 2 == 128  # samples of a step over those of two replicas
    assert cells["presumed"] == "network"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"offload": "half of the activations"}, "offloaded"),
        ({"sharding": "megatron_fsdp"}, "Megatron-FSDP"),
        ({"global_batch": ""}, "samples of a step"),
        ({"framework": "Unheard-of"}, "Unheard-of"),
        ({"gpu": "Abacus"}, "Abacus"),
        ({"precision": "INT3"}, "INT3"),
        ({"global_batch": "127"}, "do not divide"),
        ({"gpus": "60"}, "unlike numbers"),
    ],
)
def test_a_run_that_no_scenario_expresses_says_why(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(NotExpressible, match=reason):
        as_stated_step({**RUN, **changes}, SIZES)


RECIPE = "cuda_graph=full_iteration:; moe_dispatcher=hybridep; moe_a2a_overlap=1; recipe=A"
EXPERTS = {"model_key": "qwen3_30b_a3b", "experts": "128", "ep": "8", "tp": "1", "pp": "1"}


def test_settings_that_a_release_leaves_open_are_those_of_the_one_before() -> None:
    """The first of the older rows of the same setup that names its recipe; none of another one."""
    run, older = {**RUN, "config_other": "dropless"}, {**RUN, "config_other": RECIPE}
    others = [{**older, "micro_batch": "2", "config_other": "recipe=B"}, older]
    assert with_recipe(run, others)["config_other"] == RECIPE
    for other in ({"precision": "FP8-CS"}, {"gpus": "128"}, {"config_other": "dropless"}):
        assert with_recipe(run, [{**older, **other}]) == run
    dropping = {**run, "config_other": "tokendrop"}
    assert with_recipe(dropping, [older]) == dropping


@pytest.mark.parametrize(
    ("recipe", "graphs"),
    [
        (RECIPE, True),
        ("cuda_graph=local:full_iteration", True),
        ("cuda_graph=none:full_iteration", False),
        ("cuda_graph=transformer_engine:moe_router moe_preprocess", False),
        ("", False),
    ],
)
def test_a_graph_of_the_whole_step_leaves_the_host_nothing_to_issue(
    recipe: str, graphs: bool
) -> None:
    compute = read_step(as_stated_step({**RUN, "config_other": recipe}, SIZES)).scenario.compute
    assert compute.cuda_graphs == graphs


def test_recipes_say_how_tokens_travel() -> None:
    experts = as_stated_step({**RUN, **EXPERTS, "config_other": RECIPE}, SIZES)["experts"]
    assert "dispatcher: deduplicated" in experts
    assert "overlap: true" in experts
    experts = as_stated_step({**RUN, **EXPERTS}, SIZES)["experts"]
    assert "dispatcher: all_to_all" in experts
    assert "overlap" not in experts


@pytest.mark.parametrize(("recompute", "predicted"), [("none", "none"), ("", "full")])
def test_blocks_run_again_where_a_run_would_not_fit_otherwise(
    recompute: str, predicted: str
) -> None:
    """A source that states what is recomputed is taken at its word."""
    large = {**SMALL_RUN, "micro_batch": "64", "global_batch": "512"}
    cells = as_stated_step(large, SIZES)
    step = predict_fitting(cells, (), fits=bool(recompute))
    assert step.stated.cells["recompute"] == predicted
    assert (
        predict_fitting(as_stated_step(SMALL_RUN, SIZES), (), fits=False).stated.cells["recompute"]
        == "none"
    )


def test_racks_that_nvlink_joins_count_as_nodes() -> None:
    run = {**RUN, "gpu": "GB200", "gpus": "128", "gpus_per_node": "4", "dp": "4"}
    stated = read_step(as_stated_step(run, SIZES))
    assert (stated.size.nodes, stated.size.gpus_per_node) == (2, 64)


def write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


SMALL_RUN = {
    **RUN,
    "model": "Llama 3 8B",
    "layers": "2",
    "hidden": "1024",
    "ffn": "4096",
    "heads": "8",
    "gpus": "8",
    "tp": "1",
    "pp": "1",
    "vpp": "",
    "dp": "8",
    "sp": "",
    "global_batch": "8",
}


def test_runs_that_were_seen_are_no_first_predictions(tmp_path: Path) -> None:
    other = {**SMALL_RUN, "id": "runs_0002"}
    write_table(tmp_path / "strategies" / "llm_training.csv", [SMALL_RUN, other])
    write_table(tmp_path / "strategies" / "models.csv", [SIZES])
    found = steps_in(tmp_path, seen={"runs_0001"})
    assert [sorted(each.keys) for each in found.candidates] == [
        [("Runs", "runs_0002", "step time")]
    ]


def test_a_published_step_is_predicted_with_its_interval(tmp_path: Path) -> None:
    write_table(tmp_path / "strategies" / "llm_training.csv", [SMALL_RUN])
    write_table(tmp_path / "strategies" / "models.csv", [SIZES])
    (found,) = steps_in(tmp_path).candidates
    (step,) = found.predict()
    assert isinstance(step, Prediction)
    assert step.group == "sharded"
    assert step.measured == 10.0
    assert step.low is not None
    assert step.high is not None
    assert step.low < step.predicted < step.high


STATED = {
    **as_stated_step(SMALL_RUN, SIZES),
    "id": "stated_1",
    "date": "2030-01-02",
    "peak_GB": "30",
    "memory_kind": "allocated",
}


def test_a_stated_row_gives_its_step_and_its_peak(tmp_path: Path) -> None:
    write_table(tmp_path / "strategies" / "stated_steps.csv", [STATED])
    timed, filled = steps_in(tmp_path).candidates
    (step,), (peak,) = timed.predict(), filled.predict()
    assert isinstance(step, Prediction)
    assert isinstance(peak, Prediction)
    assert (timed.keys, filled.keys) == ({step.key}, {peak.key})
    assert (step.kind, step.measured, peak.kind, peak.measured) == ("step", 10.0, "memory", 30e9)
    assert peak.predicted > 1e9


def test_a_stated_row_without_a_time_gives_its_peak_alone(tmp_path: Path) -> None:
    write_table(tmp_path / "strategies" / "stated_steps.csv", [{**STATED, "step_s": ""}])
    (found,) = steps_in(tmp_path).candidates
    (peak,) = found.predict()
    assert isinstance(peak, Prediction)
    assert peak.quantity == "peak allocated"


def test_a_throughput_of_one_gpu_is_a_step(tmp_path: Path) -> None:
    row = {"table": "T", "model": "resnet50", "gpu": "v100-sxm2-16gb", "precision": "fp32"}
    row |= {"batch": "128", "samples_per_s": "367"}
    write_table(tmp_path / "strategies" / "one_gpu.csv", [row])
    (found,) = steps_in(tmp_path).candidates
    (step,) = found.predict()
    assert isinstance(step, Prediction)
    assert step.group == "one GPU"
    assert step.measured == pytest.approx(128 / 367)
    assert step.low is not None
    assert step.high is not None
    assert step.low < step.predicted < step.high
    assert step.predicted == pytest.approx(step.measured, rel=0.5)


def grid_row(number: int, **changes: str) -> dict[str, str]:
    return {
        "id": f"gemm_grid_{number:05}",
        "gpu": "H200-SXM5-141GB",
        "framework": "LIB",
        "version": "1",
        "dtype": "bfloat16",
        "m": "4096",
        "n": "4096",
        "k": "4096",
        "time_us": "200",
        **changes,
    }


def test_of_a_grid_one_row_in_nine_is_predicted(tmp_path: Path) -> None:
    rows = [grid_row(number) for number in range(18)] + [grid_row(18, dtype="fp8")]
    write_table(tmp_path / "strategies" / "gemm_grid.csv", rows)
    found = kernels_in(tmp_path)
    assert len(found.candidates) == 2
    assert sum(each.rows for each in found.left_out) == 17
    (kernel,) = found.candidates[0].predict()
    assert isinstance(kernel, Prediction)
    # 2 x 4096^3 operations take 139 us at the 989 TFLOP/s of a data sheet
    assert 139e-6 < kernel.predicted < 2 * 139e-6
    assert kernel.low is not None
    assert kernel.low < kernel.predicted


def test_grids_that_were_seen_are_no_first_predictions(tmp_path: Path) -> None:
    write_table(tmp_path / "strategies" / "gemm_grid.csv", [grid_row(0)])
    assert not kernels_in(tmp_path, seen={"gemm_grid, H200-SXM5-141GB, LIB 1"}).candidates


META = {
    "sweep_id": "own",
    "collective": "all_reduce",
    "gpu": "GH200",
    "nodes": "1",
    "gpus_per_node": "4",
    "nranks": "4",
    "intra_node": "NVLink4",
    "inter_node": "none",
    "nccl_version": "2.21.5",
    "trust": "5",
    "source": "example.org",
}


def test_every_size_of_a_new_sweep_is_predicted(tmp_path: Path) -> None:
    sizes = (8192, 1 << 28)
    rows = [
        {"size_bytes": str(size), "time_us": "1000", "time_us_inplace": "900"} for size in sizes
    ]
    write_table(tmp_path / "nccl_sweeps" / "META.csv", [META, {**META, "sweep_id": "in_place"}])
    for name in ("own", "in_place"):
        write_table(tmp_path / "nccl_sweeps" / f"{name}.csv", rows)
    found, judged_in_place = sweeps_in(tmp_path, ["in_place"]).candidates
    lines, in_place = from_data_sheets(found), from_data_sheets(judged_in_place)
    assert [each.row for each in lines] == [f"own, {size} B" for size in sizes]
    assert found.keys == {each.key for each in lines}
    assert {each.measured for each in lines} == {1e-3}
    assert {each.measured for each in in_place} == {0.9e-3}
    assert [class_of(each) for each in lines] == [
        "NVLink, below 256 KiB",
        "NVLink, from 256 KiB on",
    ]


def from_data_sheets(found: Candidate) -> list[Prediction]:
    lines = found.predict()
    assert not isinstance(lines, str)
    return [each for each in lines if each.quantity == "time"]


def test_a_folder_without_records_has_none(tmp_path: Path) -> None:
    found = first_predictions.collect(tmp_path, tmp_path)
    assert not found.candidates
    assert not found.left_out


def test_own_measurements_stand_beside_what_was_written_before_them() -> None:
    version, lines = own_predictions("h100")
    assert version == "0.13.0"
    assert {each.quantity for each in lines} == {"step time", "peak allocated", "largest batch"}
    assert len({each.key for each in lines}) == len(lines)


def test_own_kernels_are_predicted_by_what_they_compute_and_move() -> None:
    found = own_kernels(FOLDER)
    kernels = {row: each for each in found.candidates for _, row, _ in each.keys}
    (product,) = kernels["bf16 4096 x 8192 x 8192"].predict()
    assert isinstance(product, Prediction)
    # 2 x 4096 x 8192^2 operations at the 989 TFLOP/s of a data sheet
    assert 556e-6 < product.predicted < 2 * 556e-6
    (addition,) = kernels[f"addition of {1 << 28} fp32"].predict()
    assert isinstance(addition, Prediction)
    # three tensors of 2^30 bytes at the 3.35 TB/s of a data sheet
    assert 962e-6 < addition.predicted < 1.5 * 962e-6


# ---------------------------------------------------------------- numbers of the ledger


THREE = [
    prediction("a", 1.1, 1.0, (0.9, 1.3)),  # +10 %, inside, 44 % wide
    prediction("b", 0.8, 1.0, (0.7, 0.9)),  # -20 %, outside, 29 % wide
    prediction("c", 2.0, 1.0, None, table="other"),  # +100 %, without an interval
]


def test_each_line_weighs_the_same() -> None:
    found = statistics_of(THREE, alike=False)
    assert (found.lines, found.tables) == (3, 2)
    assert found.median == pytest.approx(0.2)
    assert found.p90 == pytest.approx(1.0)
    assert found.bias == pytest.approx(0.1)
    assert found.inside == 0.5
    assert found.width == pytest.approx(0.9 / 0.7 - 1)
    assert ledger.intervals_of(found) == "50 % of 2, 29 % wide"


def test_each_table_weighs_the_same() -> None:
    ten = [prediction(str(at), 1.1, 1.0, (1.0, 1.3)) for at in range(10)]
    alone = prediction("alone", 1.5, 1.0, (1.2, 1.8), table="other")
    pooled, even = (statistics_of([*ten, alone], alike=alike) for alike in (False, True))
    assert pooled.p90 == pytest.approx(0.1)
    assert even.p90 == pytest.approx(0.5)
    assert pooled.inside == pytest.approx(10 / 11)
    assert even.inside == pytest.approx(0.5)


def test_without_any_interval_none_is_inside() -> None:
    found = statistics_of([THREE[2]], alike=True)
    assert found.inside is None
    assert ledger.intervals_of(found) == "-"


@pytest.mark.parametrize(
    ("band", "quantity", "expected"),
    [
        ("latency", "time", "RoCE, below 256 KiB"),
        ("buckets", "time", "RoCE, from 256 KiB on"),
        ("bandwidth", "time with a profile", "RoCE, from 256 KiB on, with a profile"),
    ],
)
def test_collectives_have_a_class_for_each_band(band: str, quantity: str, expected: str) -> None:
    line = prediction(kind="collective", group="RoCE", quantity=quantity)
    assert class_of(replace(line, band=band)) == expected


def test_memory_is_told_apart_by_what_is_measured() -> None:
    line = prediction(kind="memory", group="memory", quantity="largest batch")
    assert class_of(line) == "memory, largest batch"


def test_the_headline_has_left_out_refits_beside_first_predictions() -> None:
    refit = {"median_abs_error": 0.07, "p90_abs_error": 0.25, "inside": 0.8}
    refits = {"strategies": {"quantities": {"step": {"all": refit}}}}
    entries = [Entry(ORIGIN, prediction(predicted=1.25))]
    (line,) = ledger.headline(entries, refits)[2:]
    assert line.startswith("| 9.9.9 | steps, sharded and split (1 in 1 table) | 25 %, 25 %; +25 %")
    assert line.endswith("| 7.0 %, 25 %; 80 % inside |")


def test_the_report_has_every_version_apart() -> None:
    later = Origin("10.0.0", "12345678", "2031-01-01")
    entries = [Entry(ORIGIN, THREE[0]), Entry(later, THREE[1])]
    text = ledger.document(entries, {})
    assert "## Version 9.9.9, by class" in text
    assert "## Version 10.0.0, by table" in text


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    text = f"before\n{ledger.BEGIN}\nold\n{ledger.END}\nafter\n"
    expected = f"before\n{ledger.BEGIN}\nnew\n{ledger.END}\nafter\n"
    assert ledger.with_block(text, ["new"], "README.md") == expected
    with pytest.raises(InputError, match="ledger"):
        ledger.with_block("no marks", ["new"], "README.md")


@pytest.mark.parametrize("name", ledger.DOCUMENTS)
def test_documents_state_what_the_ledger_says(name: str) -> None:
    refits = json.loads(ledger.VALIDATION.read_text("utf-8"))
    text = (ledger.ROOT / name).read_text("utf-8")
    assert (
        ledger.with_block(
            text, ledger.headline(read_entries(), refits, newest=name == "README.md"), name
        )
        == text
    )
