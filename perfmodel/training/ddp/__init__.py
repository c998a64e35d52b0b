"""DistributedDataParallel: options, buckets, plan of a step, memory; see `plan.ddp_plan`."""
