"""Whatever stdout is, commands end with an exit code and a sentence; pages are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

QUICK = ["run", "asked.yaml"]
"""Prints every character of ours: rules, arrows, multiplication signs."""

ASKED = """\
# Wie lange dauert ein Schritt \u2192 auf \u4e2d?
perfmodel: 1
model: {file: small.csv}
compute: {precision: fp16, source: file, times: times.csv}
cluster: {node: v100-x8-25g, gpus_per_node: 2}
training: {batch_per_gpu: 8}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "asked.yaml").write_text(ASKED, encoding="utf-8")
    (tmp_path / "small.csv").write_text('name,shape,dtype\na,"1000,1000",fp32\n')
    (tmp_path / "times.csv").write_text("name,forward,backward\na,1 ms,2 ms\n")
    return tmp_path


def perfmodel(
    folder: Path, words: list[str], stdout: int | None = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-c", "from perfmodel.cli import main; main()", *words]
    # the path of this package's own checkout, as it was imported
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run(
        command, cwd=folder, env=variables, stdout=stdout, stderr=subprocess.PIPE, check=False
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("words", [QUICK, [*QUICK, "--json"]])
def test_a_full_stdout_is_told(folder: Path, words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = perfmodel(folder, words, stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "stdout: found No space left on device; allowed: a place that can be written"
    ]


@pytest.mark.slow
def test_a_pipe_that_nobody_reads_ends_the_command_in_silence(folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = perfmodel(folder, QUICK, stdout=write)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == b""


@pytest.mark.slow
def test_a_stdout_that_was_closed_before_the_start(folder: Path) -> None:
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = [sys.executable, "-c", code, "-P", "-c", "from perfmodel.cli import main; main()"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *QUICK], cwd=folder, env=variables, stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.slow
def test_a_narrow_terminal_shows_the_answer(folder: Path) -> None:
    encoding = "latin-1"
    done = perfmodel(folder, QUICK, PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert done.stderr == b""
    answer = done.stdout.decode(encoding)
    assert "GPUs train" in answer
    assert "->" in answer
    assert "?" not in answer.splitlines()[0]


def test_a_narrow_terminal_shows_a_message(folder: Path) -> None:
    done = perfmodel(folder, ["run", "\u4e2d\u2192"], PYTHONIOENCODING="latin-1")
    assert done.returncode == 2
    assert b"\\u4e2d->" in done.stderr


@pytest.mark.slow
def test_a_page_is_the_same_in_every_process(folder: Path) -> None:
    """Sets of names are hashed anew in each; none may order what is written."""
    pages = set()
    for seed in ("1", "2"):
        done = perfmodel(folder, [*QUICK, "-o", f"out{seed}"], PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        pages.add((folder / f"out{seed}" / "report.html").read_bytes())
    assert len(pages) == 1
