"""A model file from an execution trace: layers by the operators of forward, with their shapes.

Forward is what ran before the first node of autograd, and no other operator called. Gradients that
autograd accumulates have the shapes of the trained parameters, all of them; operators of forward
read tensors of these shapes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.traces.kineto.event_stream import refuse_trace, trace_fault
from perfmodel.traces.rebuild.executed_operations import (
    ExecutedNodes,
    Operation,
    Sharding,
    Storage,
    TensorInput,
    in_units,
    read_nodes,
    sharding_of,
)
from perfmodel.workload.readers.csv_tables import TRAINABLE

AUTOGRAD, OPTIMIZER = "autograd::", "Optimizer.step#"
"""How names begin of nodes around backward, and around the optimizer's step."""

HOW = (
    "an ExecutionTraceObserver that starts before forward and stops after optimizer.step(), of a "
    "module that is not compiled; or the profiler's trace of the step (torch.profiler.profile("
    "record_shapes=True), export_chrome_trace), which has times as well"
)

FLAT_ALIGNMENT = 16
"""Most elements that fill up a tensor, or a unit for its ranks, in a flat unit of FSDP 1: tensors
begin at multiples of 16 bytes (torch/distributed/fsdp/_flat_param.py)."""

SURELY = (
    "aten::linear",
    "aten::conv",
    "aten::embedding",
    "aten::layer_norm",
    "aten::rms_norm",
    "aten::batch_norm",
    "aten::group_norm",
)
"""Those whose inputs there are always parameters."""


@dataclass(frozen=True, slots=True)
class ExecutedModel:
    """What a trace says of the model.

    `layers`, `parameters`: as a model file has them; `passes`: forward passes of a step.
    `batch`: samples, by the first size of what the first layer reads.
    `unread`: elements of parameters that have gradients and that no layer was found to read.
    `sharding`: units of FSDP, which layers are named after.
    """

    layers: tuple[dict[str, Any], ...]
    parameters: tuple[dict[str, Any], ...]
    optimizer: str
    batch: int
    passes: int
    unread: int = 0
    sharding: Sharding = field(default_factory=Sharding)

    @property
    def elements(self) -> int:
        """Elements of all parameters."""
        return sum(math.prod(each["shape"]) for each in self.parameters)


def read_executed_model(path: Path, batch: int | None = None) -> ExecutedModel:
    """Read the layers of one rank's step.

    `batch`: samples of a micro-batch, where the first size of the inputs is not that.
    Raises `InputError`: no whole step, or no layer in it.
    """
    nodes = read_nodes(path)
    first_backward = min(nodes.beginning(AUTOGRAD), default=None)
    if first_backward is None:
        raise trace_fault(path, "no backward pass", HOW)
    step = min(nodes.beginning(OPTIMIZER), default=None)
    end = math.inf if step is None else step
    forward = [each for each in nodes.operations if each.number < end and _is_forward(nodes, each)]
    refuse_trace(not forward, path, "no operator of forward that is known", HOW)
    sharding = sharding_of(nodes, end)
    if sharding.version:
        forward = in_units(nodes, forward, sharding.version)
    passes = sharding.passes or _count_passes(forward)
    gradients = Counter(shape for number, shape in nodes.gradients if number < end)
    trained = Counter({shape: -(-count // passes) for shape, count in gradients.items()})
    found = Counter() if sharding.version == 1 else trained.copy()  # 1 has those of flat units
    once = [each for each in forward if each.number < first_backward]
    layered = [each for each in _with_parameters(once, found) if each[1] or _matrix(each[0], 1)]
    refuse_trace(
        not any(parameters for _, parameters in layered),
        path,
        "no operator of forward that reads a parameter",
        HOW,
    )
    samples = batch or _samples(layered)
    layers, parameters = _as_documents(layered, samples)
    if sharding.casts:  # which forward reads in another precision than they have
        parameters = [each | {"dtype": "fp32"} for each in parameters]
    unread = [shape for shape in found.elements() if shape]
    if sharding.version == 1:
        read = sum(math.prod(each["shape"]) for each in parameters)
        missing = sum(map(math.prod, trained.elements())) - read
        padding = FLAT_ALIGNMENT * (len(parameters) + len(gradients))
        unread = [(missing,)] if missing > padding else []
    rest = [
        {"name": f"unread.{at}", "shape": list(shape), "dtype": parameters[0]["dtype"]}
        for at, shape in enumerate(unread)
    ]
    if rest:
        layers = [{"name": "unread", "parameters": [each["name"] for each in rest]}, *layers]
    optimizer = "" if step is None else nodes.parents[step][0]
    named = re.fullmatch(rf"{OPTIMIZER}(\w+)\.step", optimizer)
    return ExecutedModel(
        tuple(layers),
        (*rest, *parameters),
        named[1] if named else "",
        samples,
        passes,
        sum(map(math.prod, unread)),
        sharding,
    )


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


def _is_forward(nodes: ExecutedNodes, operation: Operation) -> bool:
    """Tell whether neither autograd, nor the optimizer, nor another operator called it."""
    others = (AUTOGRAD, "Optimizer.", "aten::")
    return not any(name.startswith(others) for name in nodes.ancestors(operation.number))


def _with_parameters(
    operations: Sequence[Operation], trained: Counter[tuple[int, ...]]
) -> list[tuple[Operation, list[TensorInput]]]:
    """Return operators with their parameters, each of the first that reads it.

    Inputs that are always parameters go before others of the same shape. `trained`: shapes of
    gradients; those that were found are taken out of it.
    """
    named: set[tuple[str, Storage]] = set()
    found: dict[int, list[TensorInput]] = {each.number: [] for each in operations}
    # Stable: in the order of calls, those that surely read parameters first.
    for operation in sorted(operations, key=lambda each: not each.name.startswith(SURELY)):
        surely = operation.name.startswith(SURELY)
        for tensor in operation.weights:
            identity = (operation.unit, tensor.storage)
            is_new = identity not in named and tensor.dtype in TRAINABLE
            if is_new and (surely or trained[tensor.shape] > 0):
                named.add(identity)
                found[operation.number].append(tensor)
                trained[tensor.shape] = max(0, trained[tensor.shape] - 1)
    return [(each, found[each.number]) for each in operations]


def _samples(layered: Sequence[tuple[Operation, list[TensorInput]]]) -> int:
    """Return the first size of what the first layer reads beside its parameters."""
    operation, _ = next((each for each in layered if each[1]), layered[0])
    storages = {each.storage for each in operation.weights}
    read = (each for each in operation.inputs if each and each.shape)
    return next((each.shape[0] for each in read if each.storage not in storages), 1)


# ---------------------------------------------------------------- the file


def _as_documents(
    layered: Sequence[tuple[Operation, list[TensorInput]]], samples: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write layers and parameters of a model file."""
    layers: list[dict[str, Any]] = []
    parameters: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for operation, read in layered:
        kind = operation.name.removeprefix("aten::")
        name = f"{operation.unit}.{kind}.{counts[kind]}".lstrip(".")
        counts[kind] += 1
        own: list[str] = []
        for tensor in read:
            is_bias = len(tensor.shape) == 1 and (bool(own) or kind in ("addmm", "add"))
            own.append(f"{name}.{'bias' if is_bias else 'weight'}")
            parameters.append({"name": own[-1], "shape": list(tensor.shape), "dtype": tensor.dtype})
        named = {"parameters": own[::-1]} if own else {}  # a bias is ready before its weight
        layers.append({"name": name, **named, **_matrix(operation, samples)})
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
        return _product(
            math.prod(shapes[0][:-1]), *shapes[1], samples, bias=bool(shapes[2:3] and shapes[2])
        )
    if name.startswith("aten::conv") and len(shapes[1]) in (3, 4) and len(out) == len(shapes[0]):
        return {"convolution": _convolution(shapes[0], shapes[1], out)}
    if name == "aten::scaled_dot_product_attention" and len(shapes[0]) == len(shapes[1]) == 4:
        return {"attention": _attention(operation, shapes)}
    return {}


_FACTORS = {"aten::mm": 0, "aten::bmm": 0, "aten::matmul": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Products, and the place of their first factor."""


def _multiplied(shapes: Sequence[tuple[int, ...]], place: int, samples: int) -> dict[str, Any]:
    """Write a product of two tensors: with a weight, where the second is a matrix."""
    factors = shapes[place : place + 2]
    if len(factors) < 2 or min(map(len, factors)) < 2:
        return {}
    first, second = factors
    if len(second) == 2:
        return _product(math.prod(first[:-1]), second[1], second[0], samples, bias=place == 1)
    count, (rows, depth), columns = math.prod(second[:-2]), first[-2:], second[-1]
    if count % samples:
        return {"matmul_flops": 2.0 * count * rows * depth * columns / samples}
    product = {"rows": rows, "columns": columns, "depth": depth, "count": count // samples}
    return {"product": product | {"activations": True}}


def _product(rows: int, columns: int, depth: int, samples: int, *, bias: bool) -> dict[str, Any]:
    """A product with a weight; operations alone where rows are not those of whole samples."""
    if rows % samples:
        return {"matmul_flops": 2.0 * rows * columns * depth / samples}
    product = {"rows": rows // samples, "columns": columns, "depth": depth}
    return {"product": product | ({"bias": True} if bias else {})}


def _convolution(
    read: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...]
) -> dict[str, Any]:
    """Write a convolution of one or two dimensions; one has a height of 1."""
    sides = {"in_size": read, "out_size": out, "kernel": weight}
    return {
        "in_channels": read[1],
        "out_channels": weight[0],
        **{name: [1, *shape[2:]][-2:] for name, shape in sides.items()},
        "groups": read[1] // weight[1],
    }


IS_CAUSAL = 5
"""Place of ``is_causal`` among the arguments of scaled_dot_product_attention."""


def _attention(operation: Operation, shapes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    (_, heads, tokens, head_size), (_, kv_heads, keys, _) = shapes[0], shapes[1]
    causal = operation.values[IS_CAUSAL : IS_CAUSAL + 1]
    return {
        "tokens": tokens,
        "heads": heads,
        "head_size": head_size,
        **({"kv_heads": kv_heads} if kv_heads != heads else {}),
        **({"keys": keys} if keys != tokens else {}),
        **({"causal": True} if any(value is True for value in causal) else {}),
    }
