"""A result in the terminal and as Markdown."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from perfmodel.report.common.plain_text import render_terminal
from perfmodel.report.run.text import result_lines, run_markdown
from perfmodel.studies.run.result import Result


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_terminal_view_holds_answer_and_every_size(result: Result) -> None:
    marked = replace(
        result,
        points=tuple(replace(p, bottleneck="[bold]n0/nic[/bold]") for p in result.points),
    )
    console = Console(width=100, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        render_terminal(result_lines(marked), console)
    text = plain(capture.get())
    assert "256 GPUs train" in text
    assert (
        "no interval yet: the spread of collectives on this machine has not been measured"
        in " ".join(text.split())
    )
    assert "[bold]n0/nic[/bold]" in text
    sizes = [line.split()[0] for line in text.splitlines() if "n0/nic" in line]
    assert sizes == ["1", "8", "16", "64", "128", "256"]


def test_markdown_can_be_read_alone(result: Result) -> None:
    text = plain(run_markdown(result))
    assert text.startswith("# 256 GPUs train")
    assert "Question: How does ResNet-50 scale" in text
    assert "Data loading keeps up" in text
    assert text.count("\n| 128 |") == 2  # sizes, and parts of the step
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| 1")}
    assert len(widths) == 2
