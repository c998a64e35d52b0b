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
from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.traces.execution_trace import is_execution_trace, read_execution_trace, with_times
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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_operations_and_collectives_of_a_real_step(recorded: Path) -> None:
    """Operations by PyTorch's counter; the one bucket has the elements of all parameters."""
    from torch.utils.flop_counter import FlopCounterMode

    from tests.traces.executed_training import make_loss, make_module

    module = make_module()
    with FlopCounterMode(display=False) as counter:
        make_loss(module).backward()
    parameters = sum(each.numel() for each in module.parameters())
    for rank in range(2):
        trace = read_execution_trace(recorded / f"et{rank}.json")
        assert trace.flops == counter.get_total_flops()
        assert [(c.op, c.elements, c.dtype, c.nbytes) for c in trace.collectives] == [
            ("all_reduce", parameters, "fp32", 4 * parameters)
        ]
        assert trace.linked == 0
        assert all(operator.time_s is None for operator in trace.operators)


@pytest.mark.timeout(300)
def test_times_come_of_the_profiler_of_the_same_process(recorded: Path) -> None:
    trace = read_execution_trace(recorded / "et0.json")
    timed = with_times(trace, recorded / "kineto0.json")
    events = json.loads((recorded / "kineto0.json").read_text())["traceEvents"]
    lengths = [event["dur"] for event in events if event.get("name") == "aten::convolution"]
    convolutions = [each for each in timed.operators if each.name == "aten::convolution"]
    assert sum(each.time_s or 0 for each in convolutions) == pytest.approx(1e-6 * sum(lengths))
    assert timed.linked > 20
    assert all(collective.time_s for collective in timed.collectives)
    with pytest.raises(InputError, match="of the process and name"):
        with_times(trace, recorded / "kineto1.json")


@pytest.mark.timeout(300)
def test_traces_of_both_kinds_in_a_folder(recorded: Path) -> None:
    """The step is that of the profiler's traces."""
    assert [trace.rank for trace in read_ranks([recorded])] == [0, 1]


@pytest.mark.timeout(300)
def test_the_command_sums_them_up(recorded: Path) -> None:
    paths = [
        str(recorded / name) for name in ("et0.json", "et1.json", "kineto0.json", "kineto1.json")
    ]
    run = CliRunner().invoke(app, ["trace", *paths])
    assert run.exit_code == 0, run.output
    assert "aten::convolution" in run.output
    assert "all-reduce" in run.output
    run = CliRunner().invoke(app, ["trace", *paths[:2], "--json"])
    (first, _) = json.loads(run.output)["traces"]
    assert first["collectives"][0]["nbytes"] == 4 * first["collectives"][0]["elements"]
    run = CliRunner().invoke(app, ["trace", *paths[:3]])
    assert run.exit_code == 2
    assert "2 execution traces and 1 of the profiler" in " ".join(run.output.split())


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


def test_products_are_counted_by_their_shapes(tmp_path: Path) -> None:
    products = [
        node("aten::mm", [[4, 5], [5, 6]]),
        node("aten::addmm", [[6], [4, 5], [5, 6]]),
        node("aten::linear", [[4, 5], [6, 5]]),
    ]
    trace = read_execution_trace(written(tmp_path, document(*products, products[0])))
    assert trace.flops == 3 * 2 * 4 * 5 * 6
    assert [operator.calls for operator in trace.operators] == [2, 1, 1]
    assert trace.operators[0].dtype == "bf16"


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
    run = CliRunner().invoke(app, ["trace", str(path)])
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
    assert trace.nodes == 1


def test_other_files_are_not_taken_for_one(tmp_path: Path) -> None:
    assert is_execution_trace(written(tmp_path, document(NCCL)))
    assert is_execution_trace(written(tmp_path, gzip.compress(WHOLE)))
    for other in ({"traceEvents": []}, b"", b"\x1f\x8b", b"# text"):
        assert not is_execution_trace(written(tmp_path, other))
