"""Parameter servers, and nn.DataParallel, whose server is the first GPU."""

from typing import ClassVar, Literal

from pydantic import Field

from perfmodel.files import Bandwidth, Bytes, Count
from perfmodel.scenario.sections.base import Index, MicroSteps, Rules, StrategyModel, Switch
from perfmodel.scenario.sections.parallel import ParallelSection


class DataParallelStrategy(StrategyModel):
    """nn.DataParallel: one process drives all GPUs of one node; device 0 is the server."""

    kind: Literal["data_parallel"]
    accumulate: ClassVar[int] = 1


class ParameterServerStrategy(StrategyModel):
    """Workers push gradients to servers and pull parameters; servers run the optimizer."""

    kind: Literal["parameter_server"]
    mode: Literal["synchronous", "asynchronous", "bounded"] = Field(
        default="synchronous",
        description="bounded: no worker is more than `staleness` iterations ahead of the slowest",
    )
    staleness: Index | None = Field(default=None, description="iterations, with mode: bounded")
    servers: Count | None = Field(
        default=None,
        description="default: 1 on its own node, or one on each node if colocated",
    )
    placement: Literal["dedicated", "colocated"] = Field(
        default="dedicated",
        description="dedicated: each on a node of its own beside those of `cluster.nodes`; "
        "colocated: on the first of the workers' nodes",
    )
    device: Literal["cpu", "gpu"] = Field(default="cpu", description="what runs the update")
    threads: Count | None = Field(
        default=None, description="cores that a server updates on; default: 4, as MXNet and BytePS"
    )
    memory_bandwidth: Bandwidth | None = Field(
        default=None, description="of a server's host, which its cores share"
    )
    assignment: Literal["greedy", "hash"] = Field(
        default="greedy", description="of small tensors to servers: fewest bytes, or MXNet's hash"
    )
    split_above: Bytes | None = Field(
        default=None,
        description="tensors of this size are cut over all servers; default: 4 MB, as MXNet",
    )
    slice: Bytes | None = Field(
        default=None,
        description="instead, all tensors are cut into slices of at most this size; BytePS has "
        "4.096 MB",
    )
    overlap: Switch = Field(
        default=True,
        description="push each gradient during backward, and begin forward with what has arrived; "
        "false: all gradients after backward, and forward after all parameters",
    )
    local_reduce: Switch = Field(
        default=False,
        description="the GPUs of a node add up their gradients first, and are one worker (BytePS)",
    )
    gradient_dtype: Literal["fp16", "bf16"] | None = Field(
        default=None, description="gradients travel in 16 bits; parameters whole"
    )
    accumulate: MicroSteps = 1

    def _rules(self) -> Rules:
        on_gpu = self.device == "gpu"
        return (
            (
                (self.mode == "bounded") != (self.staleness is not None),
                "'staleness' together with 'mode: bounded', and only then",
            ),
            (
                self.split_above is not None and self.slice is not None,
                "'split_above' or 'slice', not both",
            ),
            (
                on_gpu and self.placement == "colocated" and self.servers is None,
                "'servers', how many, with 'device: gpu' and 'placement: colocated'",
            ),
            (
                on_gpu and (self.threads or self.memory_bandwidth),
                "'threads' and 'memory_bandwidth' with 'device: cpu' only",
            ),
        )


def server_nodes(strategy: object, parallel: ParallelSection | None) -> int:
    """Nodes that servers of parameters or of tables have for themselves; 0 without such servers."""
    if isinstance(strategy, ParameterServerStrategy):
        return 0 if strategy.placement == "colocated" else strategy.servers or 1
    holds = parallel and (parallel.tables, parallel.server_placement) == ("remote", "dedicated")
    return parallel.servers if parallel and holds else 0
