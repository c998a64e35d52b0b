"""A model whose sizes are stated; its sample, its dtype and its share of a rank are left open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from perfmodel.errors import allowed_names, failed, raise_faults
from perfmodel.workload.model import Workload
from perfmodel.workload.shard import WHOLE, Shard, shard_faults, whole_faults
from perfmodel.workload.zoo.expert_settings import ExpertSettings

TRAINED_DTYPES = ("fp32", "bf16", "fp16")
KINDS = {
    "image": ("an image model", "image_size"),
    "row": ("a model of rows", ""),
    "sequence": ("a sequence model", "sequence_length"),
}
"""What a model is called in messages, and the size of its sample."""


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
    kind, field = KINDS[model.kind]
    sizes = {"image_size": image_size, "sequence_length": sequence_length}
    limit = f" up to {model.longest}, the model's table of positions" if model.longest else ""
    faults = failed(
        (
            dtype not in TRAINED_DTYPES,
            "dtype",
            repr(dtype),
            allowed_names(TRAINED_DTYPES, str(dtype)),
        ),
        (
            experts is not None and not model.has_experts,
            "experts",
            "settings",
            f"nothing: {name} is a model without experts",
        ),
        *(
            (
                value is not None and other != field,
                other,
                str(value),
                f"nothing: {name} is {kind}",
            )
            for other, value in reversed(sizes.items())
        ),
        *(
            (
                field == own and not _is_size(value, model.longest),
                own,
                repr(value),
                f"a whole number above zero{limit}",
            )
            for own, value in sizes.items()
        ),
    )
    shares_tables = model.kind == "row" and shard.tables is not None
    if model.kind != "sequence":
        split = replace(shard, expert=1) if shares_tables else shard
        faults += shard_faults(shard) or whole_faults(split, name, f"{kind} is not split")
    faults += failed(
        (
            shard.tables is not None and not shares_tables,
            "tables",
            repr(shard.tables),
            f"nothing: {name} is {kind}, and has no tables of categories",
        )
    )
    raise_faults(faults)
    arguments: dict[str, Any] = {
        **({field: sizes[field] or model.default} if field else {}),
        **({} if model.kind == "image" else {"shard": shard}),
        **({"settings": experts} if model.has_experts else {}),
    }
    workload = _make(model, dtype=dtype, **arguments)
    return replace(workload, notes=(*workload.notes, *model.notes)) if model.notes else workload


@lru_cache(maxsize=8)  # variants of a scenario train the same models and shares of them
def _make(model: Buildable, **arguments: Any) -> Workload:
    return model.make(**arguments)


def _is_size(value: int | None, longest: int | None) -> bool:
    return value is None or (
        isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= (longest or value)
    )
