"""What people paste, made here: read as what was printed, or refused in words that name the cause.

Each damage is done to a table of nccl-tests, matrices of bandwidths, and a matrix of paths.
"""

from __future__ import annotations

import html
import json
import quopri
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfmodel.calibrate.readers import read_files
from perfmodel.errors import InputError
from perfmodel.topology.importers import import_file
from tests.calibrate.readers.test_bandwidth_matrices import NVBANDWIDTH, P2P
from tests.calibrate.readers.test_nccl_text import EIGHT, NEW, UNITS, ranks, row

SIZES = [1 << power for power in range(20, 31, 2)]
LOG = ranks(8) + NEW + UNITS + "".join(row(size, 20 + size / 2e5, EIGHT) for size in SIZES)
PATHS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPIX\tSYS\tSYS\tPXB\tSYS\t0-31,64-95\t0\t\tN/A
GPU1\tPIX\t X \tSYS\tSYS\tPXB\tSYS\t0-31,64-95\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tPHB\tSYS\tPIX\t32-63,96-127\t1\t\tN/A
GPU3\tSYS\tSYS\tPHB\t X \tSYS\tPHB\t32-63,96-127\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS\t\t\t
NIC1\tSYS\tSYS\tPIX\tPHB\tSYS\t X \t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
PASTES = {"table": LOG, "p2p": P2P, "nvbandwidth": NVBANDWIDTH, "paths": PATHS}

PRINTED = (
    "[1, 2, 3]",
    "[[0.0, 12.1], [12.0, 0.0]]",
    "{'a': 1}",
    "[{'size': 1024, 'time': 12.3}, {'size': 2048, 'time': 13.1}]",
    "tensor([[ 0.0000, 12.1000],\n        [12.0000,  0.0000]], device='cuda:0')",
    "array([[0., 1.],\n       [1., 0.]])",
)


@pytest.mark.parametrize("text", PRINTED)
def test_what_python_printed_is_refused_as_that(text: str, tmp_path: Path) -> None:
    for kind in ("table", "paths"):
        with pytest.raises(InputError, match="what Python prints of a list, dict"):
            told(f"{text}\n", kind, tmp_path)


Damage = Callable[[str], str]


def told(text: str, kind: str, folder: Path) -> Any:
    """What is read of a paste."""
    path = folder / "paste.txt"
    path.write_bytes(text.encode())
    if kind == "paths":
        return import_file(path, gpu="T4").document
    (content,) = read_files([path])
    rows = [(s.op, s.ranks, s.nodes, s.in_place, s.rows, s.devices) for s in content.sweeps]
    return rows, [(matrix.test, matrix.values, matrix.devices) for matrix in content.matrices]


def before(start: str, end: str = "") -> Damage:
    return lambda text: "\n".join(f"{start}{line}{end}" for line in text.split("\n"))


def numbered(form: str) -> Damage:
    return lambda text: "\n".join(
        form.format(at, each) for at, each in enumerate(text.split("\n"), 1)
    )


def around(start: str, end: str = "") -> Damage:
    return lambda text: f"{start}\n{text}\n{end}\n"


def spaced(space: str) -> Damage:
    return lambda text: re.sub(r"[ \t]+", space, text)


def between(line: str, every: int) -> Damage:
    def damage(text: str) -> str:
        lines = enumerate(text.split("\n"), 1)
        return "\n".join(f"{each}\n{line}" if at % every == 0 else each for at, each in lines)

    return damage


def cells_in(start: str, joint: str, end: str) -> Damage:
    return lambda text: "\n".join(
        f"{start}{joint.join(line.split())}{end}" if line.strip() else line
        for line in text.split("\n")
    )


def as_record(line: str) -> str:
    return json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "2026-05-06T07:08:09Z"})


PREFIXES = [
    *("[1,0]<stdout>:", "[1,0]<stdout>: ", "[prterun-n1-12@1,0]<stdout>: "),
    *("rank0: ", "[rank0]: ", "0: ", "[0] ", "node-17: ", "[node01:0] ", "    ok: "),
    "2026-05-06T07:08:09.123456789Z ",
    "2026-05-06T07:08:09.123456789Z stdout F ",
    "2026-05-06T07:08:09+0200 node01 nccl[1234]: ",
    *("nccl-test-1  | ", "[pod/nccl-launcher-x7k2/nccl] ", "nccl-launcher-x7k2 nccl "),
    "nccl-launcher-x7k2 \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} nccl ",
    "May 06 07:08:09 node01 nccl[1234]: ",
    "<13>1 2026-05-06T07:08:09.123Z node01 nccl 1234 - - ",
    *("[12:34:56] ", "12:34:56.789 ", "07:08:09 AM ", "2026-05-06 07:08:09,123 - "),
    *("2026-05-06 07:08:09,123 INFO ", "2026-05-06 07:08:09,123 [INFO] "),
    "2026-05-06 07:08:09.123 | INFO     | __main__:run:42 - ",
    *(
        "INFO:root:",
        "INFO - ",
        "(Worker pid=1234) ",
        "\x1b[36m(Worker pid=1234, ip=10.0.0.1)\x1b[0m ",
    ),
    *("> ", ">> ", "> > ", ">", "&gt; ", "| ", "- ", "* ", "+ ", "    "),
    *("# ", "// ", "-- ", "; "),
]
INFO = "n1:42:50 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo 1 proto 2 time 74.12"
DAMAGES: dict[str, Damage] = {
    **{f"before: {prefix!r}": before(prefix) for prefix in PREFIXES},
    "a prompt": around("user@n1:~$ ./all_reduce_perf -b 8 -e 8G -g 8", "user@n1:~$ "),
    "a prompt in brackets": around("[root@n1 ~]# ./run.sh -g 8", "[root@n1 ~]# "),
    "a link first": around("[our results](https://example.org)\n"),
    "a list of tasks first": around("[ ] driver 535\n[x] NCCL 2.19\n"),
    "braces first": around("[{see below}]\n"),
    "empty brackets first": around("[]\n"),
    "quoted words in brackets first": around('["our results"]\n'),
    "a wiki's link first": around("[[NCCL]]\n"),
    "Jira": around("{code}", "{code}"),
    "a page": around("# Results\n\nOn 2 nodes we got:\n", "\nAs you see, 5 of 8 runs are slow."),
    "a fence": around("```text", "```"),
    "a fence of tildes": around("~~~", "~~~"),
    "backticks": before("`", "`"),
    "srun": around("srun: job 12 queued and waiting for resources"),
    "script": around('Script started on 2026-05-06 07:08:09 [TERM="xterm"]', "Script done"),
    "more": around("", "--More--(45%)"),
    "time": around("", "real 12.34\nuser 1.2\nsys 0.1"),
    "coloured lines": before("\x1b[32m", "\x1b[0m"),
    "coloured words": lambda text: re.sub(r"(\S+)", "\x1b[1m\\1\x1b[0m", text),
    "colours without their escape": before("[32m", "[0m"),
    "cat -n": numbered("{:6d}\t{}"),
    "numbers": numbered("{:4d}  {}"),
    "numbers with points": numbered("{}. {}"),
    "numbers with bars": numbered("{:4d} | {}"),
    "numbers with colons": numbered("{}:{}"),
    "escaped HTML": lambda text: html.escape(before("> ")(text)),
    "pre": lambda text: f"<pre><code>{html.escape(text)}</code></pre>",
    "cells of HTML": cells_in("<tr><td>", "</td><td>", "</td></tr>"),
    "breaks of HTML": before("", "<br>"),
    "spaces that do not break": lambda text: text.replace(" ", "\N{NO-BREAK SPACE}"),
    "entities": lambda text: text.replace("  ", "&nbsp; "),
    "no width": lambda text: text.replace(" ", " \N{ZERO WIDTH SPACE}"),
    "Windows": lambda text: text.replace("\n", "\r\n"),
    "an old Mac": lambda text: text.replace("\n", "\r"),
    "separators of lines": lambda text: text.replace("\n", "\N{LINE SEPARATOR}"),
    "form feeds": lambda text: text.replace("\n", "\n\f", 2),
    "one space": spaced(" "),
    "two spaces": spaced("  "),
    "many spaces": spaced(" " * 12),
    "tabs": lambda text: re.sub(r"[ \t]{2,}", "\t", text),
    "no tabs": lambda text: text.expandtabs(8),
    "no margin": lambda text: "\n".join(line.strip() for line in text.split("\n")),
    "a wide margin": before("", " " * 30),
    "continued": before("", " \\"),
    "double spacing": lambda text: text.replace("\n", "\n\n"),
    "triple spacing": lambda text: text.replace("\n", "\n\n\n"),
    "a table of Markdown": cells_in("| ", " | ", " |"),
    "a box": before("\N{BOX DRAWINGS LIGHT VERTICAL} ", " \N{BOX DRAWINGS LIGHT VERTICAL}"),
    "dashes": lambda text: text.replace("-", "\N{EN DASH}"),
    "minus signs": lambda text: text.replace("-", "\N{MINUS SIGN}"),
    "Markdown's escapes": lambda text: re.sub(r"([_*#|])", r"\\\1", text),
    "a mail": lambda text: quopri.encodestring(text.encode()).decode(),
    "one string": json.dumps,
    "a field of JSON": lambda text: json.dumps({"stdout": text}),
    "a list of JSON": lambda text: json.dumps(text.split("\n"), indent=1),
    "records": lambda text: "\n".join(as_record(line) for line in text.split("\n")),
    "bytes of Python": lambda text: repr(text.encode()),
    "escaped tabs": lambda text: text.replace("\t", "\\t"),
    "pasted twice": lambda text: f"{text}\n{text}",
    "NCCL's lines": between(INFO, 1),
    "few of NCCL's lines": between(INFO, 3),
    "warnings": between("/usr/lib/x.py:12: UserWarning: deprecated", 4),
}
"""Behind each the paste says what it said."""


@pytest.mark.parametrize("kind", PASTES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_pastes_say_what_was_printed(damage: str, kind: str, tmp_path: Path) -> None:
    text = PASTES[kind]
    assert told(DAMAGES[damage](text), kind, tmp_path) == told(text, kind, tmp_path)


@pytest.mark.parametrize("glued", [INFO, f" {INFO}", "NCCL version 2.19.3+cuda12.3"])
def test_rows_that_end_in_a_line_of_nccls_are_whole(glued: str, tmp_path: Path) -> None:
    text = re.sub(r"(?m)(^.* float .*)$", rf"\1{glued}", LOG)
    assert told(text, "table", tmp_path) == told(LOG, "table", tmp_path)


@pytest.mark.parametrize("mark", [",", ";"])
def test_tables_that_a_spreadsheet_wrote(mark: str, tmp_path: Path) -> None:
    text = cells_in("", mark, "")(LOG[LOG.index(NEW) :])
    assert told(ranks(8) + text, "table", tmp_path) == told(LOG, "table", tmp_path)


ROWS = [line.split("\t") for line in PATHS.split("\n\n", maxsplit=1)[0].split("\n")]


@pytest.mark.parametrize("corner", ["", "GPU", "/"])
@pytest.mark.parametrize("first", ["devices", "affinities"])
@pytest.mark.parametrize("bold", ["", "**", "`"])
def test_matrices_in_tables_of_pages(corner: str, first: str, bold: str, tmp_path: Path) -> None:
    legend = PATHS[PATHS.index("Legend") :]
    tables = []
    for name, *cells in ROWS:
        own, affinities = cells[:6], cells[6:8]
        ordered = [*affinities, *own] if first == "affinities" else [*own, *affinities]
        tables.append(f"| {bold}{name or corner}{bold} | {' | '.join(ordered)} |")
    tables.insert(1, "|" + " :---: |" * 9)
    text = "\n".join([*tables, "", legend])
    assert told(text, "paths", tmp_path) == told(PATHS, "paths", tmp_path)


LINES = LOG.split("\n")
CAUSES: dict[str, tuple[str, Damage, str]] = {
    "a row cut": (
        "table",
        lambda text: text.replace(row(SIZES[3], 20 + SIZES[3] / 2e5, EIGHT)[50:], "\n"),
        "cells",
    ),
    "a head alone": ("table", lambda text: text[: text.index(UNITS)], "without rows"),
    "rows of paths cut": (
        "paths",
        lambda text: re.sub(r"(?m)^GPU[12]\t.*\n", "", text),
        "no row of GPU1",
    ),
    "no head of paths": (
        "paths",
        lambda text: text.split("\n", 1)[1],
        "text that begins|no line of",
    ),
    "a diagonal of dashes": (
        "paths",
        lambda text: text.replace(" X ", " - "),
        "does not begin with X",
    ),
    "a cell cut": ("paths", lambda text: text.replace("PIX", "PI"), "found 'PI'"),
    "a row of rates cut": ("p2p", lambda text: text.replace(" 1594.01", ""), "cut off|cell"),
    "a page of HTML": ("paths", lambda text: f"<!DOCTYPE html><html>{text}</html>", "an HTML page"),
    "JSON cut": ("nvbandwidth", lambda text: '{"nvbandwidth": {"testcases": [', "no JSON"),
}
"""What cannot be read: its cause in the message."""


@pytest.mark.parametrize("name", CAUSES)
def test_what_is_lost_is_named(name: str, tmp_path: Path) -> None:
    kind, damage, cause = CAUSES[name]
    with pytest.raises(InputError, match=cause):
        told(damage(PASTES[kind]), kind, tmp_path)


def test_rows_that_their_author_left_out_are_said(tmp_path: Path) -> None:
    path = tmp_path / "paste.txt"
    path.write_text("\n".join([*LINES[:-4], "...", *LINES[-3:]]))
    (content,) = read_files([path])
    assert all(len(sweep.rows) == len(SIZES) - 1 for sweep in content.sweeps)
    assert all("left out ('...')" in " ".join(sweep.notes) for sweep in content.sweeps)
