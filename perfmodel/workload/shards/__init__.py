"""A model as one rank of a tensor, context and expert parallel job holds it, and what it calls."""

from perfmodel.workload.shards.calls import LayerCall
from perfmodel.workload.shards.shard import WHOLE, Shard

__all__ = ["WHOLE", "LayerCall", "Shard"]
