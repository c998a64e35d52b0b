"""Record real steps of DistributedDataParallel: its own logging data, and when gradients get ready.

PyTorch times forward, backward and communication of the steps that it samples; here it samples all
of them. Hooks note when the gradient of each parameter is complete.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from perfmodel.errors import refuse_if
from perfmodel.torch_modules.capture import Capture, with_times
from perfmodel.torch_modules.layer_timer import MeasuredLayers
from perfmodel.torch_modules.wrapped_module import hooks, plain_name
from perfmodel.units import format_bytes, format_time

NANOSECOND_S = 1e-9
"""Unit of DDP's logging data."""

LOGGED_TIMES = {
    "forward_s": "forward_compute_time",
    "backward_s": "backward_compute_time",
    "communication_s": "backward_comm_time",
    "overlap_s": "backward_compute_comm_overlap_time",
}
"""Times of a step, and what DDP's logging data call them."""

FIRST_STEPS = 2
"""Steps before buckets are rebuilt and memory is allocated, which do not count."""


@dataclass(slots=True)
class RecordedStep:
    """One step; seconds.

    `begin_s`: of its forward, on the clock of the process.
    `forward_s`, `backward_s`: compute, as DDP times it: backward until the last gradient is ready.
    `communication_s`, `overlap_s`: of all-reduces, and the part of it beside backward.
    `ready_s`: by parameter, in the order in which gradients got ready, since backward began.
    `step_s`: until the next forward began, of training or not, or the recording ended.
    """

    begin_s: float
    forward_s: float = 0.0
    backward_s: float = 0.0
    communication_s: float = 0.0
    overlap_s: float = 0.0
    ready_s: dict[str, float] = field(default_factory=dict)
    step_s: float = 0.0

    @property
    def rest_s(self) -> float:
        """Beyond forward, backward and the part of all-reduces behind it."""
        exposed_s = max(0.0, self.communication_s - self.overlap_s)
        return max(0.0, self.step_s - self.forward_s - self.backward_s - exposed_s)


@dataclass(slots=True)
class RecordedSteps:
    """Steps of a real training on this rank.

    Parameters
    ----------
    steps : list of RecordedStep
        In order, the first ones included.
    logging_data : dict
        What ``_get_ddp_logging_data`` said last.
    """

    steps: list[RecordedStep] = field(default_factory=list)
    logging_data: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Ranks of the process group."""
        return int(self.logging_data.get("world_size", 1))

    @property
    def backend(self) -> str:
        """Backend of the process group, as DDP names it."""
        return str(self.logging_data.get("backend_name", ""))

    @property
    def bucket_bytes(self) -> tuple[int, ...]:
        """Bytes of the buckets that DDP reduces in the steady state, in order of reduction."""
        said = self.logging_data
        sizes = str(said.get("rebuilt_bucket_sizes") or said.get("bucket_sizes", ""))
        return tuple(int(word) for word in sizes.replace(",", " ").split() if word.isdigit())

    @property
    def steady(self) -> list[RecordedStep]:
        """Steps after the first ones."""
        return self.steps[FIRST_STEPS:]

    @property
    def step_s(self) -> float:
        """Median time of a step."""
        return self.median("step_s")

    @property
    def rest_s(self) -> float:
        """Median of what a step takes beyond forward, backward and exposed all-reduces."""
        return self.median("rest_s")

    @property
    def ready_order(self) -> tuple[str, ...]:
        """Parameters in the order in which their gradients got ready in the last step."""
        return tuple(self.steps[-1].ready_s) if self.steps else ()

    def median(self, name: str) -> float:
        """Median of a field of the steps after the first ones; seconds."""
        self._require_steps()
        return float(statistics.median(getattr(step, name) for step in self.steady))

    def _require_steps(self) -> None:
        refuse_if(
            not self.steady,
            "record_steps",
            f"{len(self.steps)} steps, of which the first {FIRST_STEPS} do not count",
            f"{FIRST_STEPS + 1} steps or more inside of record_steps",
        )

    def __repr__(self) -> str:
        if not self.steady:
            return f"<RecordedSteps: {len(self.steps)} of {self.ranks} ranks>"
        return (
            f"<RecordedSteps: {len(self.steps)} of {self.ranks} ranks over {self.backend}, median "
            f"{format_time(self.step_s)}: forward {format_time(self.median('forward_s'))}, "
            f"backward {format_time(self.median('backward_s'))}, all-reduces "
            f"{format_time(self.median('communication_s'))}, of which beside backward "
            f"{format_time(self.median('overlap_s'))}; buckets "
            f"{', '.join(map(format_bytes, self.bucket_bytes))}>"
        )

    def apply(self, captured: Capture) -> Capture:
        """Return the capture of the same module with the times of these steps, to be saved.

        Backward of a layer ends when the last gradient of its parameters is ready. Forward, which
        no hook sees inside, is shared as it was measured, or else as backward is; so is backward
        among the layers between two that have parameters. What is left of a step beside exposed
        all-reduces (optimizer, the loss, the next batch) counts as optimizer.

        Raises `InputError`: too few steps, or parameters that are not those of the capture.
        """
        self._require_steps()
        names = {
            name for layer in captured.document["layers"] for name in layer.get("parameters", ())
        }
        for step in self.steady:
            differing = sorted(names ^ set(step.ready_s))[:3]
            refuse_if(
                differing,
                "captured",
                f"parameters that one of both has alone: {', '.join(differing)}",
                "a capture of the module inside of DDP",
            )
        backward_s = self._backward_by_layer(captured)
        weights = captured.measured.forward_s if captured.measured else backward_s
        whole = sum(weights) or 1.0
        times = MeasuredLayers(
            tuple(self.median("forward_s") * weight / whole for weight in weights),
            tuple(backward_s),
            self.rest_s,
            None,
            f"{self.ranks} ranks over {self.backend}",
            len(self.steady),
        )
        timed = with_times(captured, times)
        return replace(timed, notes=(*timed.notes, f"Recorded: {repr(self).strip('<>')}."))

    def _backward_by_layer(self, captured: Capture) -> list[float]:
        """Median seconds of the backward of each layer, which sum up to that of DDP."""
        layers = captured.document["layers"]
        # among layers whose end no hook sees: as they were measured, or by their work
        shares = (
            captured.measured.backward_s
            if captured.measured
            else [each.matmul_flops + each.vector_bytes + 1.0 for each in captured.workload.layers]
        )
        seconds, before_s = [0.0] * len(layers), 0.0
        waiting: list[int] = []
        for index in reversed(range(len(layers))):
            waiting.append(index)
            names = layers[index].get("parameters", ())
            if not names:
                continue
            ready_s = max(
                statistics.median(step.ready_s[name] for step in self.steady) for name in names
            )
            took_s = max(0.0, ready_s - before_s)
            whole = sum(shares[each] for each in waiting) or 1.0
            for each in waiting:
                seconds[each] += took_s * shares[each] / whole
            before_s, waiting = max(before_s, ready_s), []
        scale = self.median("backward_s") / (sum(seconds) or 1.0)
        return [each * scale for each in seconds]


@contextmanager
def record_steps(ddp_model: Any) -> Iterator[RecordedSteps]:
    """Record the steps that run inside of the context.

    Parameters
    ----------
    ddp_model : torch.nn.parallel.DistributedDataParallel

    Yields
    ------
    RecordedSteps
        Complete when the context ends; `apply` puts its times into a capture.

    Raises
    ------
    InputError
        The module is not wrapped in DistributedDataParallel.
    """
    import torch

    refuse_if(
        not isinstance(ddp_model, torch.nn.parallel.DistributedDataParallel),
        "ddp_model",
        type(ddp_model).__name__,
        "a module in torch.nn.parallel.DistributedDataParallel",
    )
    recorded = RecordedSteps()
    watch = _Watch(ddp_model, recorded)
    set_rate: Callable[[int], None] = ddp_model._set_ddp_runtime_logging_sample_rate
    set_rate(1)
    handles = [
        ddp_model.register_forward_pre_hook(watch.begin),
        ddp_model.register_forward_hook(watch.end_forward),
        *(
            parameter.register_post_accumulate_grad_hook(partial(watch.ready, plain_name(name)))
            for name, parameter in ddp_model.module.named_parameters()
            if parameter.requires_grad
        ),
    ]
    with hooks(handles):
        yield recorded
        watch.close()


class _Watch:
    """Notes what hooks see."""

    def __init__(self, ddp_model: Any, recorded: RecordedSteps) -> None:
        self.ddp_model = ddp_model
        self.recorded = recorded
        self.cuda = any(parameter.is_cuda for parameter in ddp_model.parameters())
        self.backward_began_s = 0.0

    def begin(self, _module: Any, _inputs: Any) -> None:
        """Note the begin of a step, or of a forward without gradients: it ends the step before."""
        import torch

        self._complete()
        if torch.is_grad_enabled():
            self.recorded.steps.append(RecordedStep(self._now()))

    def end_forward(self, _module: Any, _inputs: Any, _output: Any) -> None:
        """Note the end of forward, unless it is one of a validation in between."""
        import torch

        if not torch.is_grad_enabled():
            return
        step = self.recorded.steps[-1]
        self.backward_began_s = self._now()
        step.forward_s = self.backward_began_s - step.begin_s

    def ready(self, name: str, _parameter: Any) -> None:
        """Note when the gradient of a parameter is complete."""
        self.recorded.steps[-1].ready_s[name] = time.perf_counter() - self.backward_began_s

    def _now(self) -> float:
        if self.cuda:
            import torch

            torch.cuda.synchronize()
        return time.perf_counter()

    def _complete(self) -> None:
        """Read what DDP has logged of the last step."""
        if not self.recorded.steps or self.recorded.steps[-1].step_s:
            return
        step, logged = self.recorded.steps[-1], self.ddp_model._get_ddp_logging_data()
        step.step_s = self._now() - step.begin_s
        for field_name, key in LOGGED_TIMES.items():
            if logged.get(key, 0) > 0:
                setattr(step, field_name, NANOSECOND_S * logged[key])

    def close(self) -> None:
        """Note the end of the last step, and what DDP says of itself."""
        self._complete()
        self.recorded.logging_data = dict(self.ddp_model._get_ddp_logging_data())
