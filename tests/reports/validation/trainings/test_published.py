"""Rows of published training tables: which can be expressed, how, and why others cannot."""

import pytest

from perfmodel.errors import InputError
from perfmodel.files.csv_rows import read_table
from perfmodel.workload.compute_spread import gpu_speeds
from reports.validation.run import records_folder
from reports.validation.trainings.datasets import datasets_in
from reports.validation.trainings.published import (
    LEFT_OUT,
    ddp_benchmark_dataset,
    published_datasets,
    single_dataset,
)
from reports.validation.trainings.rows.parse import UnsupportedRow, parse_row, shares_of

ROW = {
    "dataset": "x",
    "model": "ResNet50 v1.5",
    "framework": "PyTorch 1.9",
    "gpu": "V100-SXM2-16GB",
    "nodes": "4",
    "gpus_per_node": "8",
    "gpus_total": "32",
    "batch_per_gpu": "128",
    "interconnect": "NVLink2 hybrid cube mesh; 1x 100 Gb EDR InfiniBand per node",
    "precision": "FP16/AMP",
    "sync_mode": "allreduce",
    "metric": "throughput",
    "value": "20000",
}


def test_a_row_that_can_be_expressed():
    asked = parse_row(ROW)
    assert (asked.model.name, asked.precision, asked.batch) == ("resnet50", "fp16", 128)
    assert asked.shares == (8, 8, 8, 8)
    machine = asked.machine
    assert (machine.gpus, machine.intra.layout, machine.network.kind) == (8, "cube", "infiniband")
    assert (machine.network.nics, machine.network.nic_Bps) == (1, 12.5e9)


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"framework": "MXNet"}, "another framework"),
        ({"metric": "sync_time"}, "no step time or throughput"),
        ({"value": ""}, "no step time or throughput"),
        ({"sync_mode": "BSP-PS: parameter server"}, "strategy cannot be expressed"),
        ({"model": "tacotron2"}, "not in the zoo"),
        ({"batch_per_gpu": ""}, "batch per GPU is not stated"),
        ({"batch_per_gpu": "8192 and 8192"}, "batch per GPU is not stated"),
        ({"gpu": "a cloud GPU"}, "GPU is not named"),
        ({"precision": "int4"}, "precision is not modelled"),
        ({"gpus_per_node": "20/16"}, "how many GPUs each node has"),
        ({"gpus_per_node": "1+3"}, "how many GPUs each node has"),  # of four nodes
        ({"nodes": "0"}, "how many GPUs each node has"),
        ({"nodes": "4", "gpus_per_node": "0"}, "how many GPUs each node has"),
        ({"nodes": "9" * 12}, "more than 131,072 GPUs"),
        ({"value": "inf"}, "no step time or throughput"),
        ({"value": "nan"}, "no step time or throughput"),
        ({"value": "-3"}, "no step time or throughput"),
        ({"sync_mode": "no ddp"}, "strategy cannot be expressed"),
        ({"gpu": "V100", "interconnect": "cloud instances"}, "links between the GPUs"),
        ({"interconnect": "cloud instances; spread over servers"}, "network is not named"),
    ],
)
def test_rows_that_cannot(cells, why):
    with pytest.raises(UnsupportedRow, match=why):
        parse_row(ROW | cells)


def test_equal_shares_are_a_layout():
    assert shares_of({"nodes": "3", "gpus_per_node": "2+2+2"}) == (2, 2, 2)
    assert shares_of({"nodes": "2", "gpus_per_node": "1+3"}) == (1, 3)
    assert shares_of({"gpus_total": "8"}) == (8,)


def test_tables_whose_batch_is_that_of_the_job():
    assert parse_row(ROW | {"dataset": "lambda_x", "batch_per_gpu": "1280"}).batch == 40


def test_other_strategies_as_bucket_caps():
    assert (
        parse_row(ROW | {"sync_mode": "BSP-A2A: allreduce, no overlap"}).options.bucket_cap > 1e12
    )
    name = "WFBP-A2A: allreduce with overlap per tensor (Horovod WFBP)"
    each = parse_row(ROW | {"sync_mode": name})
    assert each.horovod is not None
    assert each.horovod.fusion_threshold == 0
    assert parse_row(ROW).horovod is None


def table(path, *rows):
    path.write_text(
        "\n".join([",".join(ROW), *(",".join(f'"{v}"' for v in row.values()) for row in rows)])
    )


def test_a_folder_of_tables(tmp_path):
    one = ROW | {"nodes": "1", "gpus_per_node": "1", "gpus_total": "1"}
    table(tmp_path / "mine.csv", one, ROW | {"framework": "Caffe"})
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    mine, other = published_datasets(tmp_path, [])
    assert [len(mine.cases), len(other.cases)] == [1, 0]
    assert list(mine.left_out.values()) == [1]
    assert "another shape" in next(iter(other.left_out))
    # 20000 images per second are beyond a V100: the roofline says some 850
    assert 500 < mine.cases[0].predicted < 1200


def test_a_rate_counts_steps_of_all_gpus_and_a_step_time_is_turned_over(tmp_path):
    one = ROW | {"nodes": "1", "gpus_per_node": "1", "gpus_total": "1", "batch_per_gpu": "100"}
    table(
        tmp_path / "mine.csv",
        one | {"metric": "rate", "value": "5"},
        one | {"metric": "step_time", "value": "0.2"},
    )
    (mine,) = published_datasets(tmp_path, [])
    assert [case.published for case in mine.cases] == [500.0, 500.0]


def test_faults_of_all_tables_at_once(tmp_path):
    (tmp_path / "single_gpu.csv").write_text("model,gpu,precision,batch\nresnet50,t4,fp32,many\n")
    (tmp_path / "testbed").mkdir()
    (tmp_path / "testbed" / "ddp_iters.csv").write_text("n,mtu\n4,1500\n")
    (tmp_path / "testbed" / "models.csv").write_text("model\nx\n")
    with pytest.raises(InputError) as caught:
        datasets_in(tmp_path)
    assert len(caught.value.faults) == 2


def test_single_gpu_throughputs_as_published():
    found = single_dataset(records_folder() / "single_gpu.csv", [])
    assert len(found.cases) == 67
    assert found.left_out == {}
    assert found.median_abs_error < 0.10


SERIES = (
    ("1", "1", "100"),
    ("1", "8", "720"),
    ("4", "8", "2400"),
)
"""Nodes, GPUs of each, samples per second: efficiencies of 0.9 and 0.75."""


def series(**cells):
    return [
        ROW | {"nodes": nodes, "gpus_per_node": gpus, "gpus_total": "", "value": value} | cells
        for nodes, gpus, value in SERIES
    ]


def test_scaling_of_a_table_by_hand(tmp_path):
    table(tmp_path / "mine.csv", *series())
    (mine,) = published_datasets(tmp_path, [])
    pairs = [run.pair("efficiency") for run in mine.runs]
    assert pairs[0] is None
    assert [pair[0] for pair in pairs[1:]] == pytest.approx([0.9, 0.75])
    one, node, cluster = mine.runs
    assert node.pair("efficiency")[1] == pytest.approx(node.predicted / 8 / one.predicted)
    assert [run.network for run in mine.runs] == ["one GPU", "NVLink", "InfiniBand"]
    # this V100 is eight times as slow as the roofline says: its communication is well hidden, and
    # 32 of them wait for the slowest
    slowest = 1 + gpu_speeds() * 2.0697
    assert cluster.scaled == pytest.approx(3200 / slowest, rel=0.03)
    assert cluster.scaled < 3200 / slowest
    assert cluster.scaled < cluster.predicted / 5
    assert mine.not_scaled == {}


def test_runs_without_a_base_are_counted_by_the_reason(tmp_path):
    rows = series()
    table(tmp_path / "mine.csv", *rows[1:], rows[2] | {"batch_per_gpu": "64"})
    (mine,) = published_datasets(tmp_path, [])
    assert [run.base_gpus for run in mine.runs] == [None, 8, None]
    assert list(mine.not_scaled.values()) == [2, 1]
    assert "no smaller run" in next(iter(mine.not_scaled))
    assert mine.runs[1].pair("efficiency")[0] == pytest.approx((2400 / 32) / (720 / 8))
    assert mine.to_json()["not_scaled"] == mine.not_scaled


def test_statistics_within_the_step_leave_scaled_compute_alone(tmp_path):
    rows = series(dataset="pollux_osdi21", model="ResNet-50 ImageNet", batch_per_gpu="32")
    table(tmp_path / "mine.csv", *rows)
    (mine,) = published_datasets(tmp_path, [])
    assert mine.cases == []
    assert [run.pair("scaled") is None for run in mine.runs] == [True, False, False]
    assert any("statistics of every gradient" in reason for reason in mine.not_scaled)


def test_errata_say_what_the_code_ran(tmp_path):
    """Mixed precision of AdaptDL, 64 tokens of ddl-benchmarks, and heads that score all tokens."""
    rows = [
        series(dataset=dataset, model=model, precision="FP32", batch_per_gpu="32")[0]
        for dataset, model in (
            ("pollux_osdi21", "ResNet-50 ImageNet"),
            ("ddl_benchmarks_2020", "BERT-Base"),
            ("dlperf_v100_4n", "BERT-base"),
            ("another", "BERT-Base"),
        )
    ]
    table(tmp_path / "mine.csv", *rows)
    (mine,) = published_datasets(tmp_path, [])
    pollux, short, whole, plain = mine.runs
    assert (pollux.precision, plain.precision) == ("fp16", "fp32")
    assert (short.model, whole.model) == ("bert-base for pre-training",) * 2
    assert short.predicted > 1.8 * whole.predicted, "half the tokens"
    # 170 MFLOP of a token's layers, 48 of its head (Devlin et al. 2018, arXiv 1810.04805)
    assert plain.predicted / whole.predicted == pytest.approx((170 + 48) / 170, rel=0.1)


@pytest.mark.slow
def test_the_ddp_benchmark_in_its_own_columns():
    path = records_folder() / "ddp" / "pytorch_ddp_benchmark.csv"
    benchmark = ddp_benchmark_dataset(path, [])
    assert sum(benchmark.left_out.values()) + len(benchmark.runs) == 34
    assert benchmark.left_out == {}
    assert all(run.unlike for run in benchmark.runs if "resnext" in run.model)
    last = benchmark.runs[-1]  # bucket_cap_mb 1, of which only the 75th percentile is printed
    assert (last.model, last.gpus, last.base_gpus) == ("resnext50-32x4d", 16, 1)
    assert last.published == pytest.approx(32 * 16 / 0.161)
    assert last.base[0] == pytest.approx(32 / 0.149), "with the same cap, not the 0.147 of 25 MB"


# Rows of each table as its authors published it: none is lost between copies and reasons.
PUBLISHED = {
    "ddl_benchmarks_bertbase": 105,
    "dlperf_v100": 300,
    "gavel": 207,
    "lambda": 1205,
    "nvidia_dle": 594,
    "paddle_perf": 110,
    "pollux_imagenet": 2304,
    "dlperf_gpt_v100": 72,
    "llm_pretraining_tables": 44,
    "llmfoundry": 86,
    "llm_training": 901,
    "mlperf": 514,
    "pollux_deepspeech2": 1904,
    "pollux_ncf": 4238,
    "tf_benchmarks_2017_k80": 136,
    "vtrain_single": 720,
    # llm_training, compression, Megatron-LM's own tests, vTrain, GPipe
    "strategy_steps": 901 + 86 + 260 + 55 + 19 + 2,  # Mixtral's two steps of Megatron-Core
}


def test_no_row_of_a_published_table_is_left_out_without_a_reason():
    folder = records_folder() / "training"
    left_out = {}
    for record in read_table(folder / LEFT_OUT, []):
        left_out.setdefault(record.cells["table"], []).append(int(record.cells["rows"]))
    copies = {p.stem: len(read_table(p, [])) for p in folder.glob("*.csv") if p.name != LEFT_OUT}
    for record in read_table(records_folder() / "llm_steps.csv", []):
        table_ = record.cells["table"]
        if table_ != "internevo":  # differences of rows that are counted as left out
            name = "llmfoundry" if table_ == "mosaic" else "llm_training"
            copies[name] = copies.get(name, 0) + 1
    copies["strategy_steps"] = len(read_table(records_folder() / "strategy_steps.csv", []))
    totals = {name: copies.get(name, 0) + sum(left_out.get(name, ())) for name in PUBLISHED}
    assert totals == PUBLISHED
    assert set(copies) | set(left_out) == set(PUBLISHED)


def test_shipped_copies_can_all_be_expressed():
    for path in sorted((records_folder() / "training").glob("*.csv")):
        for record in read_table(path, []) if path.name != LEFT_OUT else ():
            parse_row(record.cells)
