"""PyTorch's execution traces: real ones of two processes, NCCL's collectives, damaged files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.scenario import load_scenario
from perfmodel.traces.execution_trace import is_execution_trace, read_execution_trace
from perfmodel.traces.rebuild.executed_model import read_executed_model
from perfmodel.traces.rebuild.executed_scenario import draft_scenario
from perfmodel.traces.run import read_ranks
from perfmodel.workload import load_workload
from tests.forked_ranks import run_ranks


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="the traces are made by PyTorch")
    folder = tmp_path_factory.mktemp("executed")
    run_ranks("tests.traces.executed_training", "train", 2, folder)
    return folder


@pytest.mark.timeout(300)
def test_collectives_of_a_real_step(recorded: Path) -> None:
    """The one bucket has the elements of all parameters."""
    from tests.traces.executed_training import make_module

    parameters = sum(each.numel() for each in make_module().parameters())
    for rank in range(2):
        trace = read_execution_trace(recorded / f"et{rank}.json")
        assert [(c.op, c.elements, c.dtype, c.nbytes) for c in trace.collectives] == [
            ("all_reduce", parameters, "fp32", 4 * parameters)
        ]
        assert trace.dtype == "fp32"


@pytest.mark.timeout(300)
def test_traces_of_both_kinds_in_a_folder(recorded: Path) -> None:
    """The step is that of the profiler's traces."""
    assert [trace.rank for trace in read_ranks([recorded])] == [0, 1]
    names = [str(recorded / f"{kind}{rank}.json") for rank in (0, 1) for kind in ("et", "kineto")]
    run = CliRunner().invoke(app, ["trace", *names, "--json"])
    assert [Path(each["file"]).name for each in json.loads(run.output)["traces"]] == [
        "kineto0.json",
        "kineto1.json",
    ]


def test_a_trace_without_times_needs_a_machine_and_a_folder(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["trace", str(written(tmp_path, document(NCCL))), "--gpu", "x"])
    assert run.exit_code == 2
    said = " ".join(run.output.split())
    assert "--gpu: found a value; allowed: nothing with execution traces" in said
    assert "-o: found nothing; allowed: the folder of a drafted scenario" in said
    assert "--topology: found nothing" in said


@pytest.mark.timeout(300)
def test_a_sharded_step_is_drafted_with_its_units(recorded: Path, tmp_path: Path) -> None:
    """FSDP gathers units into the same memory; the tied weight is one parameter of the root."""
    from tests.traces.executed_training import BATCH, Blocks

    path = recorded / "sharded0.json"
    trace, model = read_execution_trace(path), read_executed_model(path)
    module = Blocks()
    assert sorted(tuple(each["shape"]) for each in model.parameters) == sorted(
        tuple(each.shape) for each in module.parameters()
    )
    assert (model.batch, model.passes, model.unread) == (BATCH, 2, 0)
    scenario = load_scenario(draft_scenario(trace, model, {"node": "dgx-a100"}).write(tmp_path))
    assert scenario.compute.precision == "bf16"
    assert scenario.strategy.model_dump(exclude_defaults=True) == {
        "kind": "fsdp",
        "wrap": ("blocks.*",),
        "clip_norm": True,
        "accumulate": 2,
        "param_dtype": "bf16",
        "reduce_dtype": "bf16",
    }
    sizes = {"blocks.0": 0, "blocks.1": 0, "": 0}
    for tensor in load_workload(str(tmp_path / "model.yaml")).tensors:
        sizes[next(unit for unit in sizes if tensor.name.startswith(unit))] += tensor.numel
        assert tensor.dtype == "fp32"
    reduced = [each.elements for each in trace.collectives if each.op == "reduce_scatter"]
    assert reduced == 2 * [sizes["blocks.1"], sizes["blocks.0"], sizes[""]]
    gathered = [each.elements for each in trace.collectives if each.op == "all_gather"]
    assert gathered[:3] == [sizes[""] // 2, sizes["blocks.0"] // 2, sizes["blocks.1"] // 2]


def node(name: str, shapes: list[Any], number: int = 1, **attributes: Any) -> dict[str, Any]:
    sides = {"values": [], "shapes": shapes, "types": ["Tensor(c10::BFloat16)"] * len(shapes)}
    rows = [
        {"name": key, "type": "string", "value": value}
        for key, value in {"rf_id": number, **attributes}.items()
    ]
    return {
        "id": number,
        "name": name,
        "ctrl_deps": 1,
        "inputs": sides,
        "outputs": {**sides, "shapes": [[4, 6]]},
        "attrs": rows,
    }


def document(*nodes: dict[str, Any], schema: str = "1.1.1-chakra.0.0.4") -> dict[str, Any]:
    return {"schema": schema, "pid": 7, "time": "", "start_ts": 1, "nodes": list(nodes)}


def written(folder: Path, content: object) -> Path:
    path = folder / "et.json"
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(text)
    return path


NCCL = node(
    "record_param_comms",
    [[1 << 20]],
    9,
    collective_name="_reduce_scatter_base",
    in_msg_nelems=1 << 20,
    out_msg_nelems=1 << 17,
    dtype="BFloat16",
    pg_name="3",
    pg_size=8,
)


def test_collectives_of_nccl_have_their_group_and_count_once(tmp_path: Path) -> None:
    """The operator around a call is not another one."""
    outer = node("c10d::_reduce_scatter_base_", [[1 << 20], [1 << 17]], 8)
    trace = read_execution_trace(written(tmp_path, document(outer, NCCL)))
    (collective,) = trace.collectives
    assert (collective.op, collective.ranks, collective.group) == ("reduce_scatter", 8, "3")
    assert (collective.dtype, collective.nbytes) == ("bf16", 2 << 20)


def test_most_operations_state_the_precision(tmp_path: Path) -> None:
    """Of 2 x 4 x 5 x 6 operations each; the layer around one counts nothing."""
    wide = node("aten::mm", [[4, 5], [5, 6]])
    wide["inputs"] = {**wide["inputs"], "types": ["Tensor(float)"] * 2}
    products = [wide, wide, node("aten::linear", [[4, 5], [6, 5]])]
    assert read_execution_trace(written(tmp_path, document(*products))).dtype == "fp32"
    products += [node("aten::addmm", [[6], [4, 5], [5, 6]])] * 3
    assert read_execution_trace(written(tmp_path, document(*products))).dtype == "bf16"


WHOLE = json.dumps(document(*[node("aten::mm", [[4, 5], [5, 6]], n) for n in range(300)])).encode()
DAMAGES: dict[str, Callable[[], object]] = {
    "of no nodes": document,
    "schema '1.0.1'": lambda: document(NCCL, schema="1.0.1"),
    "without a name": lambda: document({"id": 1}),
    "no object": lambda: {**document(), "nodes": [1]},
    "cut off": lambda: WHOLE[: len(WHOLE) // 2],
    "nested too deep": lambda: b'{"schema": "1.1", "nodes": [' + b"[" * 200_000,
    "gzip data that end too early": lambda: gzip.compress(WHOLE)[:-20],
    "gzip that grows": lambda: gzip.compress(b'{"schema": "1.1", "nodes": [' + b" " * (80 << 20)),
    "number too long": lambda: b'{"schema": "1.1", "nodes": [{"id": ' + b"1" * 9000 + b"}]}",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", DAMAGES)
def test_damaged_and_foreign_files_are_refused(words: str, tmp_path: Path) -> None:
    path = written(tmp_path, DAMAGES[words]())
    drafted = ["-o", str(tmp_path / "draft"), "--topology", "dgx-a100"]
    run = CliRunner().invoke(app, ["trace", str(path), *drafted])
    assert run.exit_code == 2
    assert words.removeprefix("of ") in " ".join(run.output.split())


@pytest.mark.parametrize(
    "odd",
    [
        {"name": "aten::mm", "inputs": 3, "attrs": 4},
        {"name": "aten::mm", "inputs": {"shapes": [[4, "x"], [True, 2], [[]], None]}},
        {"name": "aten::mm", "inputs": {"shapes": [[4, 5], [5, 6]], "types": [1, None]}},
        {"name": "record_param_comms", "attrs": [{"name": "collective_name", "value": "x"}]},
        {"name": "record_param_comms", "attrs": [{"name": 3}, 5]},
        {"name": "c10d::allreduce_", "inputs": {"shapes": [[[-1, 3]]]}},
    ],
)
def test_odd_nodes_are_no_tracebacks(odd: dict[str, Any], tmp_path: Path) -> None:
    trace = read_execution_trace(written(tmp_path, document(odd)))
    assert {each.op for each in trace.collectives} <= {"x", "all_reduce"}


def test_other_files_are_not_taken_for_one(tmp_path: Path) -> None:
    assert is_execution_trace(written(tmp_path, document(NCCL)))
    assert is_execution_trace(written(tmp_path, gzip.compress(WHOLE)))
    for other in ({"traceEvents": []}, b"", b"\x1f\x8b", b"# text"):
        assert not is_execution_trace(written(tmp_path, other))
