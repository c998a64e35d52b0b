"""Commands as a user meets them: answers on stdout, the rest on stderr, exit codes 0, 1, 2."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import perfmodel
from perfmodel.cli.app import app
from perfmodel.cli.collective import ranks_between, sizes_between
from perfmodel.errors import DataMismatch, InputError
from perfmodel.files import list_shipped

SCENARIO = """\
# How long is a step?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16}
strategy: {kind: ddp}
cluster: {node: dgx-a100, gpus_per_node: 8}
training: {batch_per_gpu: 32}
scale: {gpus: [1, 2]}
"""

NODE = """\
perfmodel: 1
kind: node
description: two GPUs
gpu: a100-sxm4-80gb
links:
  nvlink: {kind: nvlink, bandwidth: 25 GB/s, efficiency: 0.8, latency: 1 us, source: "a test"}
nodes:
  - {id: "gpu[0-1]", kind: gpu}
edges:
  - {from: gpu0, to: gpu1, link: nvlink}
"""


def perf(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def wrong(*args):
    """Run a command whose input is wrong; its lines on stderr."""
    result = perf(*args)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()


def shell(*args, **options):
    """Run a real process from another folder than the checkout."""
    root = str(Path(perfmodel.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "perfmodel", *(str(arg) for arg in args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": root},
        **options,
    )


@pytest.fixture
def scenario_file(tmp_path):
    def write(text=SCENARIO, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


# ---------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "found", "allowed"),
    [
        ("resnet18}", "resnet18, dtpe: fp16}", 3, "model.dtpe", "unknown field", "'dtype'"),
        ("{kind: ddp}", "{kind: ddp, bucket_cap: 25 mb}", 5, "strategy.bucket_cap", "'mb'", "'MB'"),
        ("{kind: ddp}", "{kind: ddp, bucket_cap: 25}", 5, "strategy.bucket_cap", "25", "'25 MiB'"),
        ("dgx-a100", "dgx-a10", 6, "cluster.node", "'dgx-a10'", "did you mean 'dgx-a100'"),
        ("resnet18", "resnet-18x", 3, "model.name", "'resnet-18x'", "did you mean 'resnet18'"),
        (
            "node: dgx-a100",
            "node: dgx-a100, nodes: 2, fabric: rail-optimized",
            6,
            "cluster.fabric.kind",
            "'rail-optimized'",
            "did you mean 'rail-optimised'",
        ),
        (
            "{precision: fp16}",
            "{precision: bf16}\nlibrary: {name: ncl}",
            5,
            "library.name",
            "'ncl'",
            "did you mean 'nccl'",
        ),
        (
            "name: resnet18",
            "name: resnet18, sequence_length: 5",
            3,
            "model.sequence_length",
            "5",
            "image model",
        ),
        ("node: dgx-a100", "node: dgx1-v100", 4, "compute.precision", "'bf16'", "which v100"),
        ("[1, 2]", "[1, 16]", 8, "scale.gpus.1", "16", "at most 8"),
        ("gpus_per_node: 8", "gpus_per_node: 9", 6, "cluster.gpus_per_node", "9", "8"),
        ("gpus_per_node: 8", "gpus_per_node: 0", 6, "cluster.gpus_per_node", "0", "equal to 1"),
        ("batch_per_gpu: 32", "batch_per_gpu: -32", 7, "training.batch_per_gpu", "-32", "than 0"),
        ("batch_per_gpu: 32", "batch_per_gpu: .nan", 7, "training.batch_per_gpu", "nan", "whole"),
        ("fp16}", "fp16, overlap_slowdown: .inf}", 4, "compute.overlap_slowdown", "inf", "finite"),
        ("perfmodel: 1", "perfmodel: 1\nseed: 1\nseed: 2", 4, "file", "duplicate key", "once"),
    ],
)
def test_a_wrong_scenario(scenario_file, old, new, line, field, found, allowed):
    assert old in SCENARIO
    text = SCENARIO.replace(old, new)
    path = scenario_file(text.replace("fp16", "bf16") if "v100" in new else text)
    (message,) = wrong("run", path)
    assert message.startswith(f"{path}:{line}: {field}: found ")
    told, permitted = message.split("; allowed: ", 1)
    assert found in told
    assert allowed in (told if allowed.startswith("did you mean") else permitted)


def test_two_faults_in_one_file_are_two_lines(scenario_file):
    path = scenario_file(SCENARIO.replace("fp16", "fp17").replace("batch_per_gpu", "batch"))
    lines = wrong("run", path)
    assert [line.split(": ")[1] for line in lines] == ["compute.precision", "training.batch"]


def test_a_model_without_tensors(scenario_file, tmp_path):
    (tmp_path / "empty.csv").write_text("name,shape,dtype\n")
    path = scenario_file(SCENARIO.replace("name: resnet18", "file: empty.csv"))
    (message,) = wrong("run", path)
    assert "empty.csv" in message
    (message,) = wrong("buckets", tmp_path / "empty.csv")
    assert "empty.csv" in message


def test_files_are_found_beside_the_scenario(scenario_file, tmp_path, monkeypatch):
    (tmp_path / "mine.csv").write_text("name,shape,dtype\nw,1000 1000,fp32\nb,1000,fp32\n")
    (tmp_path / "times.csv").write_text("name,forward,backward\nb,1 ms,2 ms\nw,3 ms,4 ms\n")
    (tmp_path / "box.yaml").write_text(NODE)
    path = scenario_file(
        SCENARIO.replace("name: resnet18", "file: mine.csv")
        .replace("{precision: fp16}", "{precision: fp16, source: file, times: times.csv}")
        .replace("dgx-a100, gpus_per_node: 8", "box.yaml")
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    answer = document("run", path)
    assert answer["compute_s"] >= 10e-3
    assert sum(b["nbytes"] for b in answer["buckets"]) == 4 * 1_001_000


def test_a_wrong_override_names_the_flag(scenario_file):
    (message,) = wrong("run", scenario_file(), "--set", "cluster.node=dgx-a10")
    assert message.startswith(
        "--set cluster.node: found 'dgx-a10' (did you mean 'dgx-a100'?); allowed: "
    )
    plan = ("--set", "plan={target: {samples: 9}, candidates: []}")
    (message,) = wrong("run", scenario_file(), *plan)
    assert message == "--set plan.candidates: found []; allowed: a list of at least 1"
    (message,) = wrong("run", scenario_file(), "--set", "training.batch_per_gpu=0")
    assert message.startswith("--set training.batch_per_gpu: found 0; allowed: ")


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    (tmp_path / "empty.yaml").write_text("")
    for name, words in (
        ("absent.yaml", "no such file"),
        ("", "which is a folder"),
        ("binary.yaml", "not text"),
        ("empty.yaml", "found nothing"),
    ):
        (message,) = wrong("run", tmp_path / name)
        assert str(tmp_path / name).rstrip("/") in message
        assert words in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("to: gpu1", "to: gpu2", 10, "gpu2"),
        ("link: nvlink}", "link: nvlnk}", 10, "nvlnk"),
        ("25 GB/s", "25", 6, "no unit"),
        ("25 GB/s", "0 GB/s", 6, "more than zero"),
        ("25 GB/s", "16 GT/s", 6, "transfers"),
        ("kind: nvlink", "kind: nvlonk", 6, "'nvlink'"),
        ("kind: gpu}", "kind: gpuu}", 8, "'gpu'"),
        ("description: two GPUs", "descripton: two GPUs", 3, "'description'"),
    ],
)
def test_a_wrong_topology(tmp_path, old, new, line, words):
    assert old in NODE
    path = tmp_path / "node.yaml"
    path.write_text(NODE.replace(old, new))
    lines = wrong("topology", "check", path)
    assert any(text.startswith(f"{path}:{line}: ") and words in text for text in lines), lines
    assert wrong("collective", path) == lines  # said by whoever reads the file


def test_a_good_topology(tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text(NODE)
    result = perf("topology", "check", path)
    assert result.exit_code == 0, result.stderr
    assert "no faults" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["topology", "show", "dgx-a10"], "TOPOLOGY: found 'dgx-a10'"),
        (["topology", "show", "dgx-a100", "--nodes", "2"], "--fabric: found nothing"),
        (["topology", "show", "dgx-a100", "--gpus-per-node", "9"], "--gpus-per-node: found 9"),
        (["collective", "dgx-a100", "-b", "8"], "-b: found '8' (no unit)"),
        (["collective", "dgx-a100", "-b", "2 B", "-e", "1 B"], "-e: found '1 B'"),
        (["collective", "dgx-a100", "-f", "1"], "-f: found 1.0"),
        (["collective", "dgx-a100", "-f", "nan"], "-f: found nan"),
        (["buckets", "resnet188"], "did you mean 'resnet18'"),
        (["buckets", "resnet18", "--bucket-cap", "-1 MiB"], "--bucket-cap: found '-1 MiB'"),
        (["buckets", "resnet18", "--caps-list", "1 MiB,"], "--caps-list 2: found ''"),
        (["verify", "ring", "--ranks", "1..4"], "--ranks: found '1..4'"),
        (["verify", "ring", "--ranks", "4..2"], "--ranks: found '4..2'"),
        (["verify", "ring", "--ranks", "x"], "--ranks: found 'x'"),
    ],
)
def test_wrong_flags(args, words):
    lines = wrong(*args)
    assert len(lines) == 1
    assert words in lines[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["run"],
        ["run", "x", "--nonsense"],
        ["schema", "nonsense"],
        ["run", "x", "--fidelity", "exact"],
    ],
)
def test_unknown_commands_and_options_are_wrong_input_too(args):
    assert not any("Value error" in line for line in wrong(*args))


def test_an_unwritable_report_folder(scenario_file, tmp_path):
    (tmp_path / "taken").write_text("a file")
    result = perf("run", scenario_file(), "-o", tmp_path / "taken")
    assert result.exit_code == 2
    assert "(a file); allowed: a folder, new or not" in result.stderr


def test_a_failed_answer_is_exit_code_1(monkeypatch):
    def broken(*_, **__):
        raise DataMismatch("rank 1, chunk 0: found 3, wanted 4")

    monkeypatch.setattr("perfmodel.collectives.verify_table.verify", broken)
    result = perf("verify", "ring", "--ranks", "2")
    assert result.exit_code == 1
    assert "rank 1, chunk 0" in result.stderr


# ---------------------------------------------------------------- answers


def document(*args):
    result = perf(*args, "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    return json.loads(result.stdout)


@pytest.mark.slow
def test_run_prints_the_contract(scenario_file):
    answer = document("run", scenario_file())
    contract = {
        "step_time_s",
        "compute_s",
        "comm_s",
        "exposed_comm_s",
        "samples_per_s",
        "scaling_efficiency",
        "bottleneck",
        "global_batch",
        "scaling",
        "memory_bytes",
        "fits",
        "interval_s",
        "buckets",
        "assumptions",
        "provenance",
    }
    assert contract <= answer.keys()
    assert answer["global_batch"] == 256
    assert answer["scaling"] == "weak"
    assert answer["step_time_s"] >= answer["compute_s"] > 0
    # ResNet-18 by default: https://github.com/pytorch/pytorch, a recorded run's bucket sizes
    assert [b["nbytes"] for b in answer["buckets"]] == [2052000, 28852224, 15853824]
    assert all(b["ready_s"] <= b["start_s"] <= b["end_s"] for b in answer["buckets"])


@pytest.mark.slow
def test_an_override_changes_the_answer(scenario_file):
    answer = document("run", scenario_file(), "--set", "strategy.bucket_caps=[1 MiB, 35 MiB]")
    assert [b["nbytes"] for b in answer["buckets"]] == [2052000, 38297600, 6408448]


@pytest.mark.slow
def test_run_writes_a_report(scenario_file, tmp_path):
    result = perf("run", scenario_file(), "-o", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.html", "timeline.json"} <= written
    assert "report.html" in result.stderr
    assert "report.html" not in result.stdout


@pytest.mark.slow
def test_buckets(tmp_path):
    answer = document("buckets", "resnet18")
    assert [b["nbytes"] for b in answer["buckets"]] == [2052000, 28852224, 15853824]
    assert answer["buckets"][0]["parameters"] == ["fc.bias", "fc.weight"]
    answer = document("buckets", "resnet18", "--find-unused")
    assert [b["nbytes"] for b in answer["buckets"]] == [11497376, 33744896, 1515776]
    answer = document("buckets", "resnet18", "--first-iteration")
    assert [b["nbytes"] for b in answer["buckets"]] == [46758048]
    answer = document("buckets", "resnet18", "--caps-list", "1 MiB,35 MiB")
    assert [b["nbytes"] for b in answer["buckets"]] == [2052000, 38297600, 6408448]
    capped = document("buckets", "resnet18", "--bucket-cap", "35 MiB")
    both = document("buckets", "resnet18", "--bucket-cap", "35 MiB", "--first-bucket", "1 MiB")
    assert both == answer
    assert capped != answer
    table = perf("buckets", "resnet18")
    assert "28,852,224" in table.stdout


def test_a_ready_order_from_a_file(tmp_path):
    names = [n for b in document("buckets", "resnet18")["buckets"] for n in b["parameters"]]
    order = tmp_path / "order.txt"
    order.write_text("# as backward ran\n" + "\n".join(reversed(names)) + "\n")
    turned = document("buckets", "resnet18", "--ready-order", order)
    assert [n for b in turned["buckets"] for n in b["parameters"]] == names[::-1]
    order.write_text("fc.weight\nfc.bais\n")
    (message,) = wrong("buckets", "resnet18", "--ready-order", order)
    assert message.startswith(f"{order}:2: --ready-order: found 'fc.bais'")
    order.write_text("fc.weight\n")
    (message,) = wrong("buckets", "resnet18", "--ready-order", order)
    assert message.startswith("--ready-order: found 1 entries")


def test_collective_prints_what_nccl_tests_would():
    rows = document("collective", "dgx-a100", "-b", "1 MiB", "-e", "16 MiB", "-f", "4")["rows"]
    assert [row["nbytes"] for row in rows] == [2**20, 2**22, 2**24]
    for row in rows:
        assert row.keys() == {
            "nbytes",
            "time_s",
            "algbw_Bps",
            "busbw_Bps",
            "algorithm",
            "protocol",
            "interval_s",
        }
        assert row["algbw_Bps"] == pytest.approx(row["nbytes"] / row["time_s"])
        # nccl-tests doc/PERFORMANCE.md: all-reduce busbw = algbw 2(n-1)/n
        assert row["busbw_Bps"] == pytest.approx(row["algbw_Bps"] * 2 * 7 / 8)


@pytest.mark.slow
def test_lists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {row["name"] for row in document("scenarios")["scenarios"]} == {
        *list_shipped("scenarios")
    }
    named = {row["name"]: row for row in document("topology", "list")["topologies"]}
    assert named["dgx-a100"]["kind"] == "node"
    models = {row["name"]: row for row in document("models", "resnet50", "gpt2")["models"]}
    assert models["resnet50"]["parameters"] == 25_557_032  # torchvision's published count
    for command in (["scenarios"], ["topology", "list"], ["models", "resnet18", "gpt2"]):
        assert perf(*command).exit_code == 0


def test_the_file_of_a_scenario_is_printed():
    printed = perf("scenarios", "resnet50-dgx-a100")
    file = list_shipped("scenarios")["resnet50-dgx-a100"].read_text("utf-8")
    assert printed.output.strip() == file.strip()
    refused = perf("scenarios", "resnet50-dgx-a10")
    assert refused.exit_code == 2
    assert "resnet50-dgx-a100" in refused.output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scenario", "topology"])
def test_schemas_are_schemas(kind):
    import jsonschema

    result = perf("schema", kind)
    assert result.exit_code == 0, result.exception
    jsonschema.Draft202012Validator.check_schema(json.loads(result.stdout))


def test_verify():
    answer = document("verify", "ring", "--ranks", "2..4", "--orders", "1")
    ring = {r["ranks"]: r for r in answer["verified"] if r["op"] == "all_reduce"}
    assert {n: r["sends"] for n, r in ring.items()} == {n: 2 * (n - 1) * n for n in (2, 3, 4)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["-h"],
        ["run"],
        ["buckets"],
        ["collective"],
        ["verify"],
        ["models"],
        ["scenarios"],
        ["schema"],
        ["topology", "show"],
        ["topology", "check"],
        ["topology", "list"],
    ],
)
def test_every_command_has_help_with_an_example(command):
    result = perf(*command, "--help")
    assert result.exit_code == 0
    if command != ["-h"]:
        assert "Examples:\n    perfmodel " in result.stdout


def test_version():
    assert perf("--version").stdout == f"perfmodel {perfmodel.__version__}\n"


def test_sizes_and_ranks():
    assert sizes_between("1 B", "10 B", 1.5) == [1, 2, 3, 5, 8]
    assert sizes_between("8 B", "8 B", 2) == [8]
    assert list(ranks_between("3")) == [3]
    assert list(ranks_between("2..4")) == [2, 3, 4]
    with pytest.raises(InputError):
        ranks_between("2..")


# ---------------------------------------------------------------- real processes


@pytest.mark.slow
def test_a_process_from_another_folder(tmp_path):
    done = shell("scenarios", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["scenarios"]
    done = shell("run", "resnet50-dgx-a10", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'resnet50-dgx-a100'" in done.stderr
    assert "Traceback" not in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom perfmodel.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'networkx', 'plotly', 'pydantic', 'rich', 'simpy', 'torch'}\n"
        "sys.stderr.write(' '.join(sorted(heavy & sys.modules.keys())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(perfmodel.__file__).parents[1])},
    )
    assert done.stderr == ""


def start(*args):
    code = (
        "import sys\nfrom perfmodel.cli import main\n"
        "sys.stderr.write('ready\\n')\nsys.stderr.flush()\nmain()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(perfmodel.__file__).parents[1])},
    )
    assert process.stderr.readline() == "ready\n"
    return process


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_traceback():
    process = start("schema", "scenario")
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert stderr == ""


@pytest.mark.slow
def test_ctrl_c_is_no_traceback():
    process = start("verify", "ring", "--ranks", "100..106")
    time.sleep(0.5)  # it would take longer
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert stdout == ""
