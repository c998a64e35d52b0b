"""Records of other tools than PyTorch's profiler: Nsight Systems, NCCL's Inspector."""
