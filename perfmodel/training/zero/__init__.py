"""ZeRO as DeepSpeed 0.19 runs it, and PyTorch's ZeroRedundancyOptimizer."""
