"""Capture a module: its tensors, the work of its layers, what they keep, the order of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, raise_faults, refuse_if, require_installed
from perfmodel.files import validate_document, write_atomically
from perfmodel.memo import grouped
from perfmodel.topology.from_text.gpu_text import read_gpu
from perfmodel.torch_modules.layer_groups import LayerGroup, group_layers, write_document
from perfmodel.torch_modules.layer_timer import MeasuredLayers, measure_layers
from perfmodel.torch_modules.layer_work import escaping_storages, kept_by_layers, layer_fields
from perfmodel.torch_modules.operators import Operator
from perfmodel.torch_modules.step_recorder import StepTrace
from perfmodel.torch_modules.step_trace import Precision, trace_step
from perfmodel.torch_modules.wrapped_module import (
    describe_sample,
    inner_module,
    loss_function,
    plain_name,
    sample_count,
)
from perfmodel.workload.memory.blocks import block_of
from perfmodel.workload.model import Workload
from perfmodel.workload.readers.parameter_file import make_workload
from perfmodel.workload.readers.spec import ModelSpec

DTYPES: Mapping[str, str] = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int64": "int64",
    "int32": "int32",
    "int8": "int8",
    "uint8": "uint8",
    "bool": "uint8",
}
"""Words of model files for torch's data types; bytes count for those that have none."""


@dataclass(frozen=True)
class Capture:
    """A captured model: `workload` as every command takes it, `save` to edit and name it in a file.

    Parameters
    ----------
    document : dict
        The model file, field by field.
    operators : tuple of Operator
        Every kernel of forward and of the loss in the order in which it ran, with the operations
        and bytes of backward that belong to it; of the whole batch.
    ready_order : tuple of str
        Parameters in the order in which backward completes their gradients.
    batch : int
        Samples of the batch that was captured.
    notes : tuple of str
        What is assumed, in sentences.
    measured : MeasuredLayers, optional
        Times of layers, where they were measured.
    """

    document: dict[str, Any]
    operators: tuple[Operator, ...]
    ready_order: tuple[str, ...]
    batch: int
    notes: tuple[str, ...] = ()
    measured: MeasuredLayers | None = None

    @property
    def name(self) -> str:
        """Name of the model."""
        return str(self.document["name"])

    @cached_property
    def workload(self) -> Workload:
        """The model as a file of it is read."""
        read = make_workload(
            validate_document(ModelSpec, self.document, self.name),
            f"captured {self.name}",
            self.name,
        )
        return replace(read, notes=(*read.notes, *self.notes))

    @property
    def forward_flops(self) -> float:
        """Operations of matrix kernels of forward, of one sample."""
        return sum(operator.flops for operator in self.operators) / self.batch

    @property
    def backward_flops(self) -> float:
        """Those of backward."""
        return sum(operator.backward_flops for operator in self.operators) / self.batch

    def save(self, path: Path | str) -> Path:
        """Write the model file, and return its path: ``model: {file: mymodel.yaml}``."""
        path = Path(path)
        odd = path.suffix.lower() not in {".yaml", ".yml"}
        refuse_if(odd, "path", repr(str(path)), "a file ending in .yaml")
        comments = [
            f"{self.name}, captured from a module; use: model: {{file: this file}}",
            "Work and what is kept are per sample; sizes at 4 bytes per element but for `fixed`.",
            *self.notes,
        ]
        write_atomically(path, write_document(self.document, comments))
        return path

    def __repr__(self) -> str:
        workload = self.workload
        elements = sum(layer.saved_elements + layer.stream_elements for layer in workload.layers)
        text = (
            f"<Capture of {self.name}: {workload.parameters:,} parameters in "
            f"{len(workload.tensors)} tensors, {len(workload.layers)} layers, "
            f"{self.forward_flops:.4g} FLOP forward and {elements:.4g} elements kept per "
            f"{workload.sample}>"
        )
        return "\n".join([text, *(f"  note: {note}" for note in self.notes)])


def capture(
    model: Any,
    batch: Any,
    *,
    loss: Callable[..., Any] | None = None,
    name: str | None = None,
    samples: int | None = None,
    sample: str | None = None,
    real: bool = False,
    measure: bool = False,
    optimizer: Callable[..., Any] | None = None,
    autocast: str | None = None,
) -> Capture:
    """Capture a module of PyTorch as a model that every command takes.

    Forward, loss and backward run once on fake tensors, which have no memory: a model on the meta
    device will do, and no GPU is needed. Parameters, buffers and gradients stay as they are.

    Parameters
    ----------
    model : torch.nn.Module
        Of one in torch.compile, DataParallel or DistributedDataParallel, the module inside; one
        that is sharded already is refused.
    batch : tensor, tuple, dict or dataclass
        A tuple is given as positional arguments, a dict or a dataclass by name, or whole to a
        forward that has one argument. With `loss`, a pair is (inputs, target). Shapes and data
        types alone are looked at.
    loss : callable, optional
        From output (and target, of a pair) to a scalar. Without it the module returns one, or an
        object or dict with `loss`, as those of transformers with labels; else the sum of its
        outputs stands in.
    name : str, optional
        Of the model; its class, if not given.
    samples : int, optional
        In the batch; the first dimension of its first tensor, if not given.
    sample : str, optional
        What one sample is ("image", "sequence of 512 tokens").
    real : bool
        Run on real tensors, where the model is: for control flow that depends on data.
    measure : bool
        Also time forward and backward of each layer on the device where the model is: real steps,
        after which gradients and buffers are as before. In a process group all ranks measure at
        once, and compute beside an all-reduce, too.
    optimizer : callable, optional
        Makes an optimizer from parameters, such as torch.optim.AdamW; measured on copies.
    autocast : {"bf16", "fp16"}, optional
        Of the measured steps. Work and what is kept are captured for every precision.

    Returns
    -------
    Capture

    Raises
    ------
    InputError
        The module does not run with this batch, needs values of tensors, or trains nothing.
    ExecutorUnavailable
        torch is not installed.

    Examples
    --------
    >>> import torch, perfmodel  # doctest: +SKIP
    >>> toy = torch.nn.Linear(8, 4), torch.zeros(2, 8)  # doctest: +SKIP
    >>> perfmodel.capture(*toy, name="toy").workload.parameters  # doctest: +SKIP
    36
    """
    require_installed("torch", CAPTURING)
    timed, model = model, inner_module(model, real=real or measure)
    count = sample_count(batch) if samples is None else samples
    odd = not isinstance(count, int) or isinstance(count, bool) or count < 1
    refuse_if(odd, "samples", repr(count), "a whole number above zero")
    step = loss_function(loss, batch)
    notes: list[str] = []
    groups, wide = _traced(model, batch, step, "own" if real else "fp32", real=real)
    narrow, autocasted = (
        None if real else _other_precision(model, batch, step, each, notes) for each in PRECISIONS
    )
    notes += [*_join_idle_parameters(model, groups, wide), *_remarks(wide)]
    described, stream = describe_sample(batch), _stream_elements(groups) / count
    document = {
        "perfmodel": 1,
        "kind": "model",
        "name": name or type(model).__name__,
        "sample": sample or str(described),
        "inputs": step.input_elements(batch) / count,
        "outputs": wide.output_elements / count,
        **({"stream": stream} if stream else {}),
        "parameters": list(_parameters(model)),
        "layers": [
            layer_fields(group, each, count, outside)
            for group, each, outside in zip(
                groups,
                kept_by_layers(groups, wide, narrow, autocasted),
                escaping_storages(groups, frozenset(tensor.storage for tensor in wide.kept)),
                strict=True,
            )
        ],
    }
    optional = {"tokens_per_sample": described.tokens, "buffer_groups": _buffers(model)}
    document |= {name: value for name, value in optional.items() if value}
    captured = Capture(document, tuple(wide.operators), tuple(wide.ready), count, tuple(notes))
    if not measure:
        raise_faults(
            Fault(name, repr(value), "nothing without measure=True")
            for name, value in (("optimizer", optimizer), ("autocast", autocast))
            if value is not None
        )
        return captured
    times = measure_layers(
        timed, batch, step, [group.name for group in groups], optimizer=optimizer, autocast=autocast
    )
    return with_times(captured, times, autocast)


PRECISIONS: tuple[Precision, ...] = ("bf16", "autocast")
"""In which the step is traced once more, to tell what it keeps in half precision."""


def _join_idle_parameters(model: Any, groups: Sequence[LayerGroup], trace: StepTrace) -> list[str]:
    """Give parameters without a gradient to the layer whose backward is first; return a note.

    DistributedDataParallel with find_unused_parameters has them ready when backward begins.
    """
    idle = [
        name
        for raw, parameter in model.named_parameters()
        if parameter.requires_grad and (name := plain_name(raw)) not in trace.ready
    ]
    if not idle:
        return []
    groups[-1].parameters[:0] = idle
    names = ", ".join(idle[:3]) + (f" and {len(idle) - 3} more" if len(idle) > 3 else "")
    place = "reduced with those that are ready first, as find_unused_parameters does"
    return [f"No gradient reaches {names}: {place}."]


REMARKS: Mapping[str, str] = {
    "checkpoint": (
        "Checkpoints of the module ran as plain calls: say compute.recompute in the scenario."
    ),
    "mask": (
        "Square masks of torch.nn.Transformer are taken as "
        "causal: capture(..., real=True) "
        "looks at their values."
    ),
    "autocast": "Autocast within the module is left out: say compute.precision in the scenario.",
    "synchronised norm": (
        "SyncBatchNorm ran as BatchNorm: what it sends between GPUs is not counted."
    ),
    "recurrence": "LSTM, GRU and RNN ran step by step: cuDNN runs their steps in fewer kernels.",
}
"""What ran otherwise than the module says."""


def _remarks(trace: StepTrace) -> Iterator[str]:
    """Say what ran otherwise, and which operators are not counted."""
    yield from (sentence for word, sentence in REMARKS.items() if word in trace.remarks)
    if trace.uncounted:
        names = ", ".join(sorted(trace.uncounted))
        yield f"Operations of {names} are not known: their traffic alone counts."


def with_times(captured: Capture, times: MeasuredLayers, autocast: str | None = None) -> Capture:
    """Return the capture with measured times in its file: ``compute: {source: file}``."""
    layers = [
        {**layer, "forward": f"{1e6 * forward_s:.6g} us", "backward": f"{1e6 * backward_s:.6g} us"}
        for layer, forward_s, backward_s in zip(
            captured.document["layers"], times.forward_s, times.backward_s, strict=True
        )
    ]
    document = {
        **captured.document,
        "layers": layers,
        **({} if times.optimizer_s is None else {"optimizer": f"{1e6 * times.optimizer_s:.6g} us"}),
    }
    with suppress(InputError):  # of a GPU that the table lacks: they hold for any machine
        document["device"] = "cpu-process" if times.device == "cpu" else read_gpu(times.device).name
    precision = f" under autocast to {autocast}" if autocast else ""
    notes = [
        *captured.notes,
        (
            f"Times are medians of {times.repeats} steps of {captured.batch} samples on "
            f"{times.device}{precision}: use training.batch_per_gpu: {captured.batch}."
        ),
        *(
            []
            if times.slowdown is None
            else [
                (
                    f"Forward and backward took {times.slowdown:.3g} times as long beside an "
                    "all-reduce."
                )
            ]
        ),
    ]
    return replace(captured, document=document, notes=tuple(notes), measured=times)


CAPTURING = "capturing a module needs PyTorch"
"""What needs torch, in messages."""


def _traced(
    model: Any, batch: Any, step: Any, precision: Precision, *, real: bool = False
) -> tuple[list[LayerGroup], StepTrace]:
    trace = trace_step(model, batch, step, precision=precision, real=real)
    return group_layers(trace), trace


def _other_precision(
    model: Any, batch: Any, step: Any, precision: Precision, notes: list[str]
) -> tuple[list[LayerGroup], StepTrace] | None:
    """Trace in another precision; None, with a note, where the module does not run in it."""
    try:
        return _traced(model, batch, step, precision)
    except InputError as error:
        notes.append(
            f"The module does not run in {precision} ({error.faults[0].found}): what it keeps in "
            "half precision is taken to be half of what it keeps in fp32."
        )
        return None


def _parameters(model: Any) -> Iterator[dict[str, Any]]:
    for name, parameter in model.named_parameters():
        pair = [2] if parameter.is_complex() else []
        has_shape = parameter.dim() and parameter.numel()
        elements = max(1, parameter.numel()) * math.prod(pair)
        yield {
            "name": plain_name(name),
            **({"shape": [*parameter.shape, *pair]} if has_shape else {"numel": elements}),
            "dtype": _dtype_word(parameter),
            **({} if parameter.requires_grad else {"requires_grad": False}),
        }


def _dtype_word(tensor: Any) -> str:
    part = tensor.real if tensor.is_complex() else tensor  # DDP sends pairs of real numbers
    word = str(part.dtype).removeprefix("torch.")
    refuse_if(word not in DTYPES, "model", f"a tensor of {word}", ", ".join(DTYPES))
    return DTYPES[word]


def _buffers(model: Any) -> list[dict[str, Any]]:
    groups = grouped(
        (_dtype_word(buffer), buffer.numel() * buffer.element_size()) for buffer in model.buffers()
    )
    return [
        {"dtype": dtype, "tensors": len(sizes), "size": f"{sum(sizes)} B"}
        for dtype, sizes in groups.items()
        if sum(sizes)
    ]


def _stream_elements(groups: Sequence[LayerGroup]) -> float:
    """Elements that repeated blocks hand on: what the first kernels of all read, if alike."""
    sizes, before = set(), None
    for group in groups:
        block = block_of(group.name)
        if block is not None and block != before and group.operators:
            sizes.add(max(group.operators[0].in_elements, 0))
        before = block
    return float(sizes.pop()) if len(sizes) == 1 else 0.0
