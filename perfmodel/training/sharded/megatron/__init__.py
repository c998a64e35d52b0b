"""Data parallelism of Megatron-Core 0.16: a contiguous gradient buffer, a distributed optimizer."""
