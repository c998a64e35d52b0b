"""A process group that writes down every collective and lets gloo run it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

CALLS: list[dict[str, Any]] = []
"""What was called since the last `take_calls`, in order."""

PHASE = [""]


def _note(op: str, tensors: Any, group: RecordingGroup, **more: Any) -> None:
    flat = [tensors] if isinstance(tensors, torch.Tensor) else list(_flatten(tensors))
    CALLS.append(
        {
            "op": op,
            "bytes": sum(t.numel() * t.element_size() for t in flat),
            "dtype": str(flat[0].dtype).removeprefix("torch.") if flat else "",
            "tensors": len(flat),
            "group": group.members,
            "phase": PHASE[0],
            **more,
        }
    )


def _flatten(tensors: Any) -> Any:
    for each in tensors:
        if isinstance(each, torch.Tensor):
            yield each
        else:
            yield from _flatten(each)


class RecordingGroup(dist.ProcessGroup):
    """Delegates to gloo."""

    def __init__(self, store: Any, rank: int, size: int, members: list[int]) -> None:
        super().__init__(rank, size)
        self.inner = dist.ProcessGroupGloo(store, rank, size)
        self.members = members
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self.inner)

    def getBackendName(self) -> str:
        return "recording"

    def name(self) -> str:
        return "recording"

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        op = getattr(opts, "reduceOp", None)
        _note("all_reduce", tensors, self, reduce=_name(op))
        if _name(op) == "AVG":
            opts.reduceOp = dist.ReduceOp.SUM
        if opts is None:
            return self.inner.allreduce(tensors)
        return self.inner.allreduce(tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        _note("all_reduce_coalesced", tensors, self)
        return self.inner.allreduce_coalesced(tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        _note("broadcast", tensors, self)
        return self.inner.broadcast(tensors, opts)

    def allgather(self, output: Any, inputs: Any, opts: Any = None) -> Any:
        _note("all_gather", output, self)
        if len({each.numel() for each in output[0]}) > 1:
            return self._broadcast_each(output[0], inputs[0])
        return (
            self.inner.allgather(output, inputs, opts)
            if opts is not None
            else self.inner.allgather(output, inputs)
        )

    def _broadcast_each(self, parts: Any, own: Any) -> Any:
        """Gather parts that differ in size as NCCL's group does, for gloo has no such call."""
        parts[self.rank()].copy_(own)
        for root, part in enumerate(parts):
            options = dist.BroadcastOptions()
            options.rootRank = root
            work = self.inner.broadcast([part], options)
            work.wait()
        return work

    def _allgather_base(self, output: Any, inputs: Any, opts: Any = None) -> Any:
        _note("all_gather", output, self)
        return self.inner._allgather_base(output, inputs, *(() if opts is None else (opts,)))

    def all_gather_single(self, output: Any, inputs: Any, opts: Any = None) -> Any:
        _note("all_gather", output, self)
        return self.inner._allgather_base(output, inputs, opts)

    def reduce_scatter_single(self, output: Any, inputs: Any, opts: Any = None) -> Any:
        op = getattr(opts, "reduceOp", None)
        _note("reduce_scatter", inputs, self, reduce=_name(op))
        if _name(op) == "AVG":
            opts.reduceOp = dist.ReduceOp.SUM
        return self.inner._reduce_scatter_base(output, inputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        _note("all_gather_coalesced", outputs, self)
        return self.inner.allgather_coalesced(outputs, inputs, opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, each in zip(outputs, inputs, strict=True):  # gloo has no coalesced one
            work = self._allgather_base(output, each)
        return work

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        _note("reduce", tensors, self)
        return self.inner.reduce(tensors, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        _note("reduce_scatter", inputs, self)
        return self.inner.reduce_scatter(outputs, inputs, opts)

    def _reduce_scatter_base(self, output: Any, inputs: Any, opts: Any = None) -> Any:
        op = getattr(opts, "reduceOp", None)
        _note("reduce_scatter", inputs, self, reduce=_name(op))
        if _name(op) == "AVG":
            opts.reduceOp = dist.ReduceOp.SUM
        return self.inner._reduce_scatter_base(output, inputs, opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, each in zip(outputs, inputs, strict=True):  # gloo has no coalesced one
            work = self._reduce_scatter_base(output, each, opts)
        return work

    def alltoall_base(
        self, output: Any, inputs: Any, out_split: Any, in_split: Any, opts: Any = None
    ) -> Any:
        _note("all_to_all", inputs, self)
        return self.inner.alltoall_base(output, inputs, out_split, in_split, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        _note("all_to_all", inputs, self)
        return self.inner.alltoall(outputs, inputs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        _note("scatter", outputs, self)
        return self.inner.scatter(outputs, inputs, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        _note("gather", inputs, self)
        return self.inner.gather(outputs, inputs, opts)

    def barrier(self, opts: Any = None) -> Any:
        _note("barrier", [], self)
        return self.inner.barrier(opts) if opts is not None else self.inner.barrier()

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        _note("send", tensors, self, peer=dst)
        return self.inner.send(tensors, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        _note("recv", tensors, self, peer=src)
        return self.inner.recv(tensors, src, tag)


def _name(op: Any) -> str:
    return (
        ""
        if op is None
        else next(
            (
                name
                for name in ("SUM", "AVG", "PREMUL_SUM", "MAX", "MIN")
                if op == getattr(dist.ReduceOp, name, None)
            ),
            "other",
        )
    )


def create(options: Any, _backend_options: Any = None) -> RecordingGroup:
    """Make a group as `register_backend` with its extended interface asks for."""
    group = RecordingGroup(
        options.store, options.group_rank, options.group_size, list(options.global_ranks_in_group)
    )
    group._set_group_name(options.group_id)
    return group


def take_calls() -> list[dict[str, Any]]:
    calls = list(CALLS)
    CALLS.clear()
    return calls


def enter_phase(name: str) -> None:
    """Note the calls that follow under this name."""
    PHASE[0] = name
