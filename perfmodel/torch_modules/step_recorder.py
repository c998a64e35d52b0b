"""What one step did, and the recorder that notes it below autograd.

Autograd numbers what it will run backward in the order of forward, and runs it from the last number
to the first, so that a number ties an operator of backward to that of forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from perfmodel.torch_modules.device_kernels import describe_attention
from perfmodel.torch_modules.operators import (
    OPERATOR_NAMES,
    Operator,
    base_name,
    gradient_flops,
    kind_of,
    make_attention,
    make_operator,
    tensors_in,
    wide_grouped_product,
)
from perfmodel.workload.kernels.shapes import Attention


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """A storage that autograd keeps for backward.

    `storage`: its identity, as operators name it. `place`: index of the operator that keeps it.
    """

    storage: int
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

    forward_marks, backward_marks : list of tuple
        Of a timed step: an operator of forward and when its kernels, or those of its backward,
        began; last, -1 and the end.
    remarks : set of str
        What ran otherwise than the module says, in words of `fake_module`.
    uncounted : set of str
        Operators whose operations are not known.
    """

    operators: list[Operator] = field(default_factory=list)
    kept: list[KeptTensor] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    output_elements: int = 0
    remarks: set[str] = field(default_factory=set)
    uncounted: set[str] = field(default_factory=set)

    forward_marks: list[tuple[int, Any]] = field(default_factory=list)
    backward_marks: list[tuple[int, Any]] = field(default_factory=list)


class StepRecorder:
    """Collects operators, kept tensors and paths while a step runs."""

    def __init__(
        self,
        trace: StepTrace,
        module: Any,
        named: dict[str, Any],
        *,
        real: bool,
        clock: Callable[[], Any] | None,
    ) -> None:
        self.trace = trace
        self.paths: list[str] = [""]
        self.in_backward = False
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
        self.clock = clock
        self.attention_place: int | None = None  # while kernels of a real attention run

    def owner(self, tensor: Any) -> str | None:
        """Name of the parameter that a tensor is, or is a view of."""
        return self.owners.get(tensor.untyped_storage()._cdata)

    def note_output(self, output: Any) -> None:
        """Count the elements of the module's output."""
        if hasattr(output, "logits"):
            output = output.logits
        elif hasattr(output, "to_tuple"):
            output = list(output.to_tuple())
        self.trace.output_elements = sum(each.numel() for each in tensors_in(output))

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
            self.trace.kept.append(
                KeptTensor(
                    storage._cdata,
                    self.places.get(_number(), len(self.trace.operators)),
                    float(storage.nbytes()),
                    str(tensor.dtype).removeprefix("torch."),
                    tensor.is_floating_point(),
                )
            )
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

    @contextmanager
    def real_attention(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Note an attention that runs on real tensors; its kernels count as one."""
        self.add_attention(*describe_attention(*args, **kwargs))
        self.attention_place = len(self.trace.operators) - 1
        self.mark(self.trace.forward_marks, self.attention_place)
        try:
            yield
        finally:
            self.attention_place = None

    def mark(self, marks: list[tuple[int, Any]], place: int) -> None:
        """Note the time, if it is asked for."""
        if self.clock is not None:
            marks.append((place, self.clock()))

    def before(self, func: Any) -> None:
        """Note when an operator begins."""
        if (
            self.clock is None
            or func.namespace == "prim"
            or base_name(func) in OPERATOR_NAMES["free"]
        ):
            return
        if not self.in_backward:
            if self.attention_place is None:
                self.mark(self.trace.forward_marks, len(self.trace.operators))
        elif (place := self._place_in_backward()) is not None:
            self.mark(self.trace.backward_marks, place)

    def _append(self, operator: Operator, number: int) -> None:
        self.places.setdefault(number, len(self.trace.operators))
        self.trace.operators.append(operator)

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note an operator."""
        name = base_name(func)
        if func.namespace == "prim" or name in OPERATOR_NAMES["free"]:
            return
        if self.in_backward:
            self._note_backward(name, args)
            return
        if self.attention_place is not None:
            self.places.setdefault(_number(), self.attention_place)
            return
        known = func.namespace in OPERATOR_NAMES["counted_namespaces"]
        if not known or name in OPERATOR_NAMES["uncounted"]:
            self.trace.uncounted.add(f"{func.namespace}::{name}")
        self._append(make_operator(name, self.paths[-1], args, kwargs, out, self.owner), _number())
        if self.keeps_all:
            self.alive += [tensor.untyped_storage() for tensor in tensors_in(out)]

    def _note_backward(self, name: str, args: Any) -> None:
        """Count a product of backward for the operator of forward whose backward runs now."""
        place = self._place_in_backward()
        is_product = kind_of(name) == "matrix" or name == "convolution_backward"
        if place is not None and is_product:
            forward = self.trace.operators[place]
            forward.backward_flops += gradient_flops(name, args, forward)

    def _place_in_backward(self) -> int | None:
        """Operator of forward whose backward runs now."""
        import torch

        node = torch._C._current_autograd_node()
        return None if node is None else self.places.get(node._sequence_nr())

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator; on fake tensors a grouped product in fp32, too, which kernels lack."""
        if not self.keeps_all or base_name(func) != "_grouped_mm":
            return func(*args, **kwargs)
        return wide_grouped_product(func, args, kwargs)

    def mode(self) -> Any:
        """Make the mode below autograd."""
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder = self

        class Recording(TorchDispatchMode):  # type: ignore[misc,no-untyped-call,unused-ignore]
            """Runs each operator and notes it."""

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                recorder.before(func)
                out = recorder.run(func, args, kwargs or {})
                recorder.note(func, args, kwargs or {}, out)
                return out

        make: Callable[[], Any] = Recording
        return make()


def _number() -> int:
    """Autograd's number of what runs now."""
    import torch

    return int(torch.autograd._get_sequence_nr()) - 1  # type: ignore[attr-defined,unused-ignore]
