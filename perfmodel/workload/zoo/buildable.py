"""A model whose sizes are stated; its sample, its dtype and its share of a rank are left open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.workload.model import Workload
from perfmodel.workload.shards.shard import WHOLE, Shard, shard_faults, whole_faults
from perfmodel.workload.zoo.expert_settings import ExpertSettings

TRAINED_DTYPES = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Buildable:
    """A model of the zoo, or one that a user states.

    Parameters
    ----------
    name : str
        As reports call it.
    make : callable
        Its function, of `dtype`, and of `image_size` or `sequence_length` and `shard`.
    default : int
        Image size or sequence length, if none is asked for.
    kind : {"image", "sequence", "row"}
        A row of a table has no size.
    longest : int, optional
        Most tokens that its table of positions has.
    has_experts : bool
        Whether `make` takes `settings` of experts.
    dtype : str
        Of its parameters, if none is asked for.
    notes : tuple of str
        What of it is left out, in sentences.
    """

    name: str
    make: Callable[..., Workload]
    default: int
    kind: Literal["image", "sequence", "row"] = "sequence"
    longest: int | None = None
    has_experts: bool = False
    dtype: str = "fp32"
    notes: tuple[str, ...] = ()


def build(
    model: Buildable,
    *,
    dtype: str | None = None,
    image_size: int | None = None,
    sequence_length: int | None = None,
    shard: Shard = WHOLE,
    experts: ExpertSettings | None = None,
) -> Workload:
    """Build a model, as `zoo.build_model` does.

    Raises `InputError`: a dtype, size, share or setting that it cannot have.
    """
    name, dtype = model.name, model.dtype if dtype is None else dtype
    faults = list(_dtype_faults(dtype))
    if not model.has_experts:
        faults += _misplaced("experts", experts, name, "a model without experts")
    if model.kind == "image":
        faults += _misplaced("sequence_length", sequence_length, name, "an image model")
        faults += _size_faults("image_size", image_size, None)
        faults += shard_faults(shard) or whole_faults(shard, name, "an image model is not split")
        size: dict[str, Any] = {"image_size": image_size or model.default}
    elif model.kind == "row":
        faults += _misplaced("sequence_length", sequence_length, name, "a model of rows")
        faults += _misplaced("image_size", image_size, name, "a model of rows")
        faults += shard_faults(shard) or whole_faults(shard, name, "a model of rows is not split")
        size = {}
    else:
        faults += _misplaced("image_size", image_size, name, "a sequence model")
        faults += _size_faults("sequence_length", sequence_length, model.longest)
        size = {"sequence_length": sequence_length or model.default, "shard": shard}
        size |= {"settings": experts} if model.has_experts else {}
    if faults:
        raise InputError(faults)
    workload = model.make(dtype=dtype, **size)
    return replace(workload, notes=(*workload.notes, *model.notes)) if model.notes else workload


def _dtype_faults(dtype: str) -> list[Fault]:
    if dtype in TRAINED_DTYPES:
        return []
    return [Fault("dtype", repr(dtype), allowed_names(TRAINED_DTYPES, str(dtype)))]


def _misplaced(field: str, value: int | ExpertSettings | None, name: str, kind: str) -> list[Fault]:
    if value is None:
        return []
    text = str(value) if isinstance(value, int) else "settings"
    return [Fault(field, text, f"nothing: {name} is {kind}")]


def _size_faults(field: str, value: int | None, longest: int | None) -> list[Fault]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is None or (whole and 1 <= value <= (longest or value)):
        return []
    limit = f" up to {longest}, the model's table of positions" if longest else ""
    return [Fault(field, repr(value), f"a whole number above zero{limit}")]
