"""The module inside of wrappers such as DDP, and the batch that it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any

from perfmodel.errors import refuse_if
from perfmodel.memo import first_applying
from perfmodel.workload.model import SAMPLE, Sample, sequence_of

WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})
"""Attributes in which torch.compile and checkpoint_wrapper hold the module inside."""


def plain_name(name: str) -> str:
    """Return the name that a parameter or module has without wrappers."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


@contextmanager
def hooks(handles: Iterable[Any]) -> Iterator[None]:
    """Let hooks stay as long as the context does."""
    made = list(handles)
    try:
        yield
    finally:
        for handle in made:
            handle.remove()


def inner_module(model: Any, *, real: bool) -> Any:
    """Return the module inside of torch.compile, DataParallel and DistributedDataParallel.

    `real`: whether it runs on its own parameters, where hooks of DDP would reduce gradients.

    Raises
    ------
    InputError
        It is no module, or one that cannot be captured as it is.
    """
    import torch

    refuse_if(
        not isinstance(model, torch.nn.Module),
        "model",
        type(model).__name__,
        "a torch.nn.Module, built: MyModel(), not MyModel",
    )
    parallel: Any = torch.nn.parallel
    replicas = parallel.DistributedDataParallel | parallel.DataParallel
    while isinstance(model, replicas) or hasattr(model, "_orig_mod"):
        text, reduces = f"a module wrapped in {type(model).__name__}", isinstance(model, replicas)
        refuse_if(real and reduces, "model", text, "the module before it is wrapped")
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    _check_whole(model)
    return model


UNSHARDED = (
    "the module before fully_shard, FSDP or parallelize_module: `strategy` and `parallel` of the "
    "scenario shard it"
)


def _check_whole(model: Any) -> None:
    """Raise `InputError` at the first part of a module that cannot be captured."""
    import torch

    for name, part in model.named_modules():
        place = f" ({name})" if name else ""
        refuse_if(
            isinstance(part, torch.jit.ScriptModule),
            "model",
            f"a module compiled by torch.jit{place}",
            "the module before torch.jit.script or torch.jit.trace",
        )
        refuse_if(
            type(part).__name__ == "FullyShardedDataParallel",
            "model",
            f"a module in FullyShardedDataParallel{place}",
            UNSHARDED,
        )
    for name, parameter in model.named_parameters():
        refuse_if(
            torch.nn.parameter.is_lazy(parameter),
            "model",
            f"a parameter without a shape yet ({name}, of a lazy module)",
            "the module after one forward, which gives it its shape",
        )
        refuse_if(
            hasattr(parameter, "device_mesh"),
            "model",
            f"a parameter that is sharded already ({name}, a DTensor)",
            UNSHARDED,
        )


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Calls a module with a batch and makes a scalar of what it returns.

    `loss`: of the user, if there is one.
    `is_pair`: whether the batch is (inputs, target).
    """

    loss: Callable[..., Any] | None
    is_pair: bool

    def __call__(self, module: Any, batch: Any) -> Any:
        """Run forward and the loss."""
        output = call(module, batch[0] if self.is_pair else batch)
        if self.loss is None:
            return _own_loss(output)
        return self.loss(output, batch[1]) if self.is_pair else self.loss(output)

    def input_elements(self, batch: Any) -> float:
        """Elements that the module is given."""
        return float(sum(each.numel() for each in _tensors(batch[0] if self.is_pair else batch)))


def loss_function(loss: Callable[..., Any] | None, batch: Any) -> StepLoss:
    """Make the loss of a step; raises `InputError` for one that cannot be called."""
    odd = loss is not None and not callable(loss)
    refuse_if(odd, "loss", repr(loss), "a function, such as torch.nn.MSELoss()")
    return StepLoss(loss, loss is not None and isinstance(batch, list | tuple) and len(batch) == 2)


def call(module: Any, inputs: Any) -> Any:
    """Call a module with a tensor, with positional arguments or with arguments by name.

    What does not fit so is given whole to a forward that has one argument.
    """
    from perfmodel.torch_modules.operators import fields_of

    named: Mapping[str, Any] = fields_of(inputs) if is_dataclass(inputs) else {}
    named = inputs if isinstance(inputs, Mapping) else named
    placed = tuple(inputs) if isinstance(inputs, list | tuple) else () if named else (inputs,)
    whole = not _fits(module, placed, named) and _fits(module, (inputs,), {})
    if whole and not set(named) & set(inspect.signature(module.forward).parameters):
        return module(inputs)
    return module(*placed, **named)


def _fits(module: Any, placed: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether forward takes these arguments, as far as its signature tells."""
    try:
        inspect.signature(module.forward).bind(*placed, **named)
    except TypeError:
        return False
    except ValueError:  # no signature
        return True
    return True


def _own_loss(output: Any) -> Any:
    """The loss that a module returns; the sum of its real outputs where it returns none."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is not None:
        return loss.sum()
    real = [each for each in _tensors(output) if each.is_floating_point() and each.requires_grad]
    refuse_if(
        not real,
        "model",
        f"{type(output).__name__} without a tensor that has a gradient",
        "an output that a loss can be made of; see loss=",
    )
    if len(real) == 1 and real[0].numel() == 1:
        return real[0].sum()
    return sum(each.float().sum() for each in real)


def sample_count(batch: Any) -> int:
    """First dimension of the first tensor of a batch; raises `InputError` where there is none."""
    tensors = _tensors(batch)
    refuse_if(
        any(each.is_nested for each in tensors),
        "batch",
        "a nested tensor",
        "tensors that are filled up alike",
    )
    is_loader = hasattr(batch, "__iter__") and not isinstance(batch, Mapping | list | tuple)
    refuse_if(
        not tensors or not tensors[0].dim() or not tensors[0].shape[0],
        "batch",
        f"no tensor{' with a first dimension' if tensors else ''} in a {type(batch).__name__}",
        "a tensor, a tuple, a dict or a dataclass of tensors; or samples="
        f"{'; of a DataLoader one batch: next(iter(loader))' if is_loader else ''}",
    )
    return int(tensors[0].shape[0])


def describe_sample(batch: Any) -> Sample:
    """What one sample is, as far as shapes tell."""
    tensor = _tensors(batch)[0]
    return first_applying(
        (tensor.dim() == 4 and tensor.shape[1] in {1, 3}, Sample("image", is_image=True)),
        (
            tensor.dim() == 2 and not tensor.is_floating_point(),
            sequence_of(int(tensor.shape[-1])),
        ),
        (True, SAMPLE),
    )


def _tensors(values: Any) -> list[Any]:
    from perfmodel.torch_modules.operators import tensors_in

    if hasattr(values, "to_tuple") and not isinstance(values, Mapping):
        values = values.to_tuple()
    return tensors_in(values)
