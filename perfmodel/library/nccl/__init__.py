"""What NCCL itself would decide: how many channels, which algorithm, which protocol."""
