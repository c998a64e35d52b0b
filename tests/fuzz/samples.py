"""Inputs that are right, from which damaged ones are made: shipped files, and logs written here."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SMALL = ("{gpus: [1, 2]}", "{nodes: [1, 2]}")
"""Sizes for which a run takes less than a second."""

SCENARIOS = (
    "bucket-size-slow-ethernet",
    "checkpoint-writes",
    "dataparallel-dgx1",
    "degraded-link",
    "jitter",
    "plan-gpt2-xl",
    "resnet18-loopback-gloo",
    "resnet50-dgx-a100",
    "sweep-buckets-and-nodes",
    "two-jobs",
)

NODES = ("dgx-a100", "dgx1-v100", "ethernet-10g", "rtx4090-x4", "shaped-ethernet", "v100-x8-25g")

FABRICS = ("fat-tree", "leaf-spine", "one-switch", "rail-optimised")


@cache
def scenario(name: str) -> str:
    """A shipped scenario for at most two small sizes, with a small model."""
    text = (ROOT / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
    text = re.sub(r"name: (bert-large|gpt2-xl|resnet50)\b", "name: resnet18", text)
    text = re.sub(r", (sequence_length: \d+|dtype: bf16)", "", text)
    text = text.replace("nodes: 32", "nodes: 2").replace("nodes: 16", "nodes: 4")
    text = re.sub(r"^scale: \{gpus.*$", f"scale: {SMALL[0]}", text, flags=re.MULTILINE)
    text = re.sub(r"(?m)^(\s+nodes): \[[\d, ]+\]$", r"\1: [1, 2]", text)
    return re.sub(r"strategy.bucket_cap: \[.*\]", "strategy.bucket_cap: [null, 5 MiB]", text)


@cache
def topology(name: str) -> str:
    """A shipped node or fabric."""
    return (ROOT / "topologies" / f"{name}.yaml").read_text(encoding="utf-8")


PROFILE = """\
perfmodel: 2
kind: profile
name: small
topology: cpu-loopback
library: gloo
date: '2026-01-01'
source:
- {file: m.json, sha256: abc, backend: gloo, collective: all_reduce, algorithm: ring, ranks: 2,
   started: now, machine: {cpu: any}, versions: {python: '3'}}
fits:
- rows: library
  method: by hand
  values:
  - {parameter: step, where: ring/memory, value: 40 us, interval: [30 us, 50 us]}
  - {parameter: bandwidth, where: memory, value: 2 GB/s, interval: [1 GB/s, 3 GB/s]}
  covariance: [[0.01, 0.0], [0.0, 0.02]]
  points:
  - {run: 0, op: all_reduce, ranks: 2, hosts: 1, nbytes: 1024, algorithm: ring, protocol: ring,
     measured_s: 0.0001, fitted_s: 0.00011, own: 0.0}
  slopes: [[0.9, 0.1]]
  files: [m.json]
  scatter: 0.1
"""

MODEL_YAML = """\
perfmodel: 1
kind: model
name: mine
sample: image
parameters:
  - {name: conv.weight, shape: [64, 3, 7, 7]}
  - {name: conv.bias, numel: 64, dtype: bf16}
  - {name: fc.weight, shape: 10x64, requires_grad: true, layer: head}
layers:
  - {name: conv, parameters: [conv.bias, conv.weight], forward: 1 ms, backward: 2 ms}
  - {name: head, parameters: [fc.weight], matmul_flops: 1e6, vector: 1 MB, kernels: 3}
buffers: 1 KiB
optimizer: 1 ms
"""

MODEL_CSV = """\
# written by hand
name,shape,dtype,requires_grad,layer,forward_us,backward_us
conv.weight,64x3x7x7,fp32,true,conv,12,25
conv.bias,64,fp32,true,conv,,
fc.weight,"(10, 64)",bf16,false,head,3.5,1e1
"""

NCCL_TESTS = """\
# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   1000 on      host0 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid   1000 on      host0 device  1 [0x0b] NVIDIA A100-SXM4-80GB
host0:1000:1000 [0] NCCL INFO NCCL version 2.18.3+cuda12.2
host0:1000:1000 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 8388608.
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    12.05    0.00    0.00      0    11.95    0.00    0.00      0
     1048576        262144     float     sum      -1    30.10   34.84   34.84      0    29.90   35.07   35.07      0
   134217728      33554432     float     sum      -1   940.20  142.75  142.75      0   938.10  143.07  143.07      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 59.2
"""  # noqa: E501

MEASUREMENT = """\
{"perfmodel": 1, "kind": "measurement", "backend": "gloo", "collective": "all_reduce",
 "algorithm": "ring", "ranks": 2, "itemsize": 4, "started": "2026-01-01T00:00:00+00:00",
 "seconds": 1.5, "rows": [
  {"nbytes": 1024, "what": "library", "repeats": 3, "median_s": 1e-4, "times_s": [1e-4, 2e-4]}]}
"""

MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tPXB\t0-31\t0
GPU1\tNV12\t X \tPXB\t0-31\t0
NIC0\tPXB\tPXB\t X

Legend:
  X    = Self
NIC Legend:
  NIC0: mlx5_0
"""

NCCL_XML = """\
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:01:00.0" class="0x060400" vendor="0x1000" device="0xc010" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:07:00.0" class="0x030200" vendor="0x10de" device="0x20b2" link_speed="16 GT/s" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:0b:00.0" count="12" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:0b:00.0" class="0x030200" vendor="0x10de" device="0x20b2" link_speed="16 GT/s" link_width="16">
        <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:07:00.0" count="12" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:0c:00.0" class="0x020700" vendor="0x15b3" device="0x101b" link_speed="16 GT/s" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.0" guid="0x1" maxconn="131072" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
</system>
"""  # noqa: E501

IBNET = """\
Switch\t40 "S-0001"\t\t# "leaf0" base port 0 lid 1 lmc 0
[1]\t"H-000a"[1](a) \t\t# "host0 mlx5_0" lid 2 4xHDR
[2]\t"H-000b"[1](b) \t\t# "host1 mlx5_0" lid 3 4xHDR

Ca\t1 "H-000a"\t\t# "host0 mlx5_0"
[1](a) \t"S-0001"[1]\t\t# lid 2 lmc 0 "leaf0" lid 1 4xHDR

Ca\t1 "H-000b"\t\t# "host1 mlx5_0"
[1](b) \t"S-0001"[2]\t\t# lid 3 lmc 0 "leaf0" lid 1 4xHDR
"""
