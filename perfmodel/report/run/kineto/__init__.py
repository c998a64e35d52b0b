"""Timelines in the shape of PyTorch's profiler traces; see `profiler_trace.to_kineto`."""
