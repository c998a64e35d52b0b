"""Record what a real Horovod 0.28.1 fuses: two processes, Gloo, its own trace.

Prints the cases of `horovod_cases.json`. Needs Horovod built with Gloo and PyTorch:
``python record_horovod.py > horovod_cases.json``.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from typing import Any

RANKS = 2
THRESHOLDS = (0, 1, 1024, 5000, 16_384, 100_000, 1_000_000)
DTYPES = ("fp32", "fp16", "fp64")
CASES = 12
TENSORS = 14


def draw_cases(threshold: int) -> list[dict[str, Any]]:
    """Tensors of each case, some of mixed dtypes, around the size of the buffer."""
    draw = random.Random(threshold)
    cases = []
    for number in range(CASES):
        kinds = DTYPES[: 1 + number % 3]
        most = max(8, threshold // draw.choice((2, 8, 32)))
        cases.append(
            {
                "threshold": threshold,
                "numel": [4 * draw.randint(1, max(1, most // 4)) for _ in range(TENSORS)],
                "dtypes": [draw.choice(kinds) for _ in range(TENSORS)],
            }
        )
    return cases


def work(threshold: int) -> None:
    """Hand the tensors of each case over twice: new ones, then with cached answers."""
    import horovod.torch as hvd
    import torch

    kinds = {"fp32": torch.float32, "fp16": torch.float16, "fp64": torch.float64}
    hvd.init()
    for number, case in enumerate(draw_cases(threshold)):
        for _ in range(2):
            tensors = zip(case["numel"], case["dtypes"], strict=True)
            handles = [
                hvd.allreduce_async(torch.ones(count, dtype=kinds[dtype]), name=f"{number}.{at}")
                for at, (count, dtype) in enumerate(tensors)
            ]
            for handle in handles:
                hvd.synchronize(handle)
    hvd.shutdown()


def launch(threshold: int, command: tuple[str, ...], cycle_ms: int = 80) -> str:
    """Run a program in both processes; returns the trace of rank 0."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(0)
    port = server.start()
    slots = get_host_assignments(parse_hosts(f"localhost:{RANKS}"), RANKS)
    server.init(slots)
    started = []
    for slot in slots:
        own = {
            "RANK": slot.rank,
            "SIZE": slot.size,
            "LOCAL_RANK": slot.local_rank,
            "LOCAL_SIZE": slot.local_size,
            "CROSS_RANK": slot.cross_rank,
            "CROSS_SIZE": slot.cross_size,
            "HOSTNAME": "localhost",
            "CONTROLLER": "gloo",
            "CPU_OPERATIONS": "gloo",
            "GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "GLOO_RENDEZVOUS_PORT": port,
            "GLOO_IFACE": "lo",
            "LOG_LEVEL": "trace",
            "CYCLE_TIME": cycle_ms,
            "FUSION_THRESHOLD": threshold,
        }
        named = {f"HOROVOD_{name}": str(value) for name, value in own.items()}
        started.append(
            subprocess.Popen(
                [sys.executable, "-P", *command],
                env=os.environ | named,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    traces = [process.communicate(timeout=120)[0] for process in started]
    server.stop()
    return traces[0]  # RANK


def read_trace(threshold: int, trace: str) -> list[dict[str, Any]]:
    """Cases with what was fused; those cut by a cycle's end are left out."""
    performed = [
        [tuple(map(int, name.split("."))) for name in re.findall(r"\d+\.\d+", line)]
        for line in re.findall(r"Performing (.*)", trace)
    ]
    result = []
    for number, case in enumerate(draw_cases(threshold)):
        fused = [[at for _, at in group] for group in performed if group[0][0] == number]
        mine = rf"(?:allreduce\.{number}\.\d+[;, ]+)+"
        sent = re.findall(rf"Sending ready responses as {mine}", trace)
        if len(sent) == 2:  # each time in one cycle
            half = len(fused) // 2
            result.append(case | {"fused": fused[:half], "fused_cached": fused[half:]})
    return result


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(int(sys.argv[1]))
    else:
        recorded = [
            case
            for limit in THRESHOLDS
            for case in read_trace(limit, launch(limit, (__file__, str(limit))))
        ]
        print(json.dumps({"horovod": "0.28.1", "ranks": RANKS, "cases": recorded}))
