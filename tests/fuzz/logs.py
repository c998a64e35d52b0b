"""Right logs of benchmarks, tables of times, and a list of GPUs, from which damaged ones are made.

As `samples`.
"""

from __future__ import annotations

import json
from typing import Any

P2P = """\
[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA A100-SXM4-80GB, pciBusID: 7, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA A100-SXM4-80GB, pciBusID: b, pciDeviceID: 0, pciDomainID:0
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 1575.10  17.65
     1  18.50 1594.01
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 1575.10  273.60
     1  273.60 1594.01
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   2.60   3.10
     1   3.20   2.61
"""

NVBANDWIDTH = """\
nvbandwidth Version: v0.6
Device 0: NVIDIA A100-SXM4-80GB (00000000:07:00)
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     26.00     25.84

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    273.60
 1    273.60       N/A
"""

_CASES = [
    {
        "name": "device_to_device_memcpy_read_ce",
        "status": "Passed",
        "bandwidth_matrix": [["N/A", "273.6"], ["273.6", "N/A"]],
    },
    {"name": "host_device_latency_sm", "bandwidth_matrix": [["772.1", "771.9"]]},
]

NVBANDWIDTH_JSON = json.dumps({"nvbandwidth": {"version": "v0.8", "testcases": _CASES}}, indent=1)


def _nccl_document() -> dict[str, Any]:
    devices = [
        {
            "rank": r,
            "group": 0,
            "pid": r,
            "hostname": "h0",
            "device": r,
            "device_hex": "0x0",
            "device_info": "NVIDIA A100-SXM4-80GB",
        }
        for r in range(4)
    ]
    cell = {"alg_bw": 1.0, "bus_bw": 0.75, "nwrong": 0.0}
    results = [
        {
            "size": n,
            "count": n // 4,
            "type": "float",
            "redop": "sum",
            "root": "-1",
            "out_of_place": {"time": t, **cell},
            "in_place": {"cpu_time": t + 1, **cell},
        }
        for n, t in ((0, 5.0), (1 << 20, 100.0))
    ]
    return {
        "version": 3,
        "start_time": "2026-01-01 00:00:00",
        "nccl_version": 22809,
        "args": ["./build/all_gather_perf", "-b", "8"],
        "results": results,
        "env": ["NCCL_ALGO=Ring", "NCCL_DEBUG=INFO"],
        "config": {"devices": devices},
    }


NCCL_JSON = json.dumps(_nccl_document(), indent=1)

RCCL_JSON = json.dumps(
    [
        {
            "#wrong": "0",
            "algBw": 0.05,
            "busBw": 0.08,
            "gpus": 4,
            "name": "AllReduce",
            "redop": "sum",
            "type": "float",
            "size": n,
            "time": t,
            "inPlace": p,
        }
        for n, t, p in ((1024, 19.2, 0), (1024, 19.9, 1), (2048, 19.4, 0))
    ],
    indent=1,
)

TIMES_CSV = """\
# measured by hand
name,forward,backward
conv,1.2 ms,2 ms
"""

GPUS_YAML = """\
perfmodel: 1
kind: gpus
description: written by hand
sources: {sheet: "a data sheet"}
gpus:
  my-gpu:
    generation: ampere
    streaming_multiprocessors: 108
    memory: "80 GiB"
    memory_bandwidth: "2039 GB/s"
    power: "400 W"
    peak: {fp32: "19.5 TFLOP/s", tf32: "156 TFLOP/s", fp16: "312 TFLOP/s", bf16: "312 TFLOP/s"}
    matmul_efficiency: {fp32: 0.8, tf32: 0.7, fp16: 0.6, bf16: 0.6}
    memory_efficiency: 0.85
    kernel_overhead: "2 us"
    launch: "5 us"
    overlap_slowdown: 1.1
    sources:
      memory: sheet
      memory_bandwidth: sheet
      power: sheet
      peak: sheet
      matmul_efficiency: "an assumption of this file"
      memory_efficiency: "an assumption of this file"
      kernel_overhead: "an assumption of this file"
      launch: "an assumption of this file"
      overlap_slowdown: "an assumption of this file"
      streaming_multiprocessors: sheet
"""

P2P_STATUS = """\
\tGPU0\tGPU1\t
 GPU0\tX\tOK\t
 GPU1\tOK\tX\t

Legend:
  X    = Self
  OK   = Status Ok
"""
