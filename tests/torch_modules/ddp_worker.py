"""One of two processes of a small DDP training over gloo, whose steps are recorded.

``python -m tests.torch_modules.ddp_worker FOLDER RANK``: rank 0 writes FOLDER/steps.json and
FOLDER/model.yaml.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from perfmodel.torch_modules.capture import capture
from perfmodel.torch_modules.times.ddp_steps import rebuilt_order, record_steps

CAP_MB = 1
STEPS = 5
VALIDATED = 3
"""Step before which a forward without gradients runs: it is no step."""


def main(folder: Path, rank: int) -> None:
    """Train for some steps."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )  # fmt: skip
    torch.manual_seed(0)
    width = 384
    module = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(6))
    )
    inputs, loss = torch.randn(16, width), torch.nn.MSELoss()
    captured = capture(module, (inputs, torch.zeros(16, width)), loss=loss, name="small")
    wrapped = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=CAP_MB)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    with record_steps(wrapped) as recorded:
        for step in range(STEPS):
            if step == VALIDATED:
                with torch.no_grad():
                    wrapped(inputs)
            optimizer.zero_grad()
            loss(wrapped(inputs), torch.zeros(16, width)).backward()
            optimizer.step()
    if rank == 0:
        recorded.apply(captured).save(folder / "model.yaml")
        names = [name for name, _ in module.named_parameters()]
        document = {
            "ready": recorded.ready_order, "captured": captured.ready_order,
            "rebuilt": rebuilt_order(recorded, names), "buckets": recorded.bucket_bytes,
            "cap": CAP_MB * 2**20, "steps": len(recorded.steps), "step_s": recorded.step_s,
            "forward_s": recorded.median("forward_s"), "backward_s": recorded.median("backward_s"),
        }  # fmt: skip
        (folder / "steps.json").write_text(json.dumps(document), encoding="utf-8")
    dist.barrier()
    sys.stderr.flush()
    os._exit(0)  # threads of gloo end a process badly


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
