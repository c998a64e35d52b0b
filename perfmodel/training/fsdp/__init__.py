"""FullyShardedDataParallel, fully_shard and both with copies of shards (HSDP)."""
