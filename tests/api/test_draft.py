"""`init`: a commented scenario that runs, and never takes the place of a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.api.draft import DraftAnswers, draft_scenario, write_draft
from perfmodel.cli.app import build_app
from perfmodel.errors import InputError
from perfmodel.files import find_file
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario

MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity
GPU0\t X \tNV12\tPXB\t0-15
GPU1\tNV12\t X \tPXB\t0-15
NIC0\tPXB\tPXB\t X \t

NIC Legend:

  NIC0: mlx5_0
"""


@pytest.mark.slow
def test_what_is_written_runs_and_fits(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    done = CliRunner().invoke(
        build_app(["init"]),
        ["init", "-o", str(file), "--model", "resnet18", "--node", "dgx-a100", "--nodes", "2"],
    )
    assert done.exit_code == 0, done.output
    text = file.read_text()
    assert text.startswith("# How long is a training step of resnet18 on 2 dgx-a100?")
    assert all("#" in line for line in text.splitlines()[2:] if not line.endswith(":"))
    scenario = load_scenario(file)
    assert scenario.cluster.fabric is not None
    assert scenario.cluster.fabric.kind == "rail-optimised"
    result = run_scenario(scenario, with_first=False)
    assert [point.gpus for point in result.points] == [8, 16]
    assert result.main.memory.fits


def test_a_file_that_exists_stays(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mine")
    flags = ["init", "-o", str(file), "--model", "resnet18", "--node", "dgx-a100"]
    done = CliRunner().invoke(build_app(["init"]), flags)
    assert done.exit_code == 2
    assert "--force" in done.stderr
    assert file.read_text() == "mine"
    assert CliRunner().invoke(build_app(["init"]), [*flags, "--force"]).exit_code == 0
    assert file.read_text() != "mine"


def test_what_does_not_fit_whole_is_split() -> None:
    draft = draft_scenario(DraftAnswers(model="llama2-7b", node="dgx-a100"))
    assert draft.scenario.strategy.kind == "fsdp"
    assert "does not fit" in draft.text
    with pytest.raises(InputError, match="per GPU even with FSDP"):
        draft_scenario(DraftAnswers(model="gpt3-175b", node="dgx1-v100"))


def test_a_matrix_becomes_a_node_beside_the_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, file = tmp_path / "topo.txt", tmp_path / "there" / "mine.yaml"
    matrix.write_text(MATRIX)
    flags = [
        "init",
        "-o",
        str(file),
        "--model",
        "resnet18",
        "--topo",
        str(matrix),
        "--gpu",
        "A100-SXM4-80GB",
    ]
    done = CliRunner().invoke(build_app(["init"]), flags)
    assert done.exit_code == 0, done.output
    monkeypatch.chdir(tmp_path)
    scenario = load_scenario(file)
    assert scenario.cluster.node == "mine-node.yaml"
    assert run_scenario(scenario, with_first=False).main.gpus == 2


def test_a_config_is_named_from_where_the_scenario_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 128,
    }
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "config.json").write_text(json.dumps(sizes))
    flags = ["init", "-o", "new/mine.yaml", "--config", "toy/config.json", "--node", "rtx4090-x4"]
    done = CliRunner().invoke(build_app(["init"]), flags)
    assert done.exit_code == 0, done.output
    scenario = load_scenario(tmp_path / "new" / "mine.yaml")
    assert scenario.model.config == "../toy/config.json"
    assert run_scenario(scenario, with_first=False).main.memory.fits


def test_a_node_may_be_a_file_of_any_name(tmp_path: Path) -> None:
    node = tmp_path / "lab: 2 #1.yaml"
    node.write_text(find_file("ethernet-10g", "topologies").read_text())
    draft = draft_scenario(DraftAnswers(model="resnet18", node=str(node)), tmp_path)
    assert write_draft(draft, tmp_path / "mine.yaml").cluster.node == node.name


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--model: found nothing"),
        (["--model", "resnet5", "--node", "dgx-a100"], "--model: found 'resnet5'"),
        (["--model", "resnet18", "--node", "dgx-a10"], "did you mean 'dgx-a100'"),
        (["--model", "resnet18", "--node", "dgx-a100", "--strategy", "ddpp"], "--strategy"),
        (["--model", "resnet18", "--node", "dgx-a100", "--topo", "x"], "one of them"),
        (["--model", "resnet18", "--topo", "no-such-file"], "no-such-file"),
        (["--model", "resnet18", "--gpu", "a100"], "--gpu: found 'a100'; allowed: --topo beside"),
        (["--model", "resnet18", "--fabric", "fat-tree"], "--fabric: found 'fat-tree'; allowed"),
    ],
)
def test_a_wrong_answer_is_named_by_its_flag(
    flags: list[str], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    done = CliRunner().invoke(build_app(["init"]), ["init", "-o", str(file), *flags])
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not file.exists()
