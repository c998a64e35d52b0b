"""Real execution of schedules, by processes on gloo or NCCL or on one GPU; see `run.measure`."""
