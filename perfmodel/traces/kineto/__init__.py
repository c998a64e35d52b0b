"""Traces of PyTorch's profiler (Kineto): read as a stream, kept as columns, cut into steps."""
