"""What Gloo and DDP take of cores: ``python -m reports.experiments.gloo_ddp.constants``, as root.

The numbers in ``perfmodel/library/gloo.yaml`` that are called `core_frame`, `core_layer` and
`core_gradient`. Packets: CPU time of large all-reduces over links with packets of several sizes.
Layers and gradients: CPU time of backward of DistributedDataParallel of one process without a
network, whose layers sleep, with few and many layers, gradients and bytes, split by least squares.
Beside each what an all-reduce of 1 KiB of two processes takes at the time: that is 170 us on the
machine that Gloo's file speaks of (`core_call` and eight times `core_message`), and more where
cores are slower or have other work.
"""

from __future__ import annotations

import itertools
import multiprocessing as mp
import resource
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from reports.experiments.gloo_ddp.cores import call_us
from reports.experiments.gloo_ddp.keep_awake import KeepAwake
from reports.experiments.gloo_ddp.lab import Lab, Net, urgent
from reports.experiments.gloo_ddp.models import Layer
from reports.experiments.gloo_ddp.train import sleeping

LAYERS, PER_LAYER, TOTAL_BYTES = (10, 40, 160), (1, 2, 4), (100_000, 5_000_000)
DROPPED, COUNTED = 4, 16
CAP_MB, SLEEP_MS = 1000.0, 0.5
LINKS = ((200, 1500), (500, 4000), (500, 9000), (500, 16000), (500, 32000))
LARGE, IN_A_ROW = 4 << 20, 10
CALL_US, HEADERS = 170.0, 52


def main() -> None:
    """Measure and print."""
    with KeepAwake():
        for rate_mbit, mtu in LINKS:
            _say(_packets(rate_mbit, mtu))
        _say(_hooks())


def _packets(rate_mbit: int, mtu: int) -> str:
    with Lab(Net(hosts=2, rate_mbit=rate_mbit, mtu=mtu, delay_us=0)) as lab:
        large = statistics.median(call_us(lab, LARGE, IN_A_ROW))
        small = statistics.median(call_us(lab))
    each = (large - small) / (LARGE / (mtu - HEADERS))  # a rank of two receives as much as it has
    return (
        f"packets of {mtu} bytes at {rate_mbit} Mbit/s: {each:.1f} us each, "
        f"{each * CALL_US / small:.1f} us where an all-reduce of 1 KiB takes {CALL_US:.0f} us "
        f"and not {small:.0f} us"
    )


def _hooks() -> str:
    context = mp.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_backward, args=(answers,))
    process.start()
    rows = answers.get()
    process.join()
    with Lab(Net(hosts=2, rate_mbit=500, mtu=9000, delay_us=0)) as lab:
        small = statistics.median(call_us(lab))
    counts, times_us = np.array([row[:4] for row in rows]), np.array([row[4] for row in rows])
    parts = np.linalg.lstsq(counts, times_us, rcond=None)[0]
    off = np.median(np.abs(counts @ parts / times_us - 1))
    return (
        f"each layer {parts[1]:.1f} us, each gradient {parts[2]:.1f} us, {1e-3 / parts[3]:.1f} GB/s"
        f" (off by {off:.0%} in the median), where an all-reduce of 1 KiB takes {small:.0f} us"
    )


def _say(what: str) -> None:
    print(what, flush=True)  # noqa: T201  (a command)


def _backward(answers: Any) -> None:
    import torch
    import torch.distributed as dist

    urgent()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        cases = itertools.product(LAYERS, PER_LAYER, TOTAL_BYTES)
        answers.put([_timed(*case) for case in cases])
        dist.destroy_process_group()


def _timed(layers: int, each: int, nbytes: int) -> tuple[float, ...]:
    """Counts of one backward (itself, layers, gradients, bytes), and its CPU time; microseconds."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    numel = max(1, nbytes // 4 // (layers * each))
    network, _ = sleeping(
        [Layer(f"layer{at}", (numel,) * each, 0.0, SLEEP_MS) for at in range(layers)]
    )
    ddp = DistributedDataParallel(network, init_sync=False, bucket_cap_mb=CAP_MB)
    start, found = torch.zeros(1, requires_grad=True), []
    for _ in range(DROPPED + COUNTED):
        loss = ddp(start).sum()
        before = _used_us()
        loss.backward()
        found.append(_used_us() - before)
        network.zero_grad(set_to_none=True)
    counts = 1.0, layers, layers * each, 4.0 * numel * layers * each
    return (*counts, statistics.median(found[DROPPED:]))


def _used_us() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return 1e6 * (used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    main()
