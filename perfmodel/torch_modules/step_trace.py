"""Run one step of a module, forward, loss and backward, and record it operator by operator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.torch_modules.device_kernels import data_fault, device_kernels, real_kernels
from perfmodel.torch_modules.fake_module import (
    fake_tensors,
    own_attributes,
    plain_parts,
    to_fake,
    training_mode,
)
from perfmodel.torch_modules.step_recorder import StepRecorder, StepTrace
from perfmodel.torch_modules.wrapped_module import hooks, plain_name

Precision = Literal["own", "fp32", "bf16", "autocast"]
"""Of parameters and inputs: as they are, all of them in one data type, or fp32 under autocast."""

NEEDS_VALUES = ("data-dependent", "item()", ".numpy()", "no fake impl")
"""Parts of what PyTorch says where fake tensors will not do, and real ones may."""

Loss = Callable[[Any, Any], Any]
"""From the module called with the batch, and the batch, to a scalar."""


def trace_step(
    module: Any,
    batch: Any,
    loss: Loss,
    *,
    precision: Precision,
    real: bool = False,
    clock: Callable[[], Any] | None = None,
) -> StepTrace:
    """Run one step on fake tensors, or where the module is, and record it.

    `clock`: notes the time, of a step that is timed.

    Raises
    ------
    InputError
        The module cannot run, needs values of tensors, or has no loss that a gradient flows from.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    dtype = {"own": None, "bf16": torch.bfloat16}.get(precision, torch.float32)
    trace = StepTrace()
    with ExitStack() as stack:
        stack.enter_context(plain_parts(module, trace.remarks, real=real))
        if real:
            named = stack.enter_context(kept_state(module))
        else:
            stack.enter_context(own_attributes(module))
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            named = stack.enter_context(fake_tensors(module, dtype))
            batch = to_fake(batch, dtype)
        stack.enter_context(training_mode(module))
        _record(
            trace,
            module,
            batch,
            loss,
            named,
            autocast=precision == "autocast",
            real=real,
            clock=clock,
        )
    return trace


@contextmanager
def kept_state(module: Any) -> Iterator[dict[str, Any]]:
    """Let a real step leave no traces: gradients and buffers are put back."""
    named = {plain_name(name): each for name, each in module.named_parameters()}
    gradients = {name: parameter.grad for name, parameter in named.items()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    for parameter in named.values():
        parameter.grad = None
    try:
        yield named
    finally:
        for name, parameter in named.items():
            parameter.grad = gradients[name]
        for buffer, copied in buffers:
            buffer.data.copy_(copied)


def _record(
    trace: StepTrace,
    module: Any,
    batch: Any,
    loss: Loss,
    named: dict[str, Any],
    *,
    autocast: bool,
    real: bool,
    clock: Callable[[], Any] | None,
) -> None:
    import torch

    recorder = StepRecorder(trace, module, named, real=real, clock=clock)
    handles = [
        parameter.register_post_accumulate_grad_hook(
            lambda _gradient, name=name: trace.ready.append(name)
        )
        for name, parameter in named.items()
        if parameter.requires_grad
    ]
    refuse_if(not handles, "model", "no parameter that requires a gradient", "at least one")
    kernels = (
        real_kernels(recorder.real_attention)
        if real
        else device_kernels(recorder.add_attention, recorder.own_cast, autocast=autocast)
    )
    with hooks(handles), _reported_errors(), _module_paths(module, recorder), recorder.mode():
        with (
            torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor),
            kernels,
        ):
            value = loss(module, batch)
        _require_scalar(value)
        recorder.mark(trace.forward_marks, -1)
        recorder.in_backward = True
        value.backward()
        recorder.mark(trace.backward_marks, -1)


def _require_scalar(value: Any) -> None:
    import torch

    refuse_if(
        not (isinstance(value, torch.Tensor) and value.numel() == 1),
        "loss",
        f"a value of shape {tuple(getattr(value, 'shape', ()))}",
        "a function that returns a scalar tensor, from the output (and the target)",
    )
    refuse_if(
        not value.requires_grad,
        "loss",
        "a value that no gradient flows from",
        "a loss of trained parameters",
    )


@contextmanager
def _reported_errors() -> Iterator[None]:
    """Turn what a module raises on fake tensors into faults that say what to do."""
    from torch._subclasses import fake_tensor

    data_errors = (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException,
    )
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what fails is in the fault
    try:
        yield
    except InputError:
        raise
    except data_errors as error:
        text = f"control flow that asks for the value of a tensor ({error}) {_place_of(error)}"
        raise data_fault("model", text) from None
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if any(word in str(error) for word in NEEDS_VALUES):
            raise data_fault("model", f"{lines[0]} {_place_of(error)}") from None
        text = f"{type(error).__name__}: {lines[0]} {_place_of(error)}"
        allowed = (
            "scaled_dot_product_attention in its place: with is_causal=True where it is"
            if "FlexAttention" in str(error)
            else "a model that runs with this batch: model(*batch), model(**batch) or model(batch);"
            " a target beside the inputs goes with loss="
        )
        raise InputError(Fault("model", text, allowed)) from error
    finally:
        logger.setLevel(level)


def _place_of(error: BaseException) -> str:
    """Line of the user's own code that raised, as `(file.py:12)`."""
    import traceback
    from pathlib import Path

    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/torch/" not in frame.filename and "/perfmodel/torch_modules/" not in frame.filename
    ]
    return f"({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


@contextmanager
def _module_paths(module: Any, recorder: StepRecorder) -> Iterator[None]:
    """Tell the recorder which module runs."""

    def enter(name: str, _part: Any, _args: Any) -> None:
        recorder.paths.append(name)

    def leave(_part: Any, _args: Any, output: Any) -> None:
        if not recorder.paths.pop():
            recorder.note_output(output)

    handles = [
        handle
        for name, part in module.named_modules()
        for handle in (
            part.register_forward_pre_hook(partial(enter, plain_name(name))),
            part.register_forward_hook(leave, always_call=True),
        )
    ]
    with hooks(handles):
        yield
