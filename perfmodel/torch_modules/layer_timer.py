"""Times of layers on the device where the module is.

A step that notes when each operator begins says how the time is shared among layers; steps without
any of that say how long forward and backward are. On a GPU times are those of events.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from perfmodel.errors import refuse_if
from perfmodel.torch_modules.fake_module import training_mode
from perfmodel.torch_modules.layer_groups import group_layers, layer_of_place
from perfmodel.torch_modules.operators import map_tensors
from perfmodel.torch_modules.step_trace import Loss, kept_state, trace_step

WARM_UP, REPEATS = 2, 5
"""Steps before the clock runs, and steps of which the median counts."""

COMMUNICATED_ELEMENTS = 2**24
"""Elements of the all-reduce that runs beside a step: 64 MiB in fp32, as long as large buckets."""


@dataclass(frozen=True, slots=True)
class MeasuredLayers:
    """Seconds of one micro-batch.

    Parameters
    ----------
    forward_s, backward_s : tuple of float
        By layer.
    optimizer_s : float, optional
    slowdown : float, optional
        Of compute while an all-reduce of the process group runs.
    device : str
    repeats : int
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    optimizer_s: float | None
    slowdown: float | None
    device: str
    repeats: int


def measure_layers(
    model: Any,
    batch: Any,
    loss: Loss,
    names: Sequence[str],
    *,
    optimizer: Callable[..., Any] | None = None,
    autocast: str | None = None,
) -> MeasuredLayers:
    """Time forward and backward of each layer, and the optimizer.

    `names`: of the layers, as captured.
    `optimizer`: makes one from parameters, such as torch.optim.AdamW; it works on copies.
    `autocast`: "bf16" or "fp16".
    Raises `InputError`: a module on the meta device, or one that with real tensors has other layers
    than those captured.
    """
    import torch

    device = _device_of(model)
    batch = (
        batch.to(device)
        if hasattr(batch, "to")
        else map_tensors(batch, lambda tensor: tensor.to(device))
    )
    with _autocast(autocast, device), training_mode(model), kept_state(model):
        totals = _total_times(model, batch, loss, device)
        shares = _layer_shares(model, batch, loss, names, device)
        slowdown = _slowdown(model, batch, loss, device, sum(totals))
    forward_s, backward_s = (
        tuple(total * share for share in part) for total, part in zip(totals, shares, strict=True)
    )
    optimizer_s = None if optimizer is None else _optimizer_s(model, optimizer, device)
    named = device if device == "cpu" else torch.cuda.get_device_name()
    return MeasuredLayers(forward_s, backward_s, optimizer_s, slowdown, named, REPEATS)


def _device_of(model: Any) -> str:
    kinds = {parameter.device.type for parameter in model.parameters()}
    odd, text = kinds - {"cpu", "cuda"} or len(kinds) != 1, " and ".join(sorted(kinds))
    refuse_if(
        odd, "measure", f"a module on {text}", "a module on one CPU or GPU, with real parameters"
    )
    return str(kinds.pop())


def _autocast(precision: str | None, device: str) -> Any:
    import torch

    dtypes = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}
    refuse_if(precision not in dtypes, "autocast", repr(precision), "'bf16' or 'fp16'")
    return torch.autocast(device, dtypes[precision]) if precision else nullcontext()


def _synchronize(device: str) -> None:
    import torch

    getattr(torch, device).synchronize()  # also of a CPU, where it does nothing


def _timed(run: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds that a call takes on the device, and what it returns."""
    _synchronize(device)
    begin = time.perf_counter()
    value = run()
    _synchronize(device)
    return time.perf_counter() - begin, value


def _total_times(model: Any, batch: Any, loss: Loss, device: str) -> tuple[float, float]:
    """Median seconds of forward and of backward, without any recording."""
    times: list[tuple[float, float]] = []
    for _ in range(WARM_UP + REPEATS):
        model.zero_grad(set_to_none=True)
        forward_s, value = _timed(partial(loss, model, batch), device)
        times.append((forward_s, _timed(value.backward, device)[0]))
    forward, backward = zip(*times[WARM_UP:], strict=True)
    return statistics.median(forward), statistics.median(backward)


def _layer_shares(
    model: Any, batch: Any, loss: Loss, names: Sequence[str], device: str
) -> tuple[list[float], list[float]]:
    """Shares of forward and of backward that each layer takes, the medians of several steps."""
    shares = []
    for _ in range(REPEATS):
        trace = trace_step(model, batch, loss, precision="own", real=True, clock=_clock(device))
        _synchronize(device)
        groups = group_layers(trace)
        own = [group.name for group in groups]
        differing = next((a for a, b in zip(own, names, strict=False) if a != b), "their number")
        text = f"layers on {device} that are not those captured ({differing})"
        refuse_if(own != list(names), "measure", text, "real=True, which captures real tensors")
        layers = layer_of_place(groups)
        marks = (trace.forward_marks, trace.backward_marks)
        shares.append([_by_layer(each, layers, len(groups), device) for each in marks])
    forward, backward = map(_median_shares, zip(*shares, strict=True))
    return forward, backward


def _clock(device: str) -> Callable[[], Any]:
    if device != "cuda":
        return time.perf_counter
    import torch

    def record() -> Any:
        make: Callable[..., Any] = torch.cuda.Event
        event = make(enable_timing=True)
        event.record()
        return event

    return record


def _by_layer(
    marks: Sequence[tuple[int, Any]], layers: Mapping[int, int], count: int, device: str
) -> list[float]:
    """Seconds of each layer: from the begin of each of its operators to that of the next."""
    seconds = [0.0] * count
    for (place, begin), (_, end) in pairwise(marks):
        took = begin.elapsed_time(end) / 1e3 if device == "cuda" else end - begin
        seconds[layers.get(place, count - 1)] += took
    return seconds


def _median_shares(runs: Sequence[Sequence[float]]) -> list[float]:
    medians = [statistics.median(times) for times in zip(*runs, strict=True)]
    return [each / (sum(medians) or 1.0) for each in medians]


def _optimizer_s(model: Any, make: Callable[..., Any], device: str) -> float:
    """Median seconds of a step of the optimizer on copies of the trained parameters."""
    import torch

    copies = [
        torch.nn.Parameter(parameter.detach().clone())
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    for copied in copies:
        copied.grad = torch.full_like(copied, 1e-3)
    optimizer = make(copies)
    times = [_timed(optimizer.step, device)[0] for _ in range(WARM_UP + REPEATS)]
    return statistics.median(times[WARM_UP:])


def _slowdown(model: Any, batch: Any, loss: Loss, device: str, alone_s: float) -> float | None:
    """Time of forward and backward beside all-reduces over that without; None without a group.

    All ranks of the group call this at once, as they do everything else.
    """
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return None
    sent = torch.zeros(COMMUNICATED_ELEMENTS, device=device)
    times = []
    for _ in range(REPEATS):
        with _all_reduces(sent, alone_s, device):
            times.append(_step_s(model, batch, loss, device))
    return statistics.median(times) / alone_s


def _step_s(model: Any, batch: Any, loss: Loss, device: str) -> float:
    """Seconds of forward and backward, whatever else the device does."""
    begin = time.perf_counter()
    loss(model, batch).backward()
    if device == "cuda":
        import torch

        torch.cuda.current_stream().synchronize()
    return time.perf_counter() - begin


@contextmanager
def _all_reduces(sent: Any, at_least_s: float, device: str) -> Iterator[None]:
    """Keep the process group busy for longer than a step takes, by rank 0's measure."""
    import torch
    import torch.distributed as dist

    alone_s, _ = _timed(partial(dist.all_reduce, sent), device)
    each_s = torch.tensor([alone_s, at_least_s], device=device)
    dist.broadcast(each_s, 0)
    works = [
        dist.all_reduce(sent, async_op=True)
        for _ in range(int(2 * float(each_s[1]) / max(float(each_s[0]), 1e-6)) + 1)
    ]
    yield
    for work in works:
        work.wait()
