"""`perfmodel topology import`: what is printed and written, and that nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from perfmodel.cli.app import app
from perfmodel.topology.templates.build import build_topology, check

TABLE = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tPIX\t0-31\t0
GPU1\tNV12\t X \tSYS\t32-63\t1
NIC0\tPIX\tSYS\t X \t\t
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "topo.txt"
    path.write_text(TABLE)
    return path


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["topology", *map(str, words)])


def test_written_and_usable(table: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.yaml"
    result = run("import", table, "--gpu", "A100-SXM4-80GB", "-o", output)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "assumed: NICs of 200 Gbit/s infiniband" in result.stderr
    assert f"wrote {output}" in result.stderr
    assert check(str(output)) == ()
    topology = build_topology(str(output), hosts=2, fabric="one-switch")
    assert len(topology.ranks) == 4
    assert any(text.startswith("infiniband bandwidth: assumption") for text in topology.assumptions)
    command = CliRunner().invoke(app, ["collective", str(output), "-b", "1 MiB", "-e", "1 MiB"])
    assert command.exit_code == 0, command.output


@pytest.mark.slow
def test_a_scenario_runs_on_an_imported_host_and_fabric(table: Path, tmp_path: Path) -> None:
    fabric = tmp_path / "ib.txt"
    fabric.write_text(
        'Switch 4 "S-aa" # "leaf"\n[1] "H-01"[1](1) # "a mlx5_0" lid 1 4xHDR\n'
        '[2] "H-02"[1](2) # "b mlx5_0" lid 2 4xHDR\n'
        'Ca 1 "H-01" # "a mlx5_0"\n[1](1) "S-aa"[1] # lid 1 lmc 0 "leaf" lid 3 4xHDR\n'
        'Ca 1 "H-02" # "b mlx5_0"\n[1](2) "S-aa"[2] # lid 2 lmc 0 "leaf" lid 3 4xHDR\n'
    )
    host, network = tmp_path / "host.yaml", tmp_path / "network.yaml"
    assert run("import", table, "--gpu", "A100-SXM4-80GB", "-o", host).exit_code == 0
    assert run("import", fabric, "-o", network).exit_code == 0
    scenario = tmp_path / "how-long.yaml"
    scenario.write_text(
        "# How long?\nperfmodel: 1\nmodel: {name: resnet18}\ncompute: {precision: fp16}\n"
        "cluster: {node: host.yaml, nodes: 2, fabric: network.yaml}\ntraining: {batch_per_gpu: 8}\n"
    )
    result = CliRunner().invoke(app, ["run", str(scenario)])
    assert result.exit_code == 0, result.output
    assert "4 GPUs train" in result.stdout
    scenario.write_text(
        scenario.read_text().replace("network.yaml}", "{kind: network.yaml, radix: 8}}")
    )
    result = CliRunner().invoke(app, ["run", str(scenario)])
    assert result.exit_code == 2
    assert "a file alone" in result.stderr


def test_printed_where_no_file_is_named(table: Path) -> None:
    result = run("import", table, "--gpu", "A100-SXM4-80GB")
    assert result.exit_code == 0
    assert result.stdout.startswith("# Imported from topo.txt, nvidia-smi topo -m.\n# Assumed: ")


def test_a_file_that_exists_is_kept_unless_forced(table: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.yaml"
    output.write_text("precious")
    result = run("import", table, "--gpu", "A100", "-o", output)
    assert result.exit_code == 2
    assert "which exists" in result.stderr
    assert "--force" in result.stderr
    assert output.read_text() == "precious"
    assert run("import", table, "--gpu", "A100", "-o", output, "--force").exit_code == 0
    assert output.read_text() != "precious"
    assert list(tmp_path.glob(".mine*")) == [], "nothing half-written stays behind"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--gpu", "gtx 970"], "--gpu"),
        (["--template", "dgx-z"], "--template"),
        (["--gpu", "A100", "--graph", "nothing.xml"], "nothing.xml"),
        ([], "--gpu NAME"),
        (["--gpu", "A100", "-o", "/proc/mine.yaml"], "-o"),
    ],
)
def test_faults_name_the_flag(table: Path, more: list[str], said: str) -> None:
    result = run("import", table, *more)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output
