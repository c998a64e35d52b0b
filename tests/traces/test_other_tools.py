"""The made trace as Nsight Systems exports it, and lines of NCCL's Inspector."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import build_app
from perfmodel.errors import InputError
from perfmodel.traces.inspector import is_inspector, read_inspector
from perfmodel.traces.run import analyse_traces
from tests.traces.kineto.made_trace import WIDTH, MadeTrace

TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, streamId, correlationId, shortName, gridX, blockX",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, streamId, correlationId, bytes",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, globalTid, correlationId",
    "NVTX_EVENTS": "start, end, text, textId, eventType, globalTid",
    "StringIds": "id, value",
    "TARGET_INFO_GPU": "name, totalMemory",
}


def export(made: MadeTrace, path: Path) -> Path:
    """Write the trace with the tables of Nsight Systems; times in nanoseconds."""
    events = made.document()["traceEvents"]
    names: dict[str, int] = {}
    with closing(sqlite3.connect(path)) as database:
        for table, columns in TABLES.items():
            database.execute(f"CREATE TABLE {table} ({columns})")
        for event in events:
            start = round(event["ts"] * 1000)
            times = (start, start + round(event["dur"] * 1000))
            _insert(database, event, times, names)
        for name, number in names.items():
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (number, name))
        gpu = ("NVIDIA A100-SXM4-40GB", 42297524224)
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (?, ?)", gpu)
        database.commit()
    return path


def _insert(
    database: sqlite3.Connection,
    event: dict[str, Any],
    times: tuple[int, int],
    names: dict[str, int],
) -> None:
    args, name, thread = event["args"], event["name"], event["tid"]
    if event["cat"] == "kernel":
        number = names.setdefault(name, len(names))
        grid = (args.get("grid", [1])[0], args.get("block", [1])[0])
        row: tuple[Any, ...] = (*times, thread, args["correlation"], number, *grid)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?)", row)
    elif event["cat"] == "gpu_memcpy":
        row = (*times, thread, args["correlation"], args["bytes"])
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?)", row)
    elif event["cat"] == "cuda_runtime":
        row = (*times, thread, args["correlation"])
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?)", row)
    else:
        text = name
        if "Sequence number" in args:
            text += f", seq = {args['Sequence number']}, op_id = 7"
        if "Input Dims" in args:
            text += f", sizes = {args['Input Dims']}, input_op_ids = [(6,0)]"
        number = names.setdefault(text, len(names))
        row = (*times, None, number, 59, thread)
        database.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?)", row)


def test_nsight_says_the_same_as_the_profiler(tmp_path: Path) -> None:
    """Without shapes: sizes come from copies."""
    made = analyse_traces([MadeTrace().write(tmp_path / "rank0.json")])
    path = export(MadeTrace(shapes=False), tmp_path / "rank0.sqlite")
    exported = analyse_traces([path])
    assert exported.profile.step_s == pytest.approx(made.profile.step_s, rel=1e-6)
    assert exported.profile.backward_s == pytest.approx(made.profile.backward_s, rel=1e-3)
    sizes = [bucket.elements for bucket in exported.profile.buckets]
    assert sizes == [2 * (WIDTH * WIDTH + WIDTH)] * 2
    assert exported.comparison is not None
    assert abs(exported.comparison.error) < 0.01
    assert "counted as 2" in " ".join(exported.first.notes)


def test_databases_of_others(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE people (name)")
        database.commit()
    with pytest.raises(InputError, match="a database without CUPTI_ACTIVITY_KIND_KERNEL, NVTX"):
        analyse_traces([path])
    export(MadeTrace(), tmp_path / "node.sqlite")
    with closing(sqlite3.connect(tmp_path / "node.sqlite")) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN globalPid")
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = correlationId % 8")
        database.commit()
    with pytest.raises(InputError, match="kernels of 8 processes; allowed: an export of one rank"):
        analyse_traces([tmp_path / "node.sqlite"])
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(InputError, match="cannot be read"):
        analyse_traces([path])


def line(rank: int, serial: int, time_us: float, **changes: object) -> str:
    perf = {
        "coll": "AllReduce",
        "coll_sn": serial,
        "coll_msg_size_bytes": 1 << 30,
        "coll_exec_time_us": time_us,
        **changes,
    }
    header = {"id": "0x7f", "rank": rank, "n_ranks": 8, "nnodes": 1}
    return json.dumps({"header": header, "metadata": {}, "coll_perf": perf})


def test_inspector_splits_waiting_from_transfer(tmp_path: Path) -> None:
    """Bus bandwidth as the Inspector itself computes it, of the rank that came last."""
    files = []
    for rank, times in enumerate(((4000.0, 4100.0, 4000.0), (5000.0, 4300.0, 4400.0))):
        path = tmp_path / f"rank{rank}.log"
        path.write_text("\n".join(line(rank, n, time) for n, time in enumerate(times)) + "\n")
        files.append(path)
    assert is_inspector(files[0])
    command = ["trace", str(files[0]), "--gpu", "a100", "--set", "x=1"]
    refused = CliRunner().invoke(build_app(["trace"]), command)
    assert refused.exit_code == 2
    assert "--gpu" in refused.output
    assert "--set" in refused.output
    for names in (files, files[:1]):  # one rank's alone say nothing of waiting, here 400 µs
        printed = CliRunner().invoke(build_app(["trace"]), ["trace", *map(str, names)]).output
        assert ("µs" in printed.splitlines()[-1]) == (names == files)
    (size,) = read_inspector(files)
    assert (size.op, size.count, size.ranks, size.nbytes) == ("all_reduce", 3, 8, 1 << 30)
    assert size.transfer_s == pytest.approx(4000e-6)
    assert size.waiting_s == pytest.approx(400e-6)
    assert size.busbw_Bps == pytest.approx((1 << 30) / 4000e-6 * 2 * 7 / 8)


@pytest.mark.parametrize(
    ("op", "nbytes", "time_us", "busbw"),
    [  # of ext-profiler/inspector/README.md, 8 ranks
        ("AllReduce", 17179869184, 61974.0, 485.119099e9),
        ("ReduceScatter", 2147483648, 41057.0, 366.134533e9),
    ],
)
def test_bandwidths_are_those_that_the_inspector_prints(
    tmp_path: Path, op: str, nbytes: int, time_us: float, busbw: float
) -> None:
    """Of a reduce-scatter it records the size of one rank's part."""
    path = tmp_path / "rank0.log.gz"
    text = line(0, 1, time_us, coll=op, coll_msg_size_bytes=nbytes)
    path.write_bytes(gzip.compress(text.encode()))
    assert is_inspector(path)
    assert read_inspector([path])[0].busbw_Bps == pytest.approx(busbw, rel=1e-6)


def test_one_header_for_a_dump_of_records(tmp_path: Path) -> None:
    """Since v4.3; records of sends and of proxies say nothing of collectives."""
    whole = [json.loads(line(0, serial, 4000.0)) for serial in range(2)]
    head = {"header": whole[0]["header"], "metadata": {}, "dump_stats": {"coll_records": 2}}
    records = [{"coll_perf": each["coll_perf"]} for each in whole]
    sent = {"p2p_perf": {"p2p": "Send"}}
    path = tmp_path / "rank0.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in (head, *records, sent)))
    assert is_inspector(path)
    (size,) = read_inspector([path])
    assert (size.count, size.ranks) == (2, 8)
    path.write_text(json.dumps(sent))
    with pytest.raises(InputError, match="no collectives"):
        read_inspector([path])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(0, 1, -1.0), "coll_exec_time_us: found -1.0"),
        (line(0, 1, 1.0, coll_sn="x"), "coll_sn: found 'x'"),
        (line(0, 1, 1.0)[:-5], "2: trace: found"),
        ('{"header": {}, "coll_perf": 1}', "another object"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rank0.log"
    path.write_text(line(0, 0, 1.0) + "\n" + text + "\n")
    with pytest.raises(InputError, match=message):
        read_inspector([path])
