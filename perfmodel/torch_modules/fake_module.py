"""A module and its batch on fake tensors: shapes and data types without memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from typing import Any

from perfmodel.torch_modules.operators import map_tensors
from perfmodel.torch_modules.wrapped_module import plain_name


def to_fake(value: Any, dtype: Any) -> Any:
    """Return the value with a fake tensor of the same shape in place of each tensor.

    Real numbers get `dtype`, unless it is None. Made under a fake mode.
    """
    import torch

    def fake(tensor: Any) -> Any:
        real = tensor.is_floating_point() and dtype is not None
        own = dtype if real else tensor.dtype
        return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=own, device="cpu")

    return map_tensors(value, fake)


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
                fake,
                requires_grad=parameter.requires_grad
                and (fake.is_floating_point() or fake.is_complex()),
            )
        swapped[name] = fakes[id(parameter)]
    swapped |= {
        name: fakes.setdefault(id(buffer), to_fake(buffer, dtype))
        for name, buffer in module.named_buffers(remove_duplicate=False)
    }
    named = {plain_name(name): swapped[name] for name, _ in module.named_parameters()}
    with _reparametrize_module(module, swapped):
        yield named


@contextmanager
def own_attributes(module: Any) -> Iterator[None]:
    """Let attributes of the module be as they were: ones that it caches in a step would be fake."""
    before = [
        (
            part,
            dict(part.__dict__),
            {
                name: copy(value)
                for name, value in part.__dict__.items()
                if isinstance(value, dict | list)
            },
        )
        for part in module.modules()
    ]
    try:
        yield
    finally:
        for part, values, contents in before:
            part.__dict__.clear()
            part.__dict__.update(values)
            for name, content in contents.items():
                values[name].clear()
                add = values[name].update if isinstance(content, dict) else values[name].extend
                add(content)


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


Contexts = Iterator[AbstractContextManager[Any]]


@contextmanager
def plain_parts(module: Any, remarks: set[str], *, real: bool) -> Iterator[None]:
    """Run what only speeds a step up, saves memory or needs a GPU as plain PyTorch.

    `remarks`: gets a word for each kind of part that ran otherwise than the module says.
    """
    import torch

    set_stance = getattr(torch.compiler, "set_stance", None)
    contexts = [
        *([set_stance("force_eager")] if set_stance else []),
        *_without_checkpoints(remarks),
        torch.inference_mode(False),
        torch.enable_grad(),
        *([] if real else [*_stated_masks(remarks), *_without_autocast(remarks)]),
        *([] if real else _without_synchronised_norms(remarks)),
        *_stepwise_recurrence(module, remarks),
    ]
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _stepwise_recurrence(module: Any, remarks: set[str]) -> Contexts:
    """Let LSTM, GRU and RNN run step by step, not as one kernel of unknown operations."""
    import torch

    if any(isinstance(part, torch.nn.RNNBase) for part in module.modules()):
        remarks.add("recurrence")
        yield torch.backends.mkldnn.flags(enabled=False)
        yield torch.backends.cudnn.flags(enabled=False)


def _without_autocast(remarks: set[str]) -> Contexts:
    """Leave out autocast around and within the module: precision is a question to the scenario.

    On fake tensors it would be that of CPUs, which casts other functions.
    """
    from unittest.mock import patch

    import torch

    enter: Any = torch.autocast.__enter__

    def enter_disabled(self: Any) -> Any:
        enabled, self._enabled = self._enabled, False
        if enabled:
            remarks.add("autocast")
        try:
            return enter(self)
        finally:
            self._enabled = enabled

    for name in ("cpu", "cuda"):
        if torch.is_autocast_enabled(name):
            remarks.add("autocast")
            yield torch.autocast(name, enabled=False)
    yield patch.object(torch.autocast, "__enter__", enter_disabled)


def _without_synchronised_norms(remarks: set[str]) -> Contexts:
    """Run SyncBatchNorm, which CPUs do not have, as batch normalisation."""
    from unittest.mock import patch

    import torch

    def forward(self: Any, x: Any) -> Any:
        remarks.add("synchronised norm")
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return torch.nn.functional.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=True,
            momentum=self.momentum or 0.0,
            eps=self.eps,
        )

    yield patch.object(torch.nn.SyncBatchNorm, "forward", forward)


def _without_checkpoints(remarks: set[str]) -> Contexts:
    """Run what ``torch.utils.checkpoint`` wraps as it is.

    Whether blocks are recomputed is a question to the scenario (``compute.recompute``).
    """
    from unittest.mock import patch

    import torch.utils.checkpoint as checkpoints

    class Plain:
        @staticmethod
        def apply(function: Any, _preserve: Any, *args: Any) -> Any:
            remarks.add("checkpoint")
            return function(*args)

    def generator(*_args: Any, **_kwargs: Any) -> Iterator[None]:
        remarks.add("checkpoint")
        yield

    yield patch.object(checkpoints, "CheckpointFunction", Plain)
    yield patch.object(checkpoints, "_checkpoint_without_reentrant_generator", generator)


def _stated_masks(remarks: set[str]) -> Contexts:
    """Let libraries not ask for values of masks, which fake tensors do not have.

    Transformers takes masks to hide nothing, as batches of packed tokens do: it looks at values of
    masks unless it sees fake tensors, and then gives attention a mask that keeps it from kernels
    that a batch without padding runs. ``torch.nn.Transformer`` takes square masks as causal: it
    compares their values with a causal mask's.
    """
    import sys
    from unittest.mock import patch

    from torch.nn.modules import transformer

    masks = sys.modules.get("transformers.masking_utils")
    if hasattr(masks, "is_tracing"):
        yield patch.object(masks, "is_tracing", lambda _tensor=None: False)

    def is_causal(mask: Any, stated: bool | None = None, size: int | None = None) -> bool:
        if stated is not None or mask is None:
            return bool(stated)
        tokens = mask.size(-2) if size is None else size
        if tuple(mask.shape) != (tokens, tokens):
            return False
        remarks.add("mask")
        return True

    yield patch.object(transformer, "_detect_is_causal_mask", is_causal)
