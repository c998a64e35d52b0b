"""Record one step: forward, loss and backward of a module, operator by operator.

Autograd numbers what it will run backward in the order of forward, and runs it from the last number
to the first, so that a number ties an operator of backward to that of forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from perfmodel.capture.trace.device_kernels import data_fault, device_kernels
from perfmodel.capture.trace.fake_module import (
    fake_tensors,
    to_fake,
    training_mode,
    without_checkpoints,
)
from perfmodel.capture.trace.operators import (
    CONVOLUTIONS,
    FREE,
    PRODUCTS,
    Operator,
    base_name,
    gradient_flops,
    make_attention,
    make_operator,
    moved_bytes,
    tensors_in,
)
from perfmodel.errors import Fault, InputError
from perfmodel.workload.kernels.shapes import Attention

Precision = Literal["own", "fp32", "bf16", "autocast"]
"""Of parameters and inputs: as they are, all of them in one data type, or fp32 under autocast."""

Loss = Callable[[Any, Any], Any]
"""From the module called with the batch, and the batch, to a scalar."""


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """A storage that autograd keeps for backward.

    `place`: index of the operator that keeps it.
    """

    place: int
    nbytes: float
    dtype: str
    is_floating: bool


@dataclass(slots=True)
class StepTrace:
    """What one step did.

    Parameters
    ----------
    operators : list of Operator
        Kernels of forward and of the loss, in order.
    kept : list of KeptTensor
        Storages kept for backward, without parameters and buffers.
    ready : list of str
        Parameters in the order in which their gradients were complete.
    output_elements : int
        Elements of the module's output.
    kept_storages : list of int
        Identities of the storages kept, as operators name them.
    checkpoints : int
        Calls of ``torch.utils.checkpoint``, which ran as plain calls.
    """

    operators: list[Operator] = field(default_factory=list)
    kept: list[KeptTensor] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    output_elements: int = 0
    checkpoints: int = 0
    kept_storages: list[int] = field(default_factory=list)


def trace_step(
    module: Any, batch: Any, loss: Loss, *, precision: Precision, real: bool = False
) -> StepTrace:
    """Run one step on fake tensors, or where the module is, and record it.

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
        if real:
            named = stack.enter_context(_kept_state(module))
        else:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            named = stack.enter_context(fake_tensors(module, dtype))
            batch = to_fake(batch, dtype)
        stack.enter_context(training_mode(module))
        calls = stack.enter_context(without_checkpoints())
        stack.enter_context(torch.enable_grad())
        _record(
            trace, module, batch, loss, named, autocast=precision == "autocast", real=real
        )
        trace.checkpoints = len(calls)
    return trace


@contextmanager
def _kept_state(module: Any) -> Iterator[dict[str, Any]]:
    """Let a real step leave no traces: gradients and buffers are put back."""
    named = dict(module.named_parameters())
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
    trace: StepTrace, module: Any, batch: Any, loss: Loss, named: dict[str, Any], *,
    autocast: bool, real: bool,
) -> None:  # fmt: skip
    import torch

    recorder = _Recorder(trace, module, named, real=real)
    handles = [
        parameter.register_post_accumulate_grad_hook(
            lambda _gradient, name=name: trace.ready.append(name)
        )
        for name, parameter in named.items()
        if parameter.requires_grad
    ]
    if not handles:
        raise InputError(Fault("model", "no parameter that requires a gradient", "at least one"))
    try:
        with _reported_errors(), _module_paths(module, recorder), recorder.mode():
            with (
                torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor),
                device_kernels(recorder.add_attention, recorder.own_cast, autocast=autocast),
            ):
                value = loss(module, batch)
            recorder.in_backward = True
            _require_scalar(value)
            value.backward()
    finally:
        for handle in handles:
            handle.remove()
    trace.output_elements = recorder.output_elements


def _require_scalar(value: Any) -> None:
    import torch

    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        text = f"{type(value).__name__} of shape {tuple(getattr(value, 'shape', ()))}"
        allowed = "a function that returns a scalar tensor, from the output (and the target)"
        raise InputError(Fault("loss", text, allowed))
    if not value.requires_grad:
        raise InputError(
            Fault("loss", "a value that no gradient flows from", "a loss of trained parameters")
        )


@contextmanager
def _reported_errors() -> Iterator[None]:
    """Turn what a module raises on fake tensors into faults that say what to do."""
    from torch._subclasses import fake_tensor

    wanted = (
        fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException,
    )  # fmt: skip
    try:
        yield
    except InputError:
        raise
    except wanted as error:
        raise data_fault("model", f"{error} {_place_of(error)}") from None
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if "data-dependent" in str(error) or "item()" in str(error):
            raise data_fault("model", f"{lines[0]} {_place_of(error)}") from None
        text = f"{type(error).__name__}: {lines[0]} {_place_of(error)}"
        allowed = "a model that runs with this batch: model(*batch) or model(**batch)"
        raise InputError(Fault("model", text, allowed)) from error


def _place_of(error: BaseException) -> str:
    """Line of the user's own code that raised, as `(file.py:12)`."""
    import traceback
    from pathlib import Path

    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames
        if "/torch/" not in frame.filename and "/perfmodel/capture/" not in frame.filename
    ]  # fmt: skip
    return f"({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


@contextmanager
def _module_paths(module: Any, recorder: _Recorder) -> Iterator[None]:
    """Tell the recorder which module runs."""
    handles = []
    for name, part in module.named_modules():
        def enter(_part: Any, _args: Any, name: str = name) -> None:
            recorder.paths.append(name)

        def leave(_part: Any, _args: Any, output: Any, name: str = name) -> None:
            recorder.paths.pop()
            if not name:
                recorder.note_output(output)

        handles.append(part.register_forward_pre_hook(enter))
        handles.append(part.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Recorder:
    """Collects operators, kept tensors and paths while a step runs."""

    def __init__(
        self, trace: StepTrace, module: Any, named: dict[str, Any], *, real: bool
    ) -> None:
        self.trace = trace
        self.paths: list[str] = [""]
        self.in_backward = False
        self.output_elements = 0
        self.places: dict[int, int] = {}  # operator by autograd's number
        self.owners = {
            parameter.untyped_storage()._cdata: name for name, parameter in named.items()
        }
        self.own = set(self.owners) | {
            buffer.untyped_storage()._cdata for buffer in module.buffers()
        }
        self.held: dict[int, Any] = {}
        self.alive: list[Any] = []  # storages stay, so that their identity does
        self.keeps_all = not real

    def owner(self, tensor: Any) -> str | None:
        """Name of the parameter that a tensor is, or is a view of."""
        return self.owners.get(tensor.untyped_storage()._cdata)

    def note_output(self, output: Any) -> None:
        """Count the elements of the module's output."""
        values = output
        if hasattr(output, "logits"):
            values = output.logits
        elif hasattr(output, "to_tuple"):
            values = list(output.to_tuple())
        self.output_elements = sum(each.numel() for each in tensors_in(values))

    def own_cast(self, tensor: Any) -> None:
        """Leave the copy of a parameter in half precision out of what is kept."""
        storage = tensor.untyped_storage()
        self.own.add(storage._cdata)
        self.alive.append(storage)

    def pack(self, tensor: Any) -> Any:
        """Note a tensor that autograd keeps."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.own and storage._cdata not in self.held:
            self.held[storage._cdata] = storage
            self.trace.kept_storages.append(storage._cdata)
            number = _number()
            self.trace.kept.append(
                KeptTensor(
                    self.places.get(number, len(self.trace.operators)), float(storage.nbytes()),
                    str(tensor.dtype).removeprefix("torch."), tensor.is_floating_point(),
                )
            )  # fmt: skip
        return tensor

    def add_attention(
        self, shape: Attention, nbytes: float, dropout: bool, needs_gradient: bool
    ) -> None:
        """Note a fused attention of forward; its own allocations are no kernels."""
        self._append(
            make_attention(
                self.paths[-1], shape, nbytes, dropout=dropout, needs_gradient=needs_gradient
            ),
            _number() + 1,
        )

    def _append(self, operator: Operator, number: int) -> None:
        self.places.setdefault(number, len(self.trace.operators))
        self.trace.operators.append(operator)

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note an operator."""
        name = base_name(func)
        if func.namespace == "prim" or name in FREE:
            return
        if self.in_backward:
            self._note_backward(name, args, kwargs, out)
            return
        operator = make_operator(name, self.paths[-1], args, kwargs, out, self.owner)
        self._append(operator, _number())
        if self.keeps_all:
            self.alive += [tensor.untyped_storage() for tensor in tensors_in(out)]

    def _note_backward(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        import torch

        node = torch._C._current_autograd_node()
        place = None if node is None else self.places.get(node._sequence_nr())
        if place is None:
            return
        forward = self.trace.operators[place]
        forward.backward_bytes += moved_bytes(name, args, kwargs, out)
        if name in PRODUCTS or name in CONVOLUTIONS or name == "convolution_backward":
            forward.backward_flops += gradient_flops(name, args, forward)

    def mode(self) -> Any:
        """Make the mode below autograd."""
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder = self

        class Recording(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
            """Runs each operator and notes it."""

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                out = func(*args, **(kwargs or {}))
                recorder.note(func, args, kwargs or {}, out)
                return out

        return Recording()


def _number() -> int:
    """Autograd's number of what runs now."""
    import torch

    return int(torch.autograd._get_sequence_nr()) - 1  # type: ignore[attr-defined,unused-ignore]
