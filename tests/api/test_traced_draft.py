"""Scenarios drafted from a trace: of its own machine, or of another."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.api.traced_draft import draft_from_trace
from perfmodel.cli.app import build_app
from perfmodel.errors import InputError
from perfmodel.studies.run import run_scenario
from tests.traces.kineto.made_trace import MadeTrace


def init(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(["init"]), ["init", *arguments])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MadeTrace().write(tmp_path_factory.mktemp("made") / "rank0.json")


def test_the_recorded_machine_steps_as_recorded(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.yaml"
    code, text = init("--trace", str(trace), "-o", str(output))
    assert code == 0, text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine-machine.yaml",
        "mine-model.yaml",
        "mine.yaml",
    ]
    # The file has a comment for each field, and was read again.
    lines = [line for line in output.read_text().splitlines() if line.startswith("  ")]
    assert lines
    assert all("  # " in line for line in lines)
    draft = draft_from_trace([trace], output, force=True)
    recorded_s = float(draft.notes[0].rpartition("median ")[2].removesuffix(" ms")) / 1e3
    simulated_s = run_scenario(draft.scenario).main.step_time_s
    assert simulated_s == pytest.approx(recorded_s, rel=0.01)
    with pytest.raises(InputError, match="which exists"):
        draft_from_trace([trace], output)


def test_another_machine_by_name(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "h100.yaml"
    draft = draft_from_trace([trace], output, node="dgx-h100", batch_per_gpu=64)
    cluster = draft.scenario.cluster
    assert (cluster.node, cluster.nodes, cluster.gpus_per_node) == ("dgx-h100", 1, 2)
    assert draft.scenario.library.name == "nccl"
    assert draft.scenario.training.batch_per_gpu == 64
    assert not (tmp_path / "h100-machine.yaml").exists()
    assert "times of layers are those of" in " ".join(draft.notes)
    with pytest.raises(InputError, match="times of a100-sxm4-40gb, on a machine of h100-sxm5-80gb"):
        run_scenario(draft.scenario)


def test_what_the_trace_says_is_no_flag(trace: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "x.yaml")
    code, text = init("--trace", str(trace), "--strategy", "fsdp", "-o", output)
    assert code == 2
    assert "--strategy" in text
    code, text = init("--trace", str(trace), "--nodes", "2", "-o", output)
    assert code == 2
    assert "--node beside it" in text
    assert not list(tmp_path.iterdir())
