"""Memory for traces: ``pytest -m benchmarks``. 1 GB, and hostile files, in a process each."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from perfmodel.traces.chakra_nodes import (
    COMPUTE,
    MOST_NODES,
    TraceNode,
    encode_trace,
)
from tests.traces.kineto.made_trace import MadeTrace

pytestmark = pytest.mark.benchmarks

READ = """
import re, sys
from pathlib import Path
from perfmodel.errors import InputError
from perfmodel.traces.kineto.rank_trace import read_rank
try:
    print(len(read_rank(Path(sys.argv[1])).steps))
except InputError as error:
    print(str(error)[:200])
# ru_maxrss would count the process that started this one, too.
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
"""


def read(path: Path, code: str = READ) -> tuple[str, float]:
    """What reading gives, and the most memory that it takes, in MiB."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    answer, memory = done.stdout.strip().rsplit("\n", 1)
    return answer, float(memory)


def test_a_gigabyte_within_two(tmp_path: Path) -> None:
    """One step with many layers, repeated with later times; events padded as stacks would."""
    made = MadeTrace(layers=(40.0, 30.0, 30.0, 50.0) * 25, buckets=(19, 39, 59, 79, 99), steps=1)
    document = made.document()
    events = document.pop("traceEvents")
    for event in events:
        event["args"]["Call stack"] = "train.py(10): step;" * 12
    length = made.host - 1e6 + 20_000
    path, written, step = tmp_path / "large.json", 0, 0
    with path.open("w") as file:
        file.write(json.dumps(document)[:-1] + ', "traceEvents": [\n')
        while written < 1e9:
            later = [
                event
                | {
                    "ts": event["ts"] + step * length,
                    "name": event["name"].replace("Step#0", f"Step#{step}"),
                    "args": _later(event["args"], step),
                }
                for event in events
            ]
            text = ",\n".join(map(json.dumps, later))
            written += file.write(text if step == 0 else f",\n{text}")
            step += 1
        file.write("\n]}\n")
    answer, memory = read(path)
    assert int(answer) == step - 1
    assert memory < 2048


def _later(arguments: dict[str, object], step: int) -> dict[str, object]:
    moved = dict(arguments)
    for key, each in (("correlation", 10_000), ("Sequence number", 1_000)):
        if key in moved:
            moved[key] = int(str(moved[key])) + step * each
    return moved


def _bomb() -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [stream.compress(b'{"traceEvents": [')]
    pieces += [stream.compress(b" " * (1 << 20)) for _ in range(4096)]
    return b"".join([*pieces, stream.flush()])


@pytest.mark.parametrize("kind", ["bomb", "brackets", "lists", "text"])
def test_hostile_files_within_500_mb(tmp_path: Path, kind: str) -> None:
    content = {
        "bomb": _bomb,
        "brackets": lambda: b'{"traceEvents": [' + b"[" * (64 << 20),
        "lists": lambda: b'{"a": [' + b"[]," * (64 << 20),
        "text": lambda: b'{"traceEvents": [{"name": "' + b"a" * (256 << 20),
    }[kind]()
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    answer, memory = read(path)
    assert "trace: found" in answer
    assert memory < 500


CHAKRA = READ.replace("kineto.rank_trace import read_rank", "chakra.read_plan import read_plan")
CHAKRA = CHAKRA.replace(
    "read_rank(Path(sys.argv[1])).steps", "read_plan(Path(sys.argv[1])).plan.tasks"
)


def test_the_largest_chakra_trace_within_500_mb(tmp_path: Path) -> None:
    """As many nodes as are read, each with what converters of PyTorch's traces write."""
    with (tmp_path / "job.0.et").open("wb") as file:
        for first in range(0, MOST_NODES, 10_000):
            last = min(first + 10_000, MOST_NODES - 1)
            content = encode_trace(map(_long_node, range(first, last)))
            file.write(content if first == 0 else content[1 + content[0] :])  # metadata once
    answer, memory = read(tmp_path, CHAKRA)
    assert int(answer) == MOST_NODES - 1
    assert memory < 500


def _long_node(number: int) -> TraceNode:
    before = range(max(0, number - 4), number)
    attributes = {
        "is_cpu_op": number % 2 == 0,
        "num_ops": 10**6 + number,
        "tensor_size": 4096 + number,
        "op_schema": f"aten::x(Tensor a) -> Tensor {number}",
        "cpu_tid": 7,
    }
    name = f"aten::an_operator_with_a_long_name_{number}"
    return TraceNode(number, name, COMPUTE, tuple(before), tuple(before[-2:]), 5, attributes)
