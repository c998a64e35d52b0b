"""Operators of a step: what each computes, moves and launches, from the shapes of its arguments.

A fake tensor has a shape, a data type and a storage, and no memory, so that an operator is recorded
below autograd exactly as a device would run it. Views and allocations are no kernels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.shapes import Attention, Convolution, MatrixKernel, MatrixProduct

OperatorKind = Literal["matrix", "norm", "map_norm", "loss", "other"]
"""A matrix kernel; a normalisation over rows or of feature maps; the softmax of a loss; the rest.
"""


@dataclass(slots=True)
class Operator:
    """One operator of forward, with the work that backward adds for it.

    Parameters
    ----------
    name : str
        Of the kernel, such as ``aten.addmm``.
    path : str
        Module that called it.
    kind : str
    flops, nbytes : float
        Operations of a matrix kernel; bytes read and written.
    backward_flops : float
        Of what backward runs for it.
    shape : MatrixProduct, Convolution or Attention, optional
        Of a matrix kernel, for the whole batch.
    out_elements, in_elements : int
        Elements written, and read without parameters.
    parameters : tuple of str
        Parameters that it reads.
    weight_elements : int
        Elements of these; of a table that is gathered from, of the whole table.
    is_floating : bool
        Whether it computes with real numbers.
    score_dropout : bool
        Whether scores of attention are dropped out.
    needs_gradient : bool
        Whether backward runs anything for it.
    reads, writes : tuple
        Storages that it reads and writes, beside parameters, and their bytes.
    """

    name: str
    path: str
    kind: OperatorKind
    flops: float = 0.0
    nbytes: float = 0.0
    shape: MatrixKernel | None = None
    in_elements: int = 0
    out_elements: int = 0
    parameters: tuple[str, ...] = ()
    weight_elements: int = 0
    is_floating: bool = True
    backward_flops: float = 0.0
    score_dropout: bool = False
    needs_gradient: bool = True
    reads: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    writes: tuple[tuple[int, int], ...] = field(default=(), repr=False)


OPERATOR_NAMES: Mapping[str, frozenset[str]] = {
    kind: frozenset(names)
    for kind, names in json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    ).items()
}
"""Names of torch's operators and functions by what they do; the file says what that is."""


def base_name(func: Any) -> str:
    """Name of an operator without its overload, such as ``addmm``."""
    return str(func.overloadpacket.__name__)


def tensors_in(values: object) -> list[Any]:
    """All tensors of nested arguments."""
    import torch

    if isinstance(values, torch.Tensor):
        return [values]
    if is_dataclass(values) and not isinstance(values, type | Mapping):
        values = list(fields_of(values).values())
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []


def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested arguments with what `change` makes of each tensor in its place.

    A dataclass is copied: it may be frozen, or not take all of its fields.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type | Mapping):
        copied = copy(value)
        for name, each in fields_of(value).items():
            object.__setattr__(copied, name, map_tensors(each, change))
        return copied
    if isinstance(value, Mapping):
        items = {key: map_tensors(each, change) for key, each in value.items()}
        try:
            return type(value)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if isinstance(value, list | tuple):
        parts = [map_tensors(each, change) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def fields_of(value: Any) -> dict[str, Any]:
    """Fields of a dataclass by name."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def held_elements(tensor: Any) -> int:
    """Elements of a tensor that memory holds: dimensions of stride zero are one element."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return int(math.prod(size for size, stride in sizes if stride))


def product_of(name: str, args: Sequence[Any]) -> MatrixProduct | None:
    """Shape of a matrix product."""
    biased = name in {"addmm", "baddbmm", "addmv"}
    operands = [tuple(each.shape) for each in args if hasattr(each, "shape")][biased:]
    if len(operands) < 2:
        return None
    first, second, *_ = operands
    if name in {"mv", "addmv", "dot"}:
        return MatrixProduct(first[0] if len(first) > 1 else 1, 1, first[-1], has_bias=biased)
    if name == "_grouped_mm":
        rows, groups = math.prod(first[:-1]), second[0] if len(second) == 3 else 1
        return MatrixProduct(max(1, rows // groups), second[-1], first[-1], groups)
    if len(first) == 3:
        return MatrixProduct(first[1], second[2], first[2], first[0], of_activations=True)
    return MatrixProduct(first[0], second[1], first[1], has_bias=biased)


def convolution_of(args: Sequence[Any], out: Any) -> Convolution:
    """Shape of a convolution of one to three dimensions, transposed or not.

    Depth is folded into height, which leaves positions, operations and elements as they are. A
    transposed one is the input gradient of the convolution that has its sizes the other way round:
    its three products are the same ones.
    """
    image, weight, transposed, groups = args[0], args[1], args[6], args[8]
    before, after = (out, image) if transposed else (image, out)
    return Convolution(
        int(before.shape[1]),
        int(after.shape[1]),
        _folded(before.shape[2:]),
        _folded(after.shape[2:]),
        _folded(weight.shape[2:]),
        images=int(image.shape[0]),
        groups=int(groups),
        has_bias=args[2] is not None,
    )


def _folded(sizes: Sequence[int]) -> tuple[int, int]:
    *first, last = [int(size) for size in sizes]
    return math.prod(first), last


def gradient_flops(name: str, args: Sequence[Any], forward: Operator) -> float:
    """Operations of an operator that runs in backward."""
    if name == "convolution_backward":
        return forward.flops * (bool(args[-1][0]) + bool(args[-1][1]))
    product = product_of(name, args) if name in OPERATOR_NAMES["products"] else None
    return product.flops if product else 0.0


def moved_bytes(name: str, args: Any, kwargs: Any, out: Any) -> float:
    """Bytes that an operator reads and writes."""
    written = sum(each.element_size() * held_elements(each) for each in tensors_in(out))
    if name in OPERATOR_NAMES["gathers"]:
        indices = [each for each in tensors_in(args) if not each.is_floating_point()]
        return float(2 * written + sum(each.element_size() * each.numel() for each in indices))
    read = {
        (each.untyped_storage()._cdata, each.storage_offset()): each.element_size()
        * held_elements(each)
        for each in [*tensors_in(args), *tensors_in(kwargs)]
    }
    if name in OPERATOR_NAMES["writers"]:
        own = tensors_in(args)[1:] if name == "copy_" else []
        return float(written + sum(each.element_size() * held_elements(each) for each in own))
    return float(written + sum(read.values()))


def kind_of(name: str) -> OperatorKind:
    """Which kernels an operator runs."""
    kinds: Mapping[str, OperatorKind] = {
        "products": "matrix",
        "convolutions": "matrix",
        "map_norms": "map_norm",
        "row_norms": "norm",
        "losses": "loss",
    }
    return next((kind for each, kind in kinds.items() if name in OPERATOR_NAMES[each]), "other")


READ_AGAIN: Mapping[str, str] = {"map_norm": "batch_norm", "norm": "norm", "loss": "loss"}
"""Kinds whose kernels read their input more than once, as ``element_wise.yaml`` calls them."""


def make_operator(
    name: str,
    path: str,
    args: Any,
    kwargs: Any,
    out: Any,
    owners: Callable[[Any], str | None],
) -> Operator:
    """Describe an operator of forward.

    `owners`: name of the parameter that a tensor is, or is a view of.
    """
    inputs, results = [*tensors_in(args), *tensors_in(kwargs)], tensors_in(out)
    weights = {owner: tensor for tensor in inputs if (owner := owners(tensor)) is not None}
    read = [tensor for tensor in inputs if owners(tensor) is None]
    kind = kind_of(name)
    operator = Operator(
        name=f"aten.{name}",
        path=path,
        kind=kind,
        nbytes=moved_bytes(name, args, kwargs, out),
        in_elements=sum(map(held_elements, read)),
        out_elements=sum(map(held_elements, results)),
        parameters=tuple(weights),
        weight_elements=sum(tensor.numel() for tensor in weights.values() if tensor.dim() > 1)
        if kind == "matrix" or name in OPERATOR_NAMES["gathers"]
        else 0,
        is_floating=any(tensor.is_floating_point() for tensor in results),
        needs_gradient=any(tensor.requires_grad for tensor in inputs),
        reads=tuple(map(_storage, read)),
        writes=tuple(map(_storage, results)),
    )
    if name in OPERATOR_NAMES["products"] and (product := product_of(name, args)) is not None:
        operator.shape = replace(product, of_activations=product.of_activations and not weights)
    elif name in OPERATOR_NAMES["convolutions"]:
        operator.shape = convolution_of(args, results[0])
    elif kind in READ_AGAIN:
        first = read[0] if read else results[0]
        operator.nbytes = passes_of(READ_AGAIN[kind]) * first.element_size() * first.numel()
    operator.flops = operator.shape.flops if operator.shape else 0.0
    return operator


def _storage(tensor: Any) -> tuple[int, int]:
    return tensor.untyped_storage()._cdata, tensor.element_size() * held_elements(tensor)


def make_attention(
    path: str, shape: Attention, nbytes: float, *, dropout: bool, needs_gradient: bool
) -> Operator:
    """Describe fused attention, whose backward computes its scores once more."""
    query = shape.sequences * shape.tokens * shape.heads
    pairs = shape.sequences * shape.all_keys * shape.kv_heads
    return Operator(
        name="scaled_dot_product_attention",
        path=path,
        kind="matrix",
        flops=shape.flops,
        nbytes=nbytes,
        shape=shape,
        in_elements=query * shape.head_size + pairs * (shape.head_size + shape.value_size),
        out_elements=query * shape.value_size,
        score_dropout=dropout,
        backward_flops=2.0 * shape.flops if needs_gradient else 0.0,
        needs_gradient=needs_gradient,
    )


def wide_grouped_product(func: Any, args: Any, kwargs: Any) -> Any:
    """Run a grouped product on fake tensors of any precision.

    PyTorch 2.13 has it for bf16 alone (``_meta_registrations._meta_grouped_mm_common``), and
    libraries run the groups one by one in others; shapes, operations and what is kept are the same.
    """
    import torch

    wide = [each for each in tensors_in(args) if each.is_floating_point()]
    if all(each.dtype is torch.bfloat16 for each in wide):
        return func(*args, **kwargs)

    def narrow(tensor: Any) -> Any:
        return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor

    kwargs = {name: value for name, value in kwargs.items() if name != "out_dtype"}
    result = func(*map_tensors(args, narrow), **map_tensors(kwargs, narrow))
    return result.to(torch.promote_types(wide[0].dtype, wide[-1].dtype))
