"""Lines of NCCL's Inspector."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import build_app
from perfmodel.errors import InputError
from perfmodel.traces.inspector import is_inspector, read_inspector


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
