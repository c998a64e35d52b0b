"""SimpleFSDP: sharded parameters that a compiler gathers by the bucket, for `run_cases`.

Each use of a parameter gathers it; the compiler joins what a bucket of modules gathers or reduces
to one call, and moves calls apart, as torchtitan has it (``transformer_block_bucketing``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.fx_passes import overlap_scheduling
from torch._inductor.fx_passes.bucketing import is_fsdp_all_gather
from torch._inductor.fx_passes.overlap_manual_scheduling import manual_overlap_bucketing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import CheckpointPolicy

from tests.training.recorded.fsdp_cases import train
from tests.training.recorded.toy import Net
from tests.training.recorded.toy_workload import BLOCKS

BUCKETS: list[list[str] | str] = [
    "embed",
    *(f"blocks.{block}" for block in range(BLOCKS)),
    "head",
]


class Gathered(nn.Module):
    """Makes a parameter whole where it is used; what comes back to it is summed over ranks."""

    def forward(self, parameter: DTensor) -> torch.Tensor:
        whole = parameter.redistribute(placements=[Replicate()])
        return whole.to_local(grad_placements=[Partial("sum")])


def use_gathered(module: nn.Module) -> None:
    """Shard a module's own parameters by rows, and have them gathered at each use."""
    mesh, gathered = init_device_mesh("cpu", (dist.get_world_size(),)), Gathered()
    names = [name for name, _ in module.named_parameters(recurse=False)]
    for name in names:
        shards = distribute_tensor(module.get_parameter(name), mesh, [Shard(0)])
        module.register_parameter(name, nn.Parameter(shards))
    uses = {
        name: property(lambda self, name=name: gathered(self._parameters[name])) for name in names
    }
    module.__class__ = type(f"Gathered{type(module).__name__}", (type(module),), uses)


CAP_MIB = 0.0045
"""Of buckets that the compiler fills by itself: one and a half linear layers of the small model."""
Join = Callable[[torch.fx.GraphModule, object], torch.fx.GraphModule]


def case(*, keeps: bool, join: Join | None = None) -> None:
    """Train the small model, compiled.

    `keeps`: whether parameters stay whole until backward has used them.
    `join`: what joins calls; by default those of each module.
    """
    model, join = Net(), join or _join
    for module in list(model.modules()):
        use_gathered(module)
    policy = CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.MUST_RECOMPUTE
    split = partial(_split, policy=policy)
    backend = aot_autograd(fw_compiler=join, bw_compiler=join, partition_fn=split)
    train(torch.compile(model, backend=backend))


def _split(joint: torch.fx.GraphModule, *inputs: Any, policy: CheckpointPolicy, **more: Any) -> Any:
    """Split forward from backward, which has what comes of single parameters saved, or anew."""
    of_parameters: set[torch.fx.Node] = set()
    for node in joint.graph.nodes:
        inputs_of = node.all_input_nodes
        if is_fsdp_all_gather(node) or (inputs_of and of_parameters.issuperset(inputs_of)):
            of_parameters.add(node)
            node.meta |= {"recompute": policy, "ac_graph_id": 0}
    return min_cut_rematerialization_partition(joint, *inputs, **more)


def _join(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
    """Join the calls of each bucket."""
    # times of kernels, which only a GPU has, decide nothing where buckets are named
    with patch.object(overlap_scheduling, "estimate_roofline_runtime_ms", lambda _node: 0.0):
        joined = manual_overlap_bucketing(graph, module_bucket_plans=BUCKETS)
    return _callable(joined)


def _fill(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
    """Let the compiler fill buckets, where kernels hide less than a call takes."""
    fills = partial(
        overlap_scheduling.schedule_overlap_bucketing,
        collective_bucketing=True,
        compute_estimator="analytical",
        pre_bucketing_fsdp_collectives_bucket_cap_mb=CAP_MIB,
    )
    with patch.object(overlap_scheduling, "estimate_roofline_runtime_ms", lambda _node: 0.0):
        return _callable(fills(graph, custom_runtime_estimation=_estimate_ms))


def _estimate_ms(node: torch.fx.Node, _size: int | None) -> float | None:
    if overlap_scheduling.is_compute_node(node):
        return 1.0
    calls = ("all_gather", "reduce_scatter")
    return 2.0 if any(call in str(node.target) for call in calls) else None


def _callable(joined: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a graph without calls that pass by groups that Python makes."""
    functional = torch.ops._c10d_functional
    for node in joined.graph.nodes:
        # a gather into what is allocated already passes by groups that Python makes
        if node.target == functional.all_gather_into_tensor_out.default:
            node.target, node.kwargs = functional.all_gather_into_tensor.default, {}
    joined.recompile()
    return joined


CASES: dict[str, Callable[[], None]] = {
    "whole until backward": partial(case, keeps=True),
    "gathered twice": partial(case, keeps=False),
    "filled by the compiler": partial(case, keeps=False, join=_fill),
}
