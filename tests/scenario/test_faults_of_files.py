"""A fault names the field and the file in which it is, and shows nothing of another file."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario

TEXT = """\
# How long is a step?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16}
cluster: {node: dgx-a100, nodes: 2, fabric: one-switch}
training: {batch_per_gpu: 8}
"""
JOB = "gpu: 8}}\njobs: [{{model: resnet18, batch_per_gpu: 8, nodes: {nodes}}}]\n"
SECRET = "root:x:0:0:secret:/root:/bin/sh\n"


def refusal(text: str, path: Path, overrides: tuple[str, ...] = ()) -> InputError:
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        run_scenario(load_scenario(path, overrides))
    return refused.value


@pytest.mark.parametrize(
    ("changes", "field", "line"),
    [
        (("nodes: 2,", "nodes: 2, pool: 190000,"), "cluster.pool", 5),
        (("nodes: 2,", "nodes: 2, pool: 1,"), "cluster.pool", 5),
        (("gpu: 8}\n", JOB.format(nodes=190000)), "jobs.0.nodes", 7),
        (("gpu: 8}\n", JOB.format(nodes=0)), "jobs.0.nodes", 7),
        (("nodes: 2,", "nodes: 190000,"), "cluster.nodes", 5),
    ],
)
def test_too_many_nodes_are_the_fault_of_the_field_that_asks_for_them(
    tmp_path: Path, changes: tuple[str, str], field: str, line: int
) -> None:
    (fault,) = refusal(TEXT.replace(*changes), tmp_path / "s.yaml").faults
    assert (fault.field, fault.file, fault.line) == (field, str(tmp_path / "s.yaml"), line)


@pytest.mark.parametrize("value", ["1e300", "nan", "-1", "x", "36000 d"])
@pytest.mark.parametrize("column", ["forward_s", "backward_s", "forward", "backward"])
def test_a_time_is_the_fault_of_its_column(tmp_path: Path, value: str, column: str) -> None:
    columns = [name for name in ("forward_s", "backward_s") if name not in {column, f"{column}_s"}]
    (tmp_path / "times.csv").write_text(f"name,{column},{columns[0]}\nconv1,{value},1\n")
    text = TEXT.replace("fp16}", "fp16, source: file, times: times.csv}")
    (fault,) = refusal(text, tmp_path / "s.yaml").faults
    assert (fault.field, fault.file, fault.line) == (column, str(tmp_path / "times.csv"), 2)


@pytest.mark.parametrize(
    "override",
    [
        "cluster.node={}",
        "cluster.fabric={}",
        "cluster.fabric={{kind: {}}}",
        "profile={}",
        "compute={{precision: fp16, source: file, times: {}}}",
        "model={{file: {}}}",
    ],
)
def test_a_file_that_is_named_as_another_kind_is_not_shown(tmp_path: Path, override: str) -> None:
    """A scenario of a stranger may name any file of the one who runs it."""
    for name in ("passwd", "passwd.yaml"):
        (tmp_path / name).write_text(SECRET)
        path = str(tmp_path / name)
        error = refusal(TEXT, tmp_path / "s.yaml", (override.format(path),))
        assert "secret" not in str(error)
        assert path[:40] in str(error)  # a long one is cut


def test_a_scenario_that_is_another_file_is_not_shown(tmp_path: Path) -> None:
    for text in (SECRET, f"- {SECRET}", "5"):
        error = refusal(text, tmp_path / "passwd")
        assert "secret" not in str(error)
        assert "only; allowed: the fields of a scenario" in str(error)
