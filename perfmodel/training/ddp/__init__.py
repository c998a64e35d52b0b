"""DistributedDataParallel: its options, buckets, plan of a step and memory; see `ddp_plan`."""
