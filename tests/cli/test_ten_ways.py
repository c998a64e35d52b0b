"""Ten ways from what a user has to a prediction, each in five typed lines or fewer.

A line of a scenario or of a data sheet counts as typed, a log, a dump or a module is there already.
Traces, which need real files, notebooks and `advise` have tests of their own that do the same.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app

SHAPE = """\
# How long is a step of my transformer?
model: {transformer: {hidden: 512, layers: 4, heads: 8, vocab: 32k}, tokens: 1024}
compute: {precision: bf16}
cluster: {node: {gpus: 2 x rtx-4090, pcie: gen4 x16, nic: 10 GbE}}
training: {batch_per_gpu: 4}
"""
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
MODULE = """\
import torch
def example():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()), torch.zeros(8, 64)
"""
LOG = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 16777216 step: 4(factor) warmup iters: 5 iters: 20
#
# Using devices
{devices}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    44.00   23.83   41.70      0    44.00   23.83   41.70      0
     4194304       1048576     float     sum      -1    76.00   55.19   96.58      0    76.00   55.19   96.58      0
    16777216       4194304     float     sum      -1   200.00   83.89  146.80      0   200.00   83.89  146.80      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 95.03
"""  # noqa: E501
DEVICES = "\n".join(
    f"#  Rank {n:2} Group  0 Pid {99 + n} on host0 device {n:2} [0x0{n}] NVIDIA A100-SXM4-80GB"
    for n in range(8)
)
MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPHB\tPHB\t0-15\t0
GPU1\tPHB\t X \tPHB\t0-15\t0
NIC0\tPHB\tPHB\t X \t\t
"""
XML = """\
<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel">
<pci busid="0000:01:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
<gpu dev="0" sm="89" rank="0" gdr="0"/></pci>
<pci busid="0000:02:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
<gpu dev="1" sm="89" rank="1" gdr="0"/></pci>
</cpu></system>
"""
SHEET = """\
perfmodel: 1
kind: gpus
sources: {sheet: "data sheet of the vendor"}
gpus: {new-gpu: {generation: ada, source: sheet, memory: 24 GB, memory_bandwidth: 1 TB/s, peak: {bf16: 150 TFLOP/s}, power: 400 W}}
"""  # noqa: E501
TOY = "--set model.name=resnet18 --set training.batch_per_gpu=8 --set scale=null"

WAYS = {
    "shape": ["perfmodel run shape.yaml"],
    "config": [
        "perfmodel init --config config.json --node dgx-a100 --batch 1 -o mine.yaml",
        "perfmodel run mine.yaml",
    ],
    "module": [
        "perfmodel capture train.py:example -o module.yaml",
        "perfmodel run shape.yaml --set 'model={file: module.yaml}'",
    ],
    "log": [
        "perfmodel calibrate all_reduce.log --topology dgx-a100 -o mine.yaml",
        "perfmodel collective dgx-a100 --profile mine.yaml -b 1MiB -e 4MiB",
    ],
    "XML": [
        "perfmodel topology import topo.xml --gpu rtx-4090 -o node.yaml",
        (
            "perfmodel run resnet50-dgx-a100 --set cluster.node=./node.yaml "
            f"--set cluster.nodes=1 {TOY}"
        ),
    ],
    "matrix": [
        "perfmodel init --model resnet18 --topo matrix.txt --gpu rtx-4090 --batch 8 -o mine.yaml",
        "perfmodel run mine.yaml",
    ],
    "data sheet": ["perfmodel run shape.yaml --set 'cluster.node={gpus: 2 x new-gpu}'"],
}
"""What is typed in a shell, beside the lines of a scenario that it names."""
TYPED_FILES = {"shape.yaml": SHAPE}


def write_files(folder: Path) -> None:
    """Write what a user has at the beginning."""
    (folder / "topologies").mkdir()
    files = {
        "shape.yaml": SHAPE,
        "config.json": json.dumps(CONFIG),
        "train.py": MODULE,
        "all_reduce.log": LOG.format(devices=DEVICES),
        "matrix.txt": MATRIX,
        "topo.xml": XML,
        "topologies/mine.yaml": SHEET,
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")


@pytest.mark.parametrize("way", WAYS)
def test_a_way_ends_in_a_prediction(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "module":
        pytest.importorskip("torch", reason="captures a module of PyTorch")
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in WAYS[way]:
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
    if way not in ("module", "data sheet"):  # these begin with a scenario that is there already
        typed = [text for name, text in TYPED_FILES.items() if name in " ".join(WAYS[way])]
        assert len(WAYS[way]) + sum(text.count("\n") - 1 for text in typed) <= 5
    assert any(unit in done.stdout for unit in (" ms", " us", " \N{MICRO SIGN}s"))
