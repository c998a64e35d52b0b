"""A module and its batch on fake tensors: shapes and data types without memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def to_fake(value: Any, dtype: Any) -> Any:
    """Return the value with a fake tensor of the same shape in place of each tensor.

    Real numbers get `dtype`, unless it is None. Made under a fake mode.
    """
    import torch

    if isinstance(value, torch.Tensor):
        real = value.is_floating_point() and dtype is not None
        return torch.empty_strided(
            tuple(value.shape), value.stride(), dtype=dtype if real else value.dtype, device="cpu"
        )
    if isinstance(value, Mapping):
        items = {key: to_fake(each, dtype) for key, each in value.items()}
        try:
            return type(value)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_fake(each, dtype) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(to_fake(each, dtype) for each in value)
    return value


@contextmanager
def fake_tensors(module: Any, dtype: Any) -> Iterator[dict[str, Any]]:
    """Let the module have fake parameters and buffers; yields the parameters by name.

    Tied parameters stay tied; the module has its own ones again afterwards.
    """
    import torch
    from torch.nn.utils.stateless import _reparametrize_module

    fakes: dict[int, Any] = {}
    swapped: dict[str, Any] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) not in fakes:
            fake = to_fake(parameter.data, dtype)
            fakes[id(parameter)] = torch.nn.Parameter(
                fake, requires_grad=parameter.requires_grad and fake.is_floating_point()
            )
        swapped[name] = fakes[id(parameter)]
    for name, buffer in module.named_buffers(remove_duplicate=False):
        swapped[name] = fakes.setdefault(id(buffer), to_fake(buffer, dtype))
    named = {name: swapped[name] for name, _ in module.named_parameters()}
    with _reparametrize_module(module, swapped):
        yield named


@contextmanager
def training_mode(module: Any) -> Iterator[None]:
    """Put the module into training mode, and each part back into its own afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def without_checkpoints() -> Iterator[list[str]]:
    """Run what ``torch.utils.checkpoint`` wraps as it is; yields a list with a word for each call.

    Whether blocks are recomputed is a question to the scenario (``compute.recompute``).
    """
    from unittest.mock import patch

    import torch.utils.checkpoint as checkpoints

    calls: list[str] = []

    class Plain:
        @staticmethod
        def apply(function: Any, _preserve: Any, *args: Any) -> Any:
            calls.append("reentrant")
            return function(*args)

    def generator(*_args: Any, **_kwargs: Any) -> Iterator[None]:
        calls.append("not reentrant")
        yield

    with (
        patch.object(checkpoints, "CheckpointFunction", Plain),
        patch.object(checkpoints, "_checkpoint_without_reentrant_generator", generator),
    ):
        yield calls


@contextmanager
def whole_masks() -> Iterator[None]:
    """Let transformers take masks to hide nothing, as batches of packed tokens do.

    It looks at values of masks unless it sees fake tensors, and then gives attention a mask that
    keeps it from kernels that a batch without padding runs.
    """
    import sys
    from unittest.mock import patch

    masks = sys.modules.get("transformers.masking_utils")
    if masks is None or not hasattr(masks, "is_tracing"):
        yield
        return
    with patch.object(masks, "is_tracing", lambda _tensor=None: False):
        yield


@contextmanager
def causal_masks() -> Iterator[list[str]]:
    """Let ``torch.nn.Transformer`` take square masks as causal; yields a word for each of them.

    It compares their values with a causal mask's, which fake tensors do not have.
    """
    from unittest.mock import patch

    from torch.nn.modules import transformer

    masks: list[str] = []

    def is_causal(mask: Any, stated: bool | None = None, size: int | None = None) -> bool:
        if stated is not None or mask is None:
            return bool(stated)
        tokens = mask.size(-2) if size is None else size
        if tuple(mask.shape) != (tokens, tokens):
            return False
        masks.append("square")
        return True

    with patch.object(transformer, "_detect_is_causal_mask", is_causal):
        yield masks
