"""Real DistributedDataParallel over Gloo and shaped links, beside what perfmodel says of it."""
