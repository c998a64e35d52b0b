"""Ranks on CPUs are called processes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from perfmodel.report.common.document import Paragraph, Table, for_ranks_of
from perfmodel.report.run.page import report_html
from perfmodel.report.run.text import result_lines, run_markdown
from perfmodel.report.topology import summary, topology_html
from perfmodel.studies.run.result import Result
from perfmodel.topology.templates.build import build_topology


@pytest.fixture(scope="module")
def on_cpus(result: Result) -> Result:
    topology = replace(result.topology, gpu=replace(result.topology.gpu, generation="cpu"))
    return replace(result, topology=topology, question="Is a GPU quicker?")


@pytest.mark.slow
def test_the_page_of_processes_on_cpus_has_no_gpus(on_cpus: Result) -> None:
    body = report_html(on_cpus).partition("plotly.js v")[0]
    own = body.replace("Is a GPU quicker?", "")
    assert own != body  # what users ask stays
    assert "GPU" not in own.replace("data-gpu", "")
    assert "256 processes train" in own.replace("\N{NO-BREAK SPACE}", " ")


def test_terminal_and_markdown_say_the_same(on_cpus: Result) -> None:
    assert "GPU" not in run_markdown(on_cpus).replace("Is a GPU quicker?", "")
    blocks = result_lines(on_cpus)
    texts = [block.text for block in blocks if isinstance(block, Paragraph)]
    texts += [title for block in blocks if isinstance(block, Table) for title in block.titles]
    assert not [text for text in texts if "GPU" in text]
    assert any(text == "Processes" for text in texts)


def test_published_gpus_stay_gpus_and_cuda_is_left_out(on_cpus: Result) -> None:
    published = "eight of ten published throughputs of one GPU"
    texts = {
        published: published,
        "Fits: 1 GiB, with room for the 522 MiB of CUDA, NCCL and allocator.": "Fits: 1 GiB.",
        "GPU memory: 2 GiB": "Process memory: 2 GiB",
    }
    blocks = for_ranks_of(on_cpus.topology, [None, *map(Paragraph, texts)])
    assert [block.text for block in blocks if isinstance(block, Paragraph)] == list(texts.values())


def test_gpus_are_gpus(result: Result) -> None:
    block = Paragraph("2 GPUs")
    assert for_ranks_of(result.topology, [block]) == [block]


def test_links_of_amd_are_not_called_nvlink(result: Result) -> None:
    machine = build_topology("mi300x-x8")
    texts = {
        "the hosts' NICs and the GPUs' NVLink": "the hosts' NICs and the GPUs' XGMI",
        "Path: n0/gpu3 -> n0/gpu0 (nvlink).": "Path: n0/gpu3 -> n0/gpu0 (xgmi).",
        "28 NVLinks": "28 XGMI links",
        "Fits, with room for the 3 GiB of CUDA, NCCL and allocator.": (
            "Fits, with room for the 3 GiB of ROCm, RCCL and allocator."
        ),
    }
    blocks = for_ranks_of(machine, list(map(Paragraph, texts)))
    assert [block.text for block in blocks if isinstance(block, Paragraph)] == list(texts.values())
    assert for_ranks_of(result.topology, blocks) == blocks
    own = topology_html(machine).partition("plotly.js v")[0].partition("Where the numbers")[0]
    assert own.count("XGMI") > 8  # in the picture, its legend, its links and paths
    assert not re.search("nvlink|NV1\\b", own, re.IGNORECASE)
    lines = summary(machine)
    assert any("xgmi" in line for line in lines)
    assert not [line for line in lines if "nvlink" in line or "NV1" in line]
