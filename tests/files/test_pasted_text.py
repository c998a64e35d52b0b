"""Text as people paste it: encodings, marks of pages, and what launchers put before lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.files.pasted_text import (
    clean_characters,
    clean_lines,
    read_pasted_text,
    unwrapped,
    wrapped_width,
)

LINE = "#  Rank  0 Group  0 Pid 7 on h0 device  0 [0000:0f:00] NVIDIA A100-SXM4-40GB"
ROW = "     1048576        262144     float     sum      -1    30.10   34.84   34.84      0"

PREFIXES = [
    "[1,0]<stdout>:",
    "[1,0]<stdout>: ",
    "[1,mpirank:0,algo-1]<stdout>:",
    "2024/05/06 07:08:09 ",
    "[prterun-n1-7@1,3]<stdout>: ",
    "2024-05-06T07:08:09.123456Z ",
    "[2024-05-06 07:08:09] ",
    "07:08:09.12 ",
    "Nov 22 10:00:00 node1 slurmstepd[123]: ",
    "<13>Nov  2 10:00:00 node1 app: ",
    "2024-11-22T10:00:00+00:00 node1 nccl[123]: ",
    "I0506 10:10:10.123456 12345 file.cc:12] ",
    "INFO:root:",
    "0: ",
    "[0] ",
    "[rank0]: ",
    "[default3]:",
    "worker-0  | ",
    "nccl-1 | ",
    "(RayTrainWorker pid=1193, ip=10.244.4.193) ",
    "(pid=7) ",
    "[pod/nccl-test/launcher] ",
    "[nccl-worker-0 nccl] ",
    "> ",
    "> > ",
    "\x1b[36m",
    "\u00a0\u00a0",
    "1|bash run| ",
    "2024-05-06T07:08:09Z [1,0]<stdout>:",
    "2025-11-02T10:11:12.1234Z stdout F ",
    "[pod/a/b] 2024-05-06T07:08:09Z [rank0]: ",
    "Nov 23 2026 12:01:07.123 ",
    "[23/Nov/2026:12:01:07 +0000] ",
    "23.11.2026 12:01:07 ",
    "11/23/2026, 1:01:07 PM ",
    "12:01:07 PM ",
    "1732363200.123 ",
    "+12.034s ",
    "[   12.034567] ",
    "logs/run.log:17:",
    "{code:java}",
    "{noformat}",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("line", [LINE, ROW])
def test_what_stands_before_a_line_goes(prefix: str, line: str) -> None:
    (cleaned,) = clean_lines(clean_characters(prefix + line))
    assert cleaned.split() == line.split()


@pytest.mark.parametrize(
    "line",
    [
        'Switch\t40 "S-0001"\t\t# "leaf0" base port 0 lid 1 lmc 0',
        '[1]\t"H-000a"[1](a) \t\t# "host0 mlx5_0" lid 2 4xHDR',
        '[1](a) \t"S-0001"[1]\t\t# lid 2 lmc 0 "leaf0" lid 1 4xHDR',
        "GPU0\t X \tNV12\tPXB\t0-31\t0",
        "  NIC0: mlx5_0",
        "Device: 0, NVIDIA A100, pciBusID: 7",
        "     0 802.93  26.33",
        "1610612736  402653184  float  sum",
        "1 802.93",
        "h0:12:13 [0] NCCL INFO Channel 00/02 : 0 1",
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)",
        "SUM host_to_device_memcpy_ce 51.84",
        "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]",
    ],
)
def test_lines_of_tools_stay_as_they_are(line: str) -> None:
    assert clean_lines(line)[0].split() == line.split()


def test_tags_inside_of_a_row_go() -> None:
    torn = "[1,0]<stdout>: 8 2 float sum -1[1,0]<stdout>:    9.1 0.00 0.00 0[1,0]<stdout>: 9.2 0.00"
    assert clean_lines(torn)[0].split() == [
        *["8", "2", "float", "sum", "-1"],
        *["9.1", "0.00", "0.00", "0", "9.2", "0.00"],
    ]
    patched = (
        "TimeTest(), common.cu:610,  64 4 float none -1BenchTime(), common.cu:561,  477.8 0.00"
    )
    assert clean_lines(patched)[0].split() == ["64", "4", "float", "none", "-1", "477.8", "0.00"]


def test_a_prefix_that_no_pattern_knows_goes_where_nearly_all_lines_have_it() -> None:
    for prefix in ("node-17: ", "launcher-x7f nccl ", "team@box> "):
        lines = clean_lines("".join(f"{prefix}{n}.5  {n}  word{n}\n" for n in range(8)))
        assert [line.split() for line in lines[:8]] == [
            [f"{n}.5", str(n), f"word{n}"] for n in range(8)
        ]
    some = [f"node-17: {n}" if n % 4 else f"row {n}" for n in range(8)]
    assert clean_lines("\n".join(some)) == some, "three lines in four have it"
    table = "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \nNIC0\tSYS\tPIX\nNIC1\tSYS\tPIX\n"
    cells = [line.split() for line in clean_lines(table)]
    assert cells == [line.split() for line in table.split("\n")], "names of devices are no prefix"


def test_marks_of_pages_and_containers_go() -> None:
    page = (
        "```console\n| GPU0 | X | SYS |\n|---|---|---|\n&lt;b&gt;&nbsp;1 &amp; 2\n<pre>x</pre>\n```"
    )
    assert [line.split() for line in clean_lines(clean_characters(page))] == [
        [],
        ["GPU0", "X", "SYS"],
        [],
        ["1", "&", "2"],
        ["x"],
        [],
    ]
    docker = "".join(f'{{"log":"row{n} x\\n","stream":"stdout"}}\n' for n in range(4))
    assert clean_lines(docker)[:4] == [f"row{n} x" for n in range(4)]


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"]
)
def test_any_usual_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(f"{LINE}\r\n12 \u00b5s\u00a0x\r\n".encode(encoding))
    text = clean_characters(read_pasted_text(path)).lstrip("\ufeff")
    assert text == f"{LINE}\n12 \u00b5s x\n"


@pytest.mark.parametrize("before", ["{n:6}\t", "{n}: ", "{n}) ", "+", "- ", "* ", "| "])
def test_numbers_of_lines_and_marks_before_all_of_them_go(before: str) -> None:
    text = "\n".join(before.format(n=n) + ROW for n in range(1, 8))
    assert [line.split() for line in clean_lines(text)] == [ROW.split()] * 7


def test_numbers_that_do_not_count_lines_stay() -> None:
    """Sizes of a sweep, and rows of a matrix below the numbers of its columns."""
    for firsts in (("8", "16", "32", "64", "128"), ("0", "0", "1", "2", "3")):
        lines = [f"{first} 2.5 3.5" for first in firsts]
        assert clean_lines("\n".join(lines)) == lines


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"a\x00b\x00\x00\x00c" * 9, "binary"),
        (b"\xff\xfe\xff", "not text"),
        (b"\x89PNG\r\n", "picture"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "given"
    path.write_bytes(data)
    with pytest.raises(InputError, match=reason):
        read_pasted_text(path)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("ab ", max_size=90), max_size=30), st.integers(1, 40))
def test_what_a_terminal_wraps_is_put_together_again(lines: list[str], width: int) -> None:
    """But for lines that fill the last of their rows, behind which nothing ends them."""
    lines = [line + "x" * (len(line) % width == 0) for line in lines]
    wrapped = "\n".join(
        "\n".join(line[at : at + width] for at in range(0, len(line), width)) for line in lines
    )
    joined = unwrapped(wrapped, width) if width > 1 else wrapped
    assert joined.count("\n") == wrapped.count("\n")
    if width > 1:
        assert [line for line in joined.split("\n") if line] == lines


@pytest.mark.parametrize(("width", "seen"), [(19, 0), (20, 20), (120, 120), (121, 0)])
def test_a_width_is_seen_where_a_fifth_of_the_lines_fill_it(width: int, seen: int) -> None:
    full, short = "x" * width, "y" * 9
    assert wrapped_width("\n".join([full] * 4 + [short] * 16)) == seen
    assert wrapped_width("\n".join([full] * 4 + [short] * 17)) == 0
    assert wrapped_width("\n".join([full] * 3)) == 0


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_lines_keep_their_number(text: str) -> None:
    assert len(clean_lines(text)) == text.count("\n") + 1


def test_numbers_that_no_tool_prints_are_refused(tmp_path: Path) -> None:
    """Python reads no more than 4,300 digits, and says so in words of its own."""
    path = tmp_path / "a.log"
    path.write_text(f"{LINE}\n{ROW}".replace("1048576", 5000 * "9"))
    with pytest.raises(InputError, match=r"a\.log:2: .*1,000 digits"):
        read_pasted_text(path)
    path.write_text(f"{LINE}\n{ROW} {999 * '9'}")
    assert read_pasted_text(path).endswith("9")
