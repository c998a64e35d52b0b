"""A model file from an execution trace: layers by the operators of forward, with their shapes.

Forward is what ran before the first node of autograd, and no other operator called. Gradients that
autograd accumulates have the shapes of the trained parameters, all of them; operators of forward
read tensors of these shapes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.traces.kineto.collective_calls import element_type
from perfmodel.traces.kineto.event_stream import read_events, trace_fault
from perfmodel.workload.readers.fields import TRAINABLE

Storage = tuple[int, int, int]
"""A tensor by its storage, its offset in it and its elements: views of a weight are the weight."""

AUTOGRAD, OPTIMIZER = "autograd::", "Optimizer.step#"
"""How names begin of nodes around backward, and around the optimizer's step."""

ACCUMULATE = "torch::autograd::AccumulateGrad"
"""Node that reads the gradient of a parameter."""

HOW = (
    "an ExecutionTraceObserver that starts before forward and stops after optimizer.step(), of a "
    "module that is not compiled; or the profiler's trace of the step (torch.profiler.profile("
    "record_shapes=True), export_chrome_trace), which has times as well"
)

WEIGHTS: Mapping[str, tuple[int, ...]] = {
    "aten::linear": (1, 2), "aten::conv1d": (1, 2), "aten::conv2d": (1, 2),
    "aten::conv3d": (1, 2), "aten::convolution": (1, 2), "aten::embedding": (0,),
    "aten::layer_norm": (2, 3), "aten::rms_norm": (2,), "aten::batch_norm": (1, 2),
    "aten::group_norm": (2, 3), "aten::scaled_dot_product_attention": (), "aten::addmm": (0, 2),
    "aten::mm": (1,), "aten::matmul": (1,), "aten::bmm": (), "aten::baddbmm": (),
    "aten::mul": (0, 1), "aten::add": (0, 1),
}  # fmt: skip
"""Operators that may be layers, and which of their inputs may be parameters."""
SURELY = ("aten::linear", "aten::conv", "aten::embedding", "aten::layer_norm", "aten::rms_norm",
          "aten::batch_norm", "aten::group_norm")  # fmt: skip
"""Those whose inputs there are always parameters."""


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor that an operator reads."""

    storage: Storage
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator of forward, in the order of calls."""

    number: int
    name: str
    inputs: tuple[TensorInput | None, ...]
    output: tuple[int, ...]
    values: tuple[Any, ...]

    @property
    def weights(self) -> list[TensorInput]:
        """Inputs that may be parameters."""
        places = (self.inputs[at] for at in WEIGHTS[self.name] if at < len(self.inputs))
        return [each for each in places if each and each.shape]


@dataclass
class _Nodes:
    """What is collected of a trace, node by node; an operator ends before what called it."""

    parents: dict[int, tuple[str, int]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    gradients: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def ancestors(self, number: int) -> Iterator[str]:
        """Names of what called a node, from near to far."""
        name, parent = self.parents.get(number, ("", 0))
        steps = 0
        while parent in self.parents and parent != number and steps < len(self.parents):
            name, parent = self.parents[parent]
            steps += 1
            yield name


@dataclass(frozen=True, slots=True)
class ExecutedModel:
    """What a trace says of the model.

    `layers`, `parameters`: as a model file has them; `passes`: forward passes of a step.
    `batch`: samples, by the first size of what the first layer reads.
    `unread`: elements of parameters that have gradients and that no layer was found to read.
    """

    layers: tuple[dict[str, Any], ...]
    parameters: tuple[dict[str, Any], ...]
    optimizer: str
    batch: int
    passes: int
    unread: int = 0

    @property
    def elements(self) -> int:
        """Elements of all parameters."""
        return sum(math.prod(each["shape"]) for each in self.parameters)


def read_executed_model(path: Path, batch: int | None = None) -> ExecutedModel:
    """Read the layers of one rank's step.

    `batch`: samples of a micro-batch, where the first size of the inputs is not that.
    Raises `InputError`: no whole step, or no layer in it.
    """
    nodes = _collect(path)
    first_backward = min(
        (n for n, (name, _) in nodes.parents.items() if name.startswith(AUTOGRAD)), default=None
    )
    if first_backward is None:
        raise trace_fault(path, "no backward pass", HOW)
    steps = sorted(n for n, (name, _) in nodes.parents.items() if name.startswith(OPTIMIZER))
    end = steps[0] if steps else math.inf
    forward = [each for each in nodes.operations
               if each.number < end and _is_of_forward(nodes, each)]  # fmt: skip
    if not forward:
        raise trace_fault(path, "no operator of forward that is known", HOW)
    passes = _count_passes(forward)
    shapes = Counter(shape for number, shape in nodes.gradients if number < end)
    trained = Counter({shape: -(-count // passes) for shape, count in shapes.items()})
    once = [each for each in forward if each.number < first_backward]
    layered = [each for each in _with_parameters(once, trained) if each[1] or _matrix(each[0], 1)]
    if not any(parameters for _, parameters in layered):
        raise trace_fault(path, "no operator of forward that reads a parameter", HOW)
    samples = batch or _samples(layered)
    layers, parameters = _as_documents(layered, samples)
    optimizer = nodes.parents[steps[0]][0] if steps else ""
    named = re.fullmatch(rf"{OPTIMIZER}(\w+)\.step", optimizer)
    unread = [shape for shape in trained.elements() if shape]
    rest = [{"name": f"unread.{at}", "shape": list(shape), "dtype": parameters[0]["dtype"]}
            for at, shape in enumerate(unread)]  # fmt: skip
    if rest:
        layers = [{"name": "unread", "parameters": [each["name"] for each in rest]}, *layers]
    return ExecutedModel(
        tuple(layers), (*rest, *parameters), named[1] if named else "", samples, passes,
        sum(map(math.prod, unread)),
    )  # fmt: skip


def _count_passes(forward: Sequence[Operation]) -> int:
    """Forward passes until the optimizer's step: how often a weight of the first is read."""
    first = next((each for each in forward if each.name.startswith(SURELY) and each.weights), None)
    if first is None:
        return 1
    weight = first.weights[0].storage
    return sum(
        each.name == first.name and any(w.storage == weight for w in each.weights)
        for each in forward
    )


def _collect(path: Path) -> _Nodes:
    nodes = _Nodes()
    for row in read_events(path, {}, member="nodes"):
        number, parent, name = row.get("id"), row.get("ctrl_deps"), row.get("name")
        if not isinstance(number, int) or not isinstance(name, str):
            continue
        nodes.parents[number] = name, parent if isinstance(parent, int) else 0
        inputs, outputs = _tensors(row, "inputs"), _tensors(row, "outputs")
        if name == ACCUMULATE and inputs and inputs[0]:
            nodes.gradients.append((number, inputs[0].shape))
        if name in WEIGHTS:
            values = row["inputs"].get("values") if isinstance(row.get("inputs"), dict) else []
            shape = next((each.shape for each in outputs if each), ())
            nodes.operations.append(Operation(number, name, inputs, shape, tuple(values or ())))
    nodes.operations.sort(key=lambda each: each.number)
    return nodes


def _tensors(row: Mapping[str, Any], side: str) -> tuple[TensorInput | None, ...]:
    """Inputs or outputs by place; None for what is no tensor. Lists of tensors are flattened."""
    part = row.get(side)
    if not isinstance(part, dict):
        return ()
    cells = (part.get(name) for name in ("values", "shapes", "types"))
    columns = [column if isinstance(column, list) else [] for column in cells]
    return tuple(each for row in zip(*columns, strict=False) for each in _flat(*row))


def _flat(value: Any, shape: Any, type_: Any) -> Iterator[TensorInput | None]:
    text = type_ if isinstance(type_, str) else ""
    if text.startswith("GenericList[") and isinstance(value, list) and isinstance(shape, list):
        types = text.removeprefix("GenericList[").removesuffix("]").split(",")
        for one_value, one_shape, one_type in zip(value, shape, types, strict=False):
            yield from _flat(one_value, one_shape, one_type)
        return
    is_tensor = text.startswith("Tensor(") and isinstance(value, list) and len(value) >= 5
    if not is_tensor or not all(isinstance(n, int) for n in (*value[:5], *shape)):
        yield None
        return
    dtype = element_type(text.removeprefix("Tensor(").removesuffix(")")) or ""
    yield TensorInput((value[1], value[2], value[3]), tuple(shape), dtype)


def _is_of_forward(nodes: _Nodes, operation: Operation) -> bool:
    """Whether neither autograd, nor the optimizer, nor another operator called it."""
    others = (AUTOGRAD, "Optimizer.", "aten::")
    return not any(name.startswith(others) for name in nodes.ancestors(operation.number))


def _with_parameters(
    operations: Sequence[Operation], trained: Counter[tuple[int, ...]]
) -> list[tuple[Operation, list[TensorInput]]]:
    """Operators with their parameters, each of the first that reads it.

    Inputs that are always parameters go before others of the same shape. `trained`: shapes of
    gradients; those that were found are taken out of it.
    """
    named: set[Storage] = set()
    by_number: dict[int, list[TensorInput]] = {}
    for surely in (True, False):
        for operation in operations:
            if operation.name.startswith(SURELY) is not surely:
                continue
            for tensor in operation.weights:
                is_new = tensor.storage not in named and tensor.dtype in TRAINABLE
                if is_new and (surely or trained[tensor.shape] > 0):
                    named.add(tensor.storage)
                    by_number.setdefault(operation.number, []).append(tensor)
                    trained[tensor.shape] = max(0, trained[tensor.shape] - 1)
    return [(each, by_number.get(each.number, [])) for each in operations]


def _samples(layered: Sequence[tuple[Operation, list[TensorInput]]]) -> int:
    """The first size of what the first layer reads beside its parameters."""
    operation, _ = next((each for each in layered if each[1]), layered[0])
    storages = {each.storage for each in operation.weights}
    read = (each for each in operation.inputs if each and each.shape)
    return next((each.shape[0] for each in read if each.storage not in storages), 1)


# ---------------------------------------------------------------- the file


def _as_documents(
    layered: Sequence[tuple[Operation, list[TensorInput]]], samples: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Layers and parameters of a model file."""
    layers: list[dict[str, Any]] = []
    parameters: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for operation, read in layered:
        kind = operation.name.removeprefix("aten::")
        name = f"{kind}.{counts[kind]}"
        counts[kind] += 1
        own: list[str] = []
        for tensor in read:
            is_bias = len(tensor.shape) == 1 and (bool(own) or kind in ("addmm", "add"))
            own.append(f"{name}.{'bias' if is_bias else 'weight'}")
            parameters.append({"name": own[-1], "shape": list(tensor.shape), "dtype": tensor.dtype})
        layer: dict[str, Any] = {"name": name}
        if own:
            layer["parameters"] = own[::-1]  # a bias is ready before its weight
        layers.append(layer | _matrix(operation, samples))
    return layers, parameters


def _matrix(operation: Operation, samples: int) -> dict[str, Any]:
    """Shape of the matrix kernel of an operator, of one sample; empty for those without one."""
    shapes = [each.shape if each else () for each in operation.inputs]
    name, out = operation.name, operation.output
    if name in _FACTORS:
        return _multiplied(shapes, _FACTORS[name], samples)
    if len(shapes) < 2:
        return {}
    if name == "aten::linear" and len(shapes[1]) == 2:
        bias = bool(shapes[2:3] and shapes[2])
        return _product(math.prod(shapes[0][:-1]), *shapes[1], samples, bias=bias)
    if name.startswith("aten::conv") and len(shapes[1]) in (3, 4) and len(out) == len(shapes[0]):
        return {"convolution": _convolution(shapes[0], shapes[1], out)}
    if name == "aten::scaled_dot_product_attention" and len(shapes[0]) == len(shapes[1]) == 4:
        return {"attention": _attention(operation, shapes)}
    return {}


_FACTORS = {"aten::mm": 0, "aten::bmm": 0, "aten::matmul": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Products, and the place of their first factor."""


def _multiplied(shapes: Sequence[tuple[int, ...]], place: int, samples: int) -> dict[str, Any]:
    """Product of two tensors: with a weight, where the second is a matrix."""
    factors = shapes[place : place + 2]
    if len(factors) < 2 or min(map(len, factors)) < 2:
        return {}
    first, second = factors
    if len(second) == 2:
        return _product(math.prod(first[:-1]), second[1], second[0], samples, bias=place == 1)
    count = math.prod(second[:-2])
    if count % samples:
        return {"matmul_flops": 2.0 * count * first[-2] * first[-1] * second[-1] / samples}
    product = {"rows": first[-2], "columns": second[-1], "depth": first[-1],
               "count": count // samples, "activations": True}  # fmt: skip
    return {"product": product}


def _product(rows: int, columns: int, depth: int, samples: int, *, bias: bool) -> dict[str, Any]:
    """A product with a weight; operations alone where rows are not those of whole samples."""
    if rows % samples:
        return {"matmul_flops": 2.0 * rows * columns * depth / samples}
    product = {"rows": rows // samples, "columns": columns, "depth": depth}
    return {"product": product | ({"bias": True} if bias else {})}


def _convolution(
    read: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...]
) -> dict[str, Any]:
    """A convolution of one or two dimensions; one has a height of 1."""

    def sides(shape: tuple[int, ...]) -> list[int]:
        return [1, *shape[2:]][-2:]

    return {
        "in_channels": read[1], "out_channels": weight[0], "in_size": sides(read),
        "out_size": sides(out), "kernel": sides(weight), "groups": read[1] // weight[1],
    }  # fmt: skip


IS_CAUSAL = 5
"""Place of ``is_causal`` among the arguments of scaled_dot_product_attention."""


def _attention(operation: Operation, shapes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    (_, heads, tokens, head_size), (_, kv_heads, keys, _) = shapes[0], shapes[1]
    document: dict[str, Any] = {"tokens": tokens, "heads": heads, "head_size": head_size}
    document |= {"kv_heads": kv_heads} if kv_heads != heads else {}
    document |= {"keys": keys} if keys != tokens else {}
    values = operation.values
    causal = len(values) > IS_CAUSAL and values[IS_CAUSAL] is True
    return document | ({"causal": True} if causal else {})
