"""Time whole training steps of the cases on the GPU at hand, and their peak memory."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from reports.experiments.one_gpu.modules import build

COLUMNS = (
    *("step_s", "low_s", "high_s", "forward_s", "backward_s", "optimizer_s"),
    *("allocated_bytes", "reserved_bytes", "outcome"),
)
"""What is measured of a case: the median step and its quartiles, its parts by events of the device
(a run of its own), and the most memory that tensors, and that PyTorch's allocator, held."""

WARM_UP_STEPS = 4
LEAST_SAMPLES, MOST_SAMPLES, STEPS_IN_SAMPLE = 3, 9, 4

Parts = list[Any]
Step = Callable[[Callable[[], None]], None]
"""A training step; calls its argument at its start and after forward, backward and optimizer."""


def measure_case(torch: Any, cells: Mapping[str, str], seconds: float) -> dict[str, object]:
    """Measure a case; `outcome` is "out of memory" where it does not fit.

    Parameters
    ----------
    torch : module
    cells : mapping
        A row of ``cases.csv``.
    seconds : float
        For all samples together.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return _measure(torch, make_step(torch, cells, device), device, seconds)
    except torch.OutOfMemoryError:
        return {"outcome": "out of memory"}
    finally:
        release(torch)


def release(torch: Any) -> None:
    """Give back what an earlier case held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if hasattr(torch, "compiler"):
        torch.compiler.reset()


def make_step(torch: Any, cells: Mapping[str, str], device: str) -> Step:
    """Make the training step of a case."""
    precision, in_bf16 = cells["precision"], cells["dtype"] == "bf16"
    tf32 = precision in ("tf32", "bf16", "fp16")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    module, inputs, loss_of = build(torch, cells, device)
    if in_bf16:
        module = module.to(torch.bfloat16)
        if isinstance(inputs, tuple):
            inputs = (inputs[0].to(torch.bfloat16), inputs[1])
    if cells["recompute"] == "full":
        module.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = _make_optimizer(torch, module, cells)
    called = torch.compile(module) if cells["compiled"] == "1" else module
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)

    def cast() -> AbstractContextManager[Any]:
        if in_bf16 or narrow is None:
            return nullcontext()
        return torch.autocast(device, narrow)  # type: ignore[no-any-return]

    def step(mark: Callable[[], None]) -> None:
        mark()
        with cast():
            loss = loss_of(called, inputs)
        mark()
        scaler.scale(loss).backward()
        mark()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        mark()

    return step


def _make_optimizer(torch: Any, module: Any, cells: Mapping[str, str]) -> Any:
    kernels = {cells["optimizer_kernels"].replace("-", ""): True}
    if "forloop" in kernels:
        kernels = {"foreach": False, "fused": False}
    every, kind = list(module.parameters()), cells["optimizer"]
    if kind == "muon":
        return _muon(torch, module, kernels)
    if kind == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(every, lr=1e-4, scale_parameter=False, relative_step=False)
    if kind == "adamw-8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(every, lr=1e-4)
    if kind in ("lion", "lamb"):
        import pytorch_optimizer

        found = {"lion": pytorch_optimizer.Lion, "lamb": pytorch_optimizer.Lamb}[kind]
        return found(every, lr=1e-4, weight_decay=0.01)
    if kind == "adamw":
        return torch.optim.AdamW(every, lr=1e-4, **kernels)
    return torch.optim.SGD(every, lr=1e-3, momentum=0.9, weight_decay=1e-4, **kernels)


def _muon(torch: Any, module: Any, kernels: Mapping[str, bool]) -> Any:
    """Muon for matrices of repeated blocks, AdamW for all else; steps together."""
    blocks = {
        id(own)
        for layers in module.modules()
        if isinstance(layers, torch.nn.ModuleList)
        for own in layers.parameters()
        if own.ndim == 2
    }
    every = list(module.parameters())
    optimizers = (
        torch.optim.Muon([own for own in every if id(own) in blocks], lr=1e-4),
        torch.optim.AdamW([own for own in every if id(own) not in blocks], lr=1e-4, **kernels),
    )

    class Both(torch.optim.Optimizer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(every, {})

        def step(self, _closure: Any = None) -> None:
            for optimizer in optimizers:
                optimizer.step()

    return Both()


def _measure(torch: Any, step: Step, device: str, seconds: float) -> dict[str, object]:
    on_gpu = device == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else (lambda: None)
    for warm_up in range(WARM_UP_STEPS):
        step(_ignore)
        if on_gpu and warm_up == 1:
            wait()
            torch.cuda.reset_peak_memory_stats()
    samples_s: list[float] = []
    deadline_s = time.monotonic() + seconds
    while len(samples_s) < LEAST_SAMPLES or (
        len(samples_s) < MOST_SAMPLES and time.monotonic() < deadline_s
    ):
        wait()
        began_s = time.perf_counter()
        for _ in range(STEPS_IN_SAMPLE):
            step(_ignore)
        wait()
        samples_s.append((time.perf_counter() - began_s) / STEPS_IN_SAMPLE)
    low_s, median_s, high_s = statistics.quantiles(samples_s, n=4)
    outcome: dict[str, object] = {
        "step_s": median_s,
        "low_s": low_s,
        "high_s": high_s,
        "outcome": "measured",
    }
    if on_gpu:
        outcome |= {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }
        outcome |= _time_parts(torch, step)
    return outcome


def _ignore() -> None:
    """Mark nothing."""


def _time_parts(torch: Any, step: Step) -> dict[str, object]:
    """Median times of forward, backward and optimizer by events of the device; seconds."""
    rows: list[list[float]] = []
    for _ in range(5):
        events: Parts = []

        def mark(events: Parts = events) -> None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            events.append(event)

        step(mark)
        torch.cuda.synchronize()
        rows.append([a.elapsed_time(b) * 1e-3 for a, b in itertools.pairwise(events)])
    parts_s = map(statistics.median, zip(*rows, strict=True))
    return dict(zip(("forward_s", "backward_s", "optimizer_s"), parts_s, strict=True))
