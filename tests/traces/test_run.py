"""From traces to a scenario and back: made ones, and those of others if they are at hand."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import build_app
from perfmodel.errors import InputError
from perfmodel.traces.run import analyse_traces, read_ranks, to_json
from tests.traces.kineto.made_trace import WIDTH, MadeTrace

SAMPLES = Path(os.environ.get("PERFMODEL_SAMPLES", "no such folder"))
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="PERFMODEL_SAMPLES names no folder")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, of which the first waits for the second."""
    folder = tmp_path_factory.mktemp("made")
    MadeTrace(rank=0, waiting=60.0).write(folder / "a.json")
    MadeTrace(rank=1).write(folder / "b.json")
    return folder


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(["trace", "export"]), arguments)
    return result.exit_code, result.output


@pytest.mark.parametrize("changes", [{"launch": 60.0}, {"comm": 1200.0}])
def test_a_made_trace_is_reproduced(tmp_path: Path, changes: dict[str, float]) -> None:
    MadeTrace(**changes).write(tmp_path / "rank0.json")  # type: ignore[arg-type]
    analysis = analyse_traces([tmp_path / "rank0.json"])
    assert analysis.comparison is not None
    assert abs(analysis.comparison.error) < 0.01
    assert analysis.rebuilt is not None
    strategy = analysis.rebuilt.documents["scenario.yaml"]["strategy"]
    assert strategy["bucket_caps"] == [f"{8 * (WIDTH * WIDTH + WIDTH)} B"] * 2
    for recorded, simulated in zip(
        analysis.profile.buckets, analysis.comparison.point.buckets, strict=True
    ):
        assert simulated.end_s == pytest.approx(recorded.end_s, rel=0.02)


def test_transfers_of_unlike_buckets_and_buffers(tmp_path: Path) -> None:
    """Time that does not grow with size is latency; broadcast buffers are in the model."""
    document = MadeTrace(buckets=(0, 3)).document()
    events = document["traceEvents"]
    marks = [event["ts"] for event in events if event["name"].startswith("ProfilerStep")]
    for number, start in enumerate(marks, start=10**6):
        launch = {"correlation": number}
        sent = {"Collective name": "broadcast", "In msg nelems": 100, "dtype": "Float", **launch}
        for cat, name, args in (
            ("cuda_runtime", "cudaLaunchKernelExC", launch),
            ("kernel", "ncclDevKernel_Broadcast_RING_LL", sent),
        ):
            events.append(
                {
                    "ph": "X",
                    "cat": cat,
                    "name": name,
                    "pid": 1,
                    "tid": 1,
                    "ts": start + 0.1,
                    "dur": 0.1,
                    "args": args,
                }
            )
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(document))
    analysis = analyse_traces([path])
    assert analysis.comparison is not None
    assert analysis.rebuilt is not None
    for recorded, simulated in zip(
        analysis.profile.buckets, analysis.comparison.point.buckets, strict=True
    ):
        assert simulated.end_s - simulated.start_s == pytest.approx(450e-6, rel=0.02)
        assert recorded.transfer_s == pytest.approx(450e-6, rel=0.02)
    assert analysis.rebuilt.documents["model.yaml"]["buffers"] == "400 B"
    assert analysis.rebuilt.documents["scenario.yaml"]["strategy"]["broadcast_buffers"] is True


def test_command_writes_what_run_reads(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text = run("trace", str(traces), "-o", str(out), "--set", "what_if.node_bandwidth=10")
    assert code == 0, text
    assert "2 of 2 ranks" in text
    assert "the first rank waits 120 µs more" in text
    assert "With the changes:" in text
    from perfmodel.scenario import load_scenario
    from perfmodel.studies.run import run_scenario

    document = json.loads((out / "trace.json").read_text())
    again = run_scenario(load_scenario(str(out / "scenario.yaml")))
    assert again.main.step_time_s == document["replay"]["simulated_s"]
    assert document["changed"]["simulated_s"] < document["replay"]["simulated_s"]
    page = (out / "trace.html").read_text()
    assert "Recorded and simulated" in page
    timeline = json.loads((out / "timeline.json").read_text())
    assert {"schemaVersion", "distributedInfo", "traceEvents"} <= set(timeline)


def test_buckets_are_printed_as_they_were_made(traces: Path) -> None:
    """Two layers each; 450 µs on the wire, of which the first rank has waited 60 µs before."""
    code, text = run("trace", str(traces))
    assert code == 0, text
    head, *rows = (
        re.split(r" {2,}", line.strip())
        for line in text.splitlines()
        if re.match(r"bucket  |\s+\d  ", line)
    )
    assert [row[0] for row in rows] == ["0", "1"]
    for row in (dict(zip(head, row, strict=True)) for row in rows):
        assert row["elements"] == f"{2 * (WIDTH**2 + WIDTH):,}"
        assert row["size"] == "2.00 MiB"
        assert (row["transfer"], row["waiting"]) == ("450 µs", "60.0 µs")
        ends = [float(row[name].removesuffix(" ms")) for name in ("end", "simulated end")]
        assert ends[1] == pytest.approx(ends[0], rel=0.05)
    alone = run("trace", str(traces / "b.json"))[1].splitlines()
    assert ["waiting" in line for line in alone if line.startswith("bucket ")] == [False]


def test_json_has_layers_in_gradient_ready_order(traces: Path) -> None:
    code, text = run("trace", str(traces), "--json")
    assert code == 0
    document = json.loads(text)
    assert document["layers"][0]["name"] == "linear_4"
    assert [bucket["transfer_s"] for bucket in document["buckets"]] == pytest.approx([450e-6] * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}", "{folder}/a.json"], "one trace for each rank"),
        (["{folder}", "--model", "resnet18"], "--model: found 'resnet18', of 62 tensors"),
        (["{folder}", "--gpu", "abacus"], "abacus"),
        (["{folder}", "--nodes", "2"], "nothing with traces of a profiler"),
        (["{folder}", "--set", "cluster.node=abacus"], "abacus"),
        (["/no/such/file.json"], "No such file"),
    ],
)
def test_wrong_flags(traces: Path, arguments: list[str], message: str) -> None:
    code, text = run("trace", *(each.format(folder=traces) for each in arguments))
    assert code == 2
    assert message in text
    assert "Traceback" not in text


def test_what_a_list_of_layers_cannot_hold_is_summed_up(tmp_path: Path) -> None:
    document = MadeTrace().document()
    for event in document["traceEvents"]:
        if event["name"].startswith("ncclDevKernel"):
            event["name"] = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"
            event["args"]["Collective name"] = "_reduce_scatter_base"
    path = tmp_path / "sharded.json"
    path.write_text(json.dumps(document))
    analysis = analyse_traces([path])
    assert analysis.comparison is None
    assert "reduce_scatter in a step" in analysis.refusal
    assert to_json(analysis)["other_collectives"][0]["op"] == "reduce_scatter"


def test_ranks_come_in_order(traces: Path, tmp_path: Path) -> None:
    ranks = read_ranks([traces / "b.json", traces / "a.json"])
    assert [trace.rank for trace in ranks] == [0, 1]
    other_job = MadeTrace(ranks=4).write(tmp_path / "other.json")
    with pytest.raises(InputError, match=r"of rank 0, .* of rank 0; allowed: one trace for each"):
        read_ranks([traces / "a.json", other_job])
    document = MadeTrace(ranks=4).document()
    del document["distributedInfo"]
    other_job.write_text(json.dumps(document))
    assert [trace.world_size for trace in read_ranks([other_job])] == [4]  # by its messages
    assert [trace.rank for trace in read_ranks([other_job, other_job])] == [0, 1]


def test_gradients_reduced_in_groups_are_summed_up(tmp_path: Path) -> None:
    document = MadeTrace().document()
    document["distributedInfo"]["world_size"] = 8
    path = tmp_path / "split.json"
    path.write_text(json.dumps(document))
    analysis = analyse_traces([path])
    assert analysis.comparison is None
    assert "gradients reduced among 2 of 8 ranks" in analysis.refusal


def test_a_folder_without_traces() -> None:
    with pytest.raises(InputError, match="a folder without traces"):
        read_ranks([Path(__file__).parent / "kineto"])


# ---------------------------------------------------------------- of others


@pytest.mark.slow
@needs_samples
def test_resnet50_on_two_gpus() -> None:
    """Its five buckets, to the element; 161 gradients that are those of the zoo's ResNet-50."""
    path = SAMPLES / "kineto_resnet50_ddp_2gpu.json.gz"
    analysis = analyse_traces([path], model="resnet50")
    sizes = [bucket.elements for bucket in analysis.profile.buckets]
    assert sizes == [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]
    assert analysis.rebuilt is not None
    strategy = analysis.rebuilt.documents["scenario.yaml"]["strategy"]
    assert "bucket_caps" not in strategy  # PyTorch's default buckets
    assert analysis.rebuilt.gradients[0].name == "fc.bias"
    assert analysis.launch_bound > 0.5
    assert analysis.comparison is not None
    assert abs(analysis.comparison.error) < 0.02


@pytest.mark.slow
@needs_samples
def test_a_trace_with_nanoseconds_of_one_rank() -> None:
    analysis = analyse_traces([SAMPLES / "kineto_ns_rank0.json.gz"])
    assert analysis.comparison is not None
    assert abs(analysis.comparison.error) < 0.02
    assert sum(gradient.elements or 0 for gradient in analysis.first.gradients) == 25_557_032


@needs_samples
def test_a_trace_without_training_is_refused() -> None:
    with pytest.raises(InputError, match="no backward pass"):
        analyse_traces([SAMPLES / "kineto_alexnet.json.gz"])


def test_execution_traces_beside_the_profilers_are_passed_over(
    traces: Path, tmp_path: Path
) -> None:
    """They have no times, and alone they are refused."""
    executed = tmp_path / "et0.json"
    executed.write_text('{ "schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [{"id": 1}]}')
    read = read_ranks([executed, traces])
    assert [trace.path.name for trace in read] == ["a.json", "b.json"]
    status, output = run("trace", str(executed))
    assert status == 2
    assert "an execution trace of PyTorch, which has no times" in " ".join(output.split())


def test_flags_that_chakras_traces_have_no_use_for(traces: Path) -> None:
    status, output = run("trace", str(traces), str(traces), "--topology", "dgx-a100", "--gpu", "x")
    assert status == 2
    said = " ".join(output.split())
    assert "--gpu: found a value; allowed: nothing with Chakra's traces" in said
    assert "trace: found 2 folders; allowed: one folder of Chakra's traces" in said
